"""Jobs that were submitted to Slurm itself, as gangs that Rollcall can show and count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import gcd

from apps.backends.adapters.slurm.layout import UNTYPED, Asked, asked_of, members_on
from apps.backends.adapters.slurm.own import ACTIVE, OUTCOMES, Clock
from apps.backends.adapters.slurm.text import WAITING, JobRow, tasks_of
from apps.backends.port import ForeignWork
from apps.common.time import from_us


def foreign_in(
    rows: Iterable[JobRow], pools: Mapping[str, int], slurm: str, clock: Clock
) -> list[ForeignWork]:
    """Return each job that asks for GPUs of one pool; the rest is left to the nodes.

    That is what asks for GPUs of several types, or of any where there are several; and while it waits,
    what asks for them by socket. ``pools`` has the GPUs of the largest node of each.
    """
    found = (_work(row, pools, slurm, clock) for row in rows)
    return [work for work in found if work is not None]


def ref_of(slurm: str, label: str, submit: int) -> str:
    """Return what names a job for good: of an array's rest not which tasks are left."""
    array, bracket, _ = label.partition("[")
    return f"{slurm}:{array}{bracket}:{submit}"


def _work(row: JobRow, pools: Mapping[str, int], slurm: str, clock: Clock) -> ForeignWork | None:
    asked = asked_of(row)
    pool = "" if asked is None else _pool(row.kind or asked.kind, pools)
    state = "waiting" if row.state in WAITING else "running" if row.state in ACTIVE else "ended"
    if asked is None or (state == "running" and not (row.nodes and row.start)):
        return None
    unknown = state == "running" and asked.kind == UNTYPED and not row.kind
    if not pool and not unknown:
        return None
    nodes, size, each = _members(row, asked, state)
    if not pool:
        nodes = ()
    elif row.exclusive and not row.nodes:
        size, each = row.count, pools[pool]
    ran = row.start is not None and len(row.nodes) > 0
    start = clock.us(row.start) if ran and row.start is not None else None
    end = None if state != "ended" or row.end is None else clock.us(row.end)
    return ForeignWork(
        ref=ref_of(slurm, row.label, row.submit),
        name=f"Slurm job {row.label}"[:200],
        state=state,
        account=row.account,
        user=row.user,
        pool=pool,
        size=size,
        gpus_per_member=each,
        submitted_at=from_us(clock.us(row.submit)),
        nodes=nodes,
        run=str(row.start) if ran else "",
        started_at=None if start is None else from_us(start),
        ended_at=None if end is None else from_us(max(end, start or end)),
        outcome=_outcome(row.state) if state == "ended" else "",
        limit_seconds=row.limit,
        reason=row.reason if state == "waiting" else "",
        tasks=tasks_of(row.label),
        qos=row.qos,
    )


def _members(row: JobRow, asked: Asked, state: str) -> tuple[tuple[str, ...], int, int]:
    """Return the node of each member, how many there are and the GPUs of each.

    Of a job that runs it may not be known how many are on which node: then there are no nodes. One
    that is over is laid out as its history is.
    """
    if row.laid:
        each = gcd(*row.laid)
        laid = zip(row.nodes, row.laid, strict=True)
        nodes = tuple(name for name, many in laid for _ in range(many // each))
        return nodes, len(nodes), each
    if row.nodes and state == "ended":
        nodes = members_on(row.nodes, asked.total)
        return nodes, len(nodes), asked.total // len(nodes)
    return row.nodes if asked.by_node else (), asked.members, asked.each


def _outcome(state: str) -> str:
    """Return how an ended job ended; one that Slurm lost is not started again by us."""
    outcome = OUTCOMES.get(state, "failed")
    return "failed" if outcome == "lost" else outcome


def _pool(kind: str, pools: Collection[str]) -> str:
    """Return the pool of GPUs of a type, ``gpu``: any; empty: there is none, or one of several."""
    if kind not in pools and kind == UNTYPED and len(pools) == 1:
        return next(iter(pools))
    return kind if kind in pools else ""
