"""One look at a Slurm cluster, and what all that it said shows together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from apps.backends.adapters.slurm.foreign import foreign_in
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.own import (
    ALIVE,
    Clock,
    Detail,
    OwnJob,
    came_back,
    gpus_held,
    is_ours,
    one_each,
    seen,
)
from apps.backends.adapters.slurm.text import JobRow, NodeText
from apps.backends.adapters.slurm.ways import Way
from apps.backends.port import ForeignWork, Observation, SeenAttempt, SeenNode
from apps.common.time import MICROSECOND, from_us, to_us

# Two clocks that differ by less are taken for the same: Slurm counts whole seconds.
SAME_CLOCK_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Look:
    """What Slurm said; ``own`` are our jobs by uid, ``spare`` those that are one too many."""

    slurm: str
    booted: int
    as_of: int
    clock: Clock
    nodes: list[NodeText]
    rows: list[JobRow]
    own: Mapping[str, OwnJob]
    spare: list[OwnJob]
    details: Mapping[int, Detail]

    def detail(self, job: OwnJob) -> Detail:
        """Return what is known of how a job ended."""
        return self.details.get(job.id, Detail())

    def is_over(self, job: OwnJob) -> bool:
        """Return whether an attempt ended, though Slurm may have laid its job back in line."""
        return not (job.runs or job.waits) or came_back(job, self.detail(job))


def clock_of(as_of: int, now: datetime) -> Clock:
    """Return how Slurm's clock stands to ours."""
    skew = as_of - to_us(now) // MICROSECOND
    return Clock(skew if abs(skew) > SAME_CLOCK_SECONDS else 0)


def look(way: Way, cluster: str, known: frozenset[str], *, now: datetime) -> Look:
    """Ask Slurm for its nodes and jobs; ``known``: what the last look told of.

    One whose comment somebody overwrote is ours if it was at the last look.
    """
    told = way.records(cluster, known)
    found, spare = one_each(job for job in told.own if is_ours(job, known))
    return Look(
        slurm=way.slurm,
        booted=told.booted,
        as_of=told.as_of,
        clock=clock_of(told.as_of, now),
        nodes=told.nodes,
        rows=told.rows,
        own=found,
        spare=spare,
        details=told.details,
    )


def _nodes(look: Look, options: Options, now: datetime) -> list[SeenNode]:
    ours = gpus_held([*look.own.values(), *look.spare])
    found = []
    for node in look.nodes:
        if options.partition and options.partition not in node.partitions:
            continue
        since = now if node.since is None else from_us(look.clock.us(node.since))
        for pool, gpus in node.gpus.items():
            used = node.used.get(pool, 0)
            found.append(
                SeenNode(
                    name=node.name,
                    pool=pool,
                    gpus=gpus,
                    state=node.state,
                    since=min(since, now),
                    reason=node.reason,
                    foreign_gpus=min(max(used - ours.get((node.name, pool), 0), 0), gpus),
                )
            )
    return found


def foreign_rows(look: Look, options: Options) -> list[JobRow]:
    """Return the jobs that are not ours, in the partition where Rollcall looks, by id.

    Of those that were submitted in the same second the lower id is the first to Slurm, and so to us.
    """
    ours = {job.id for job in (*look.own.values(), *look.spare)}
    rows = [
        row
        for row in look.rows
        if row.id not in ours
        and (not options.partition or options.partition in row.partition.split(","))
    ]
    return sorted(rows, key=lambda row: row.id)


def _foreign(look: Look, nodes: list[SeenNode], options: Options) -> list[ForeignWork]:
    """Return the work that is not ours, where Rollcall looks: its partition, its pools."""
    pools: dict[str, int] = {}
    for node in nodes:
        pools[node.pool] = max(node.gpus, pools.get(node.pool, 0))
    return foreign_in(foreign_rows(look, options), pools, look.slurm, look.clock)


def told_by(cursor: str) -> frozenset[str]:
    """Return the jobs that a cursor has told of, by id and submit time."""
    return frozenset(cursor.split())


def observation(
    look: Look, known: frozenset[str], options: Options, *, now: datetime, cost_ms: float
) -> Observation:
    """Return what a look showed; the cursor names our jobs that Slurm remembers, alive or ended."""
    attempts: list[SeenAttempt] = []
    told = []
    for job in look.own.values():
        if look.is_over(job):
            told.append(job.key)
            if job.key in known:
                continue
        else:
            told.append(ALIVE + job.key)
        attempts.append(seen(job, look.detail(job), look.clock, look.slurm))
    nodes = _nodes(look, options, now)
    return Observation(
        as_of=now,
        cursor=" ".join(sorted(told)),
        nodes=nodes,
        attempts=attempts,
        foreign=_foreign(look, nodes, options),
        cost_ms=cost_ms,
    )
