"""Submit what a replayed trace or a made workload brings, each job at its own instant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.backends.models import Cluster, Pool
from apps.common.errors import DomainError, Invalid
from apps.common.prepared import Prepared
from apps.common.rows import set_columns
from apps.jobs.models import Arrival
from apps.jobs.services import JobSpec, submit_many
from apps.queues.models import PriorityClass
from apps.queues.selectors import DEFAULT_CLASS

BATCH = 1_000

SPEC_KEYS = frozenset(
    {
        "name",
        "pool",
        "size",
        "gpus_per_member",
        "min_size",
        "topology",
        "limit_seconds",
        "priority_class",
        "nice",
        "workload",
        "retry_limit",
    }
)
"""What ``Arrival.spec`` may hold: the words of JobSpec; pool and priority class by name."""


# The arrivals whose instant has come and that are no jobs yet, in order.
DUE = Prepared(
    lambda cluster_id, now: (
        Arrival.objects.filter(cluster=cluster_id, at__lte=now, job__isnull=True, refused="")
        .order_by("at", "pk")
        .values_list("pk")[:BATCH]
    )
)


@dataclass(frozen=True, slots=True)
class Intake:
    """What arrivals name: the pools of a cluster and the priority classes, by name."""

    pools: Mapping[str, Pool]
    classes: Mapping[str, PriorityClass]


def intake_of(cluster: Cluster) -> Intake:
    """Read what arrivals of a cluster may name."""
    pools = {pool.name: pool for pool in Pool.objects.filter(cluster=cluster)}
    for pool in pools.values():
        pool.cluster = cluster
    return Intake(pools, {row.name: row for row in PriorityClass.objects.all()})


def submit_due(
    cluster: Cluster, *, now: datetime, intake: Callable[[], Intake] | None = None
) -> int:
    """Submit each arrival with ``at`` <= ``now`` at its own ``at``; return how many jobs it made.

    ``intake`` gives what arrivals name, if it may be older than this call.
    Safe to repeat, and to run twice at once: a batch of jobs and the mark on their arrivals are
    one transaction. What no rule allows (an archived tenant, a closed queue) is marked refused.
    """
    made = 0
    # The look is outside a transaction, which on SQLite would wait for every other writer.
    while True:
        keys = [pk for (pk,) in DUE.rows(cluster.pk, now)]
        if keys:
            made += _submit(cluster, keys, intake() if intake else intake_of(cluster))
        if len(keys) < BATCH:
            return made


@transaction.atomic
def _submit(cluster: Cluster, keys: Sequence[int], intake: Intake) -> int:
    """Submit a batch whole; the rows are claimed by their lock and looked at again."""
    rows = list(
        Arrival.objects.select_for_update(of=("self",))
        .filter(pk__in=keys, job__isnull=True, refused="")
        .select_related("tenant")
        .order_by("at", "pk")
    )
    _submit_rows(cluster, rows, intake)
    made = [row for row in rows if row.job_id is not None]
    set_columns(rows, ["job", "refused"])
    return len(made)


def _submit_rows(cluster: Cluster, rows: Sequence[Arrival], intake: Intake) -> None:
    """Give each row its job or its refusal; a batch with a refusal in it is halved to find it."""
    try:
        specs = [_spec(cluster, row, intake) for row in rows]
        # What it refuses it refuses before it writes.
        jobs = submit_many(specs, at=[row.at for row in rows])
    except DomainError as error:
        if len(rows) == 1:
            rows[0].refused = error.message[:300]
            return
        middle = len(rows) // 2
        _submit_rows(cluster, rows[:middle], intake)
        _submit_rows(cluster, rows[middle:], intake)
        return
    for row, job in zip(rows, jobs, strict=True):
        row.job = job


def _spec(cluster: Cluster, row: Arrival, intake: Intake) -> JobSpec:
    asked: dict[str, Any] = dict(row.spec)
    if unknown := sorted(set(asked) - SPEC_KEYS):
        raise Invalid(f"An arrival has no {unknown[0]}.", field=unknown[0])
    pool = intake.pools.get(asked.pop("pool", ""))
    if pool is None:
        raise Invalid(f"{cluster} has no such pool.", field="pool")
    wanted = asked.pop("priority_class", None)
    if wanted is not None and wanted not in intake.classes:
        raise Invalid(f"There is no priority class called {wanted}.", field="priority_class")
    return JobSpec(
        tenant=row.tenant,
        cluster=cluster,
        pool=pool,
        priority_class=intake.classes.get(wanted or DEFAULT_CLASS),
        **{"name": "", "size": 1, "gpus_per_member": 1, **asked},
    )
