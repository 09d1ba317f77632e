"""What a look lists no more may still be in the cluster's accounting: how it ended, before it is lost."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from apps.backends.models import Cluster
from apps.backends.port import Backend, BackendError, Recalled, Remembers, SeenAttempt
from apps.jobs.models import Attempt
from apps.scheduling.adopt import Adoption

logger = logging.getLogger(__name__)

FORGOTTEN = "the cluster knows it no more"
MOST = 500
"""So much is asked within a tick; what is lost beyond it is mended when history is read on."""


def recall_vanished(cluster: Cluster, backend: Backend, foreign: Adoption) -> None:
    """Ask how those ended that were alive and are listed no more; without an answer they are lost.

    A cluster without accounting, or whose accounting does not answer, costs a tick no more than
    that one question.
    """
    if "history" not in backend.capabilities().can or not isinstance(backend, Remembers):
        return
    listed = {UUID(report.uid) for report in foreign.seen.attempts}
    rows = Attempt.objects.filter(
        job__cluster=cluster, job__foreign_ref="", ended_at__isnull=True, launched_at__isnull=False
    )
    alive = rows.exclude(cluster_ref="").order_by("pk")
    gone = [row for row in alive.only("cluster_ref", "uid", "launched_at") if row.uid not in listed]
    own = {row.cluster_ref: str(row.uid) for row in gone}
    refs = foreign.vanished()[:MOST]
    if not own and not refs:
        return
    try:
        found = backend.recall(refs, own, now=foreign.seen.as_of)
    except BackendError as error:
        logger.warning(
            "how %d jobs of cluster %s ended is not known: %s",
            len(own) + len(refs), cluster.name, error.message,
        )  # fmt: skip
        return
    launched = {str(row.uid): row.launched_at for row in gone}
    attempts = [not_before(report, launched[report.uid]) for report in found.attempts]
    foreign.take_back(Recalled(found.works, attempts))


def not_before(report: SeenAttempt, launched_at: datetime | None) -> SeenAttempt:
    """Return a report in which nothing is before the launch: the cluster may count whole seconds."""
    if launched_at is None:
        return report
    started, ended = report.started_at, report.ended_at
    return replace(
        report,
        started_at=None if started is None else max(started, launched_at),
        ended_at=None if ended is None else max(ended, launched_at),
    )
