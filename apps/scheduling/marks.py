"""Which GPUs are held and not working, as the cluster's samples say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from apps.backends.models import Cluster
from apps.backends.port import Sample
from apps.common.prepared import Prepared
from apps.jobs.models import Attempt
from apps.scheduling.alive import Alive

RUNNING = Prepared(
    lambda cluster_id: Attempt.objects.filter(
        job__cluster=cluster_id, ended_at__isnull=True, started_at__isnull=False
    ).values_list(
        "id", "uid", "job__size", "job__gpus_per_member", "job__pool__idle_below",
        "job__pool__idle_grace_seconds",
    )
)  # fmt: skip


def unsampled(alive: Iterable[Alive], *, now: datetime) -> list[Sample]:
    """Return that the utilisation is unknown of what was submitted to the cluster itself."""
    return [Sample(str(row.uid), now, None) for row in alive if row.foreign_ref]


def held_idle_of(
    cluster: Cluster, samples: Sequence[Sample]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the GPUs of attempts that are idle, and of those whose utilisation is unknown.

    Idle: below the pool's threshold for its grace period. A missing sample is unknown, not idle.
    """
    idle: dict[int, int] = {}
    unknown: dict[int, int] = {}
    # Those at work beyond doubt are most of them.
    doubtful = {UUID(s.uid): s for s in samples if s.utilisation is None or s.idle_since}
    rows = RUNNING.rows(cluster.pk) if doubtful else []
    for pk, uid, size, gpus, below, grace in rows:
        sample = doubtful.get(uid)
        if sample is None:
            continue
        if sample.utilisation is None:
            unknown[pk] = size * gpus
        elif sample.utilisation < below and sample.idle_since is not None:
            idle_for = (sample.at - sample.idle_since).total_seconds()
            if idle_for >= grace:
                idle[pk] = size * gpus
    return idle, unknown
