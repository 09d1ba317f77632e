"""Bring a trace into the database as arrivals on a cluster of its own: all of it or nothing.

What a trace lacks is chosen here, and said:

* *Members.* A job of up to 8 GPUs is one member; a larger one is members of 8, or of 1 where it
  cannot be divided by 8.
* *Limits.* Philly tells none. A job asks for the smallest of LIMITS that is at least twice what it
  really took, as people ask for more than they need; the true run time is known to the simulator
  alone, in its workload.
* *Outcomes.* The rows have none: every job succeeds after its run time.
* *Tenants.* One tenant named as the cluster, and below it one for each group of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from apps.backends.models import Cluster, Grade, Pool
from apps.backends.services import add_cluster
from apps.backends.worlds import SimNode, world_of
from apps.common.errors import Conflict, Invalid
from apps.jobs.models import Arrival
from apps.jobs.traces import FORMATS, Report, Source, TraceJob, open_trace, read_jobs
from apps.tenants.models import Tenant
from apps.tenants.services import create_tenant

BATCH = 2_000
POOL = "gpu"
GPUS_PER_NODE = 8
HOUR, DAY = 3_600, 86_400
LIMITS = (
    *(HOUR, 4 * HOUR, 12 * HOUR, DAY, 2 * DAY, 4 * DAY),
    *(7 * DAY, 14 * DAY, 30 * DAY, 60 * DAY, 120 * DAY),
)
STEP_SECONDS = 600
# How long the virtual clock goes on after the last job could have ended had it never waited.
TAIL = timedelta(days=7)

Progress = Callable[[int, int], None]
"""Called with the bytes read and the file's size."""


def no_progress(_read: int, _size: int) -> None:
    """Show nothing."""


def members_of(gpus: int) -> tuple[int, int]:
    """Return (members, GPUs of each) for a job of that many GPUs."""
    if gpus <= GPUS_PER_NODE:
        return 1, gpus
    if gpus % GPUS_PER_NODE == 0:
        return gpus // GPUS_PER_NODE, GPUS_PER_NODE
    return gpus, 1


