"""The attempts that hold GPUs, as Rollcall believes: read once a tick, kept right within it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apps.backends.models import Cluster
from apps.common.prepared import Prepared
from apps.jobs.models import Attempt, Member

COLUMNS = (
    "id", "uid", "job_id", "job__tenant_id", "job__pool_id", "job__priority_class_id",
    "job__gpus_per_member", "job__limit_seconds", "created_at", "launched_at", "started_at",
    "last_checkpoint_at", "job__submitted_at", "job__min_size", "after_eviction",
    "job__cancel_requested_at", "job__foreign_ref",
)  # fmt: skip


@dataclass(slots=True)
class Alive:
    """One attempt that holds GPUs; who writes one of these columns changes it here too."""

    pk: int
    uid: UUID
    job_id: int
    tenant_id: int
    pool_id: int
    class_id: int
    gpus_per_member: int
    limit_seconds: int | None
    created_at: datetime
    launched_at: datetime | None
    started_at: datetime | None
    last_checkpoint_at: datetime | None
    submitted_at: datetime
    min_size: int
    after_eviction: bool
    cancel_requested_at: datetime | None
    foreign_ref: str


HERE = Prepared(
    lambda cluster_id: (
        Attempt.objects.filter(job__cluster=cluster_id, ended_at__isnull=True)
        .order_by("job_id")
        .values_list("id", "job__cancel_requested_at")
    )
)
ALL = Prepared(
    lambda cluster_id: (
        Attempt.objects.filter(job__cluster=cluster_id, ended_at__isnull=True)
        .order_by()
        .values_list(*COLUMNS)
    )
)
SOME = Prepared(lambda keys: Attempt.objects.filter(pk__in=keys).order_by().values_list(*COLUMNS))
NODES_OF_ALL = Prepared(
    lambda cluster_id: (
        Member.objects.filter(
            attempt__job__cluster=cluster_id, attempt__ended_at__isnull=True, left_at__isnull=True
        )
        .order_by("attempt_id", "rank")
        .values_list("attempt_id", "node_id")
    )
)
NODES_OF = Prepared(
    lambda attempts: (
        Member.objects.filter(attempt__in=attempts, left_at__isnull=True)
        .order_by("attempt_id", "rank")
        .values_list("attempt_id", "node_id")
    )
)
FEW = 30
"""As many attempts are asked for by name; more are read with all the others."""


def alive_on(cluster: Cluster, known: dict[int, Alive]) -> list[Alive]:
    """Return the attempts that hold GPUs, by the id of their job.

    ``known`` is what was read before, by id, and is kept up: only who ticks the cluster writes
    attempts, and after its start all that changes of one is its checkpoint and its end.
    """
    here = HERE.rows(cluster.pk)
    unread = [pk for pk, _ in here if pk not in known or known[pk].started_at is None]
    if unread:
        rows = SOME.rows(sorted(unread)) if len(unread) <= FEW else ALL.rows(cluster.pk)
        known.update({row[0]: Alive(*row) for row in rows})
    for pk, cancel_requested_at in here:
        known[pk].cancel_requested_at = cancel_requested_at
    for gone in known.keys() - {pk for pk, _ in here}:
        del known[gone]
    return [known[pk] for pk, _ in here]


def nodes_of(
    cluster: Cluster, alive: list[Alive], known: dict[int, list[int]]
) -> dict[int, list[int]]:
    """Return the node of each member, by attempt; ``known`` is what was read before, kept up."""
    here = {row.pk for row in alive}
    for gone in known.keys() - here:
        del known[gone]
    unread = sorted(here - known.keys())
    if not unread:
        return known
    few = len(unread) <= FEW
    rows = NODES_OF.rows(unread) if few else NODES_OF_ALL.rows(cluster.pk)
    known.update({pk: [] for pk in (unread if few else here)})
    for attempt_id, node_id in rows:
        known[attempt_id].append(node_id)
    return known
