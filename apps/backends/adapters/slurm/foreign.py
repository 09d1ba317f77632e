"""Jobs that were submitted to Slurm itself, as gangs that Rollcall can show and count."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from apps.backends.adapters.slurm.own import ACTIVE, OUTCOMES, Clock
from apps.backends.adapters.slurm.text import WAITING, JobRow, gpus_in, tasks_of
from apps.backends.port import ForeignWork
from apps.common.time import from_us


def foreign_in(
    rows: Iterable[JobRow], pools: Collection[str], slurm: str, clock: Clock
) -> list[ForeignWork]:
    """Return each job that asks for the same GPUs on each of its nodes; the rest is left to the nodes.

    Slurm lists a job's GPUs by node only where it was asked for so; others (``--gpus``) are seen as
    used GPUs of their nodes alone.
    """
    found = (_work(row, pools, slurm, clock) for row in rows)
    return [work for work in found if work is not None]


def ref_of(slurm: str, label: str, submit: int) -> str:
    """Return what names a job for good: of an array's rest not which tasks are left."""
    array, bracket, _ = label.partition("[")
    return f"{slurm}:{array}{bracket}:{submit}"


def _work(row: JobRow, pools: Collection[str], slurm: str, clock: Clock) -> ForeignWork | None:
    pool, gpus = _asked(row, pools)
    state = "waiting" if row.state in WAITING else "running" if row.state in ACTIVE else "ended"
    if not gpus or (state == "running" and not (row.nodes and row.start)):
        return None
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
        size=len(row.nodes) or row.count,
        gpus_per_member=gpus,
        submitted_at=from_us(clock.us(row.submit)),
        nodes=row.nodes,
        run=str(row.start) if ran else "",
        started_at=None if start is None else from_us(start),
        ended_at=None if end is None else from_us(max(end, start or end)),
        outcome=_outcome(row.state) if state == "ended" else "",
        limit_seconds=row.limit,
        reason=row.reason if state == "waiting" else "",
        tasks=tasks_of(row.label),
    )


def _outcome(state: str) -> str:
    """Return how an ended job ended; one that Slurm lost is not started again by us."""
    outcome = OUTCOMES.get(state, "failed")
    return "failed" if outcome == "lost" else outcome


def _asked(row: JobRow, pools: Collection[str]) -> tuple[str, int]:
    """Return the pool of a job and its GPUs on each node, 0: unknown, or of several pools."""
    gpus = gpus_in(row.per_node)
    if len(gpus) != 1:
        return "", 0
    ((kind, many),) = gpus.items()
    if kind not in pools and kind == "gpu" and len(pools) == 1:
        kind = next(iter(pools))
    return (kind, many) if kind in pools else ("", 0)