def limit_for(seconds: float) -> int:
    """Return the limit a job of that run time asks for; see the module's head."""
    for limit in LIMITS:
        if limit >= 2 * seconds:
            return limit
    return int(2 * seconds // DAY + 1) * DAY


def _spec(job: TraceJob, pool: Pool, prefix: str) -> dict[str, Any]:
    size, each = members_of(job.gpus)
    return {
        "name": f"{prefix}-{job.line}",
        "pool": pool.name,
        "size": size,
        "gpus_per_member": each,
        "limit_seconds": limit_for(job.seconds),
        "workload": {"kind": "simulated", "runtime": job.seconds},
    }


class _Tenants:
    """The tenants of a trace's groups, made as they come."""

    def __init__(self, top: str, now: datetime) -> None:
        self._now = now
        self._top = Tenant.objects.filter(parent=None, name=top).first() or create_tenant(
            top, now=now
        )
        if self._top.archived_at is not None:
            raise Conflict(f"The tenant {top} is archived.", field="cluster")
        self._known = {
            tenant.name.casefold(): tenant for tenant in Tenant.objects.filter(parent=self._top)
        }

    def of(self, group: str) -> Tenant:
        """Return the tenant of a group; two that differ by case alone are one."""
        found = self._known.get(group.casefold())
        if found is None:
            found = create_tenant(group, parent=self._top, now=self._now)
            self._known[group.casefold()] = found
        return found


def _cluster_for(name: str, now: datetime) -> tuple[Cluster, Pool, bool]:
    """Return the cluster of that name, made if there is none, the pool, and whether it is new."""
    cluster = Cluster.objects.select_for_update().filter(name=name).first()
    if cluster is None:
        try:
            cluster = add_cluster(
                name,
                kind="simulator",
                grade=Grade.DRIVE,
                now=now,
                clock_now=now,
                clock_step=STEP_SECONDS,
            )
        except ValidationError as error:
            raise Invalid(f"{name!r} is no name of a cluster.", field="cluster") from error
        return cluster, Pool.objects.create(cluster=cluster, name=POOL), True
    if cluster.kind != "simulator":
        raise Invalid(f"{name} is a real cluster; a trace needs a simulated one.", field="cluster")
    if cluster.archived_at is not None:
        raise Conflict(f"{name} is archived.", field="cluster")
    pools = list(Pool.objects.filter(cluster=cluster)[:2])
    if len(pools) != 1:
        raise Invalid(f"{name} needs exactly one pool for a trace to go to.", field="cluster")
    return cluster, pools[0], False


def _fill(cluster: Cluster, pool: Pool, jobs: Iterator[TraceJob], now: datetime) -> datetime | None:
    """Store the jobs as arrivals, a batch at a time; return when the last could have ended."""
    tenants = _Tenants(cluster.name, now)
    until: datetime | None = None
    while batch := list(islice(jobs, BATCH)):
        Arrival.objects.bulk_create(
            Arrival(
                cluster_id=cluster.pk,
                at=job.at,
                tenant_id=tenants.of(job.group).pk,
                spec=_spec(job, pool, cluster.name),
            )
            for job in batch
        )
        last = max(job.at + timedelta(seconds=job.seconds) for job in batch)
        until = last if until is None else max(until, last)
    return until


def _watched(jobs: Iterator[TraceJob], source: Source, progress: Progress) -> Iterator[TraceJob]:
    for count, job in enumerate(jobs):
        if count % BATCH == 0:
            progress(source.read, source.size)
        yield job
    progress(source.size, source.size)


def _remember(cluster: Cluster, source: Source, path: Path) -> None:
    """Write the file's digest on the cluster, so that it comes once.

    :raises Conflict: ``already_imported``, if it came before.
    """
    traces: dict[str, str] = dict(cluster.options.get("traces", {}))
    if source.digest in traces:
        raise Conflict(
            f"{path.name} was imported on {cluster.name} already; nothing was added.",
            field="path",
            code="already_imported",
        )
    traces[source.digest] = path.name
    cluster.options = {**cluster.options, "traces": traces}
    cluster.save(update_fields=["options"])


def _set_clock(cluster: Cluster, report: Report, until: datetime, new: bool) -> None:
    """Let a new cluster's clock start at the first submission; an older one must not be past it."""
    if report.first is None:
        return
    if new:
        cluster.clock_now = report.first
    elif cluster.now() > report.first:
        raise Conflict(
            f"The clock of {cluster.name} stands at {cluster.now():%Y-%m-%d %H:%M}, after the"
            f" trace's first submission at {report.first:%Y-%m-%d %H:%M}; name another cluster.",
            field="cluster",
        )
    cluster.clock_until = max(until + TAIL, cluster.clock_until or until)
    cluster.save(update_fields=["clock_now", "clock_until"])


def import_trace(
    kind: str,
    path: Path,
    *,
    now: datetime,
    cluster_name: str = "",
    nodes: int = 100,
    progress: Progress = no_progress,
) -> tuple[Report, Cluster | None]:
    """Read a trace into arrivals; return what became of its rows, and the cluster.

    A cluster that does not exist is made: simulated, ``nodes`` nodes of 8 GPUs, on a virtual clock
    that stands at the first submission. No cluster: the file has no job, and nothing was written.

    :raises Invalid: if the file cannot be read to its end; nothing is written.
    :raises Conflict: if this very file came before.
    """
    if kind not in FORMATS:
        raise Invalid(
            f"There is no kind of trace called {kind}; there are {', '.join(FORMATS)}.",
            field="kind",
        )
    if nodes < 1:
        raise Invalid("A cluster needs a node at least.", field="nodes")
    report = Report()
    with open_trace(path) as source, transaction.atomic():
        cluster, pool, new = _cluster_for(cluster_name or kind, now)
        jobs = _watched(read_jobs(source, FORMATS[kind], report), source, progress)
        until = _fill(cluster, pool, jobs, now)
        if until is None:
            transaction.set_rollback(True)
            return report, None
        _remember(cluster, source, path)
        _set_clock(cluster, report, until, new)
        if new:
            # Made before the commit: a crash leaves an empty world, not a cluster without nodes.
            width = len(str(nodes))
            names = [f"node-{number:0{width}}" for number in range(1, nodes + 1)]
            world = world_of(cluster)
            world.add_nodes(
                [SimNode(name, pool.name, GPUS_PER_NODE) for name in names], at=cluster.now()
            )
    return report, cluster
