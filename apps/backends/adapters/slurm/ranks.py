"""Everybody's jobs in Slurm's line: where they stand, and the nice by which they follow our order."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from apps.backends.adapters.slurm.foreign import ref_of
from apps.backends.adapters.slurm.own import ACTIVE
from apps.backends.adapters.slurm.text import WAITING, JobRow
from apps.backends.port import SeenRank

# Slurm takes no other nice, and gives no job that may start a priority below 1.
MOST_NICE = 2_147_483_645
LOWEST, HIGHEST = 1, 2_000_000_000
# How far from its neighbour one is put where there is room: as jobs grow older their priorities are
# rounded anew, and those that are apart by 1 may change places by themselves.
STEP = 100


@dataclass(frozen=True, slots=True)
class Placed:
    """A job by its id, and where it stands."""

    id: int
    seen: SeenRank


def placed_in(rows: Iterable[JobRow], slurm: str) -> dict[str, Placed]:
    """Return the jobs that are not over, by ref; those on hold have no priority and no place."""
    found = {}
    for row in rows:
        waits = row.state in WAITING
        if waits or row.state in ACTIVE:
            ref = ref_of(slurm, row.label, row.submit)
            listed = waits and row.priority > 0
            found[ref] = Placed(row.id, SeenRank(ref, row.priority, row.nice, listed))
    return found


def nice_for(order: Sequence[Placed], *, most: int) -> Mapping[str, int]:
    """Return the nice, by ref, of as few jobs as it takes for Slurm to start them in this order.

    Slurm starts the highest priority first, and of equal ones the lowest id. All jobs keep theirs
    but those outside the longest row that is in order already and leaves whole numbers enough for
    the others; these are spread evenly between their neighbours. What Slurm takes no nice for is
    left out, and so is all but the first ``most``.
    """
    fall = _falls(order)
    wanted = _levels([job.seen.priority + fall[k] for k, job in enumerate(order)], fall)
    nice: dict[str, int] = {}
    for k, job in enumerate(order):
        if len(nice) >= most:
            break
        priority = wanted[k] - fall[k]
        if priority == job.seen.priority:
            continue
        value = _without_nice(job.seen) - priority
        if abs(value) <= MOST_NICE:
            nice[job.seen.ref] = value
    return nice


def denied(user: str) -> str:
    """Return that somebody else's jobs are not ours to change, and what grants it."""
    return (
        f"Slurm does not let {user} change the nice of other people's jobs. An administrator of Slurm"
        f" grants it: sacctmgr -i modify user {shlex.quote(user)} set adminlevel=Operator."
    )


def _without_nice(seen: SeenRank) -> int:
    """Return the priority without its nice.

    At the lowest priority it may be anything that the nice takes away: it is taken for nothing, so
    that the next look shows what it is.
    """
    return 0 if seen.priority <= LOWEST and seen.nice > 0 else seen.priority + seen.nice


def _falls(order: Sequence[Placed]) -> list[int]:
    """Return by how much priorities must have fallen from the first job to each: 0 between two that
    may be equal, as the first has the lower id."""
    fall = [0] * len(order)
    for k in range(1, len(order)):
        fall[k] = fall[k - 1] + (order[k].id < order[k - 1].id)
    return fall


def _levels(level: Sequence[int], fall: Sequence[int]) -> list[int]:
    """Return levels (priority and what must have fallen until there) that never rise.

    As few as can be differ from those there are.
    """
    if not level:
        return []
    low = LOWEST + fall[-1]
    wanted = list(level)
    kept = _longest(level, low)
    for before, after in pairwise([-1, *kept, len(level)]):
        above = level[before] if before >= 0 else None
        below = level[after] if after < len(level) else None
        wanted[before + 1 : after] = _between(above, below, after - before - 1, low)
    return wanted


def _between(above: int | None, below: int | None, count: int, low: int) -> list[int]:
    """Return so many levels between two that stay; None: there is nobody on that side."""
    if count == 0:
        return []
    if above is not None and below is not None:
        return [above - (above - below) * k // (count + 1) for k in range(1, count + 1)]
    if above is not None:
        step = min(STEP, (above - low) // count)
        return [above - step * k for k in range(1, count + 1)]
    bottom = low if below is None else below
    step = min(STEP, (HIGHEST - bottom) // count)
    return [bottom + step * k for k in range(count, 0, -1)]


def _longest(level: Sequence[int], low: int) -> list[int]:
    """Return the indices of a longest subsequence that never rises and stays within bounds."""
    ends: list[int] = []  # the negated last level of the best row of each length
    last: list[int] = []  # the index at which it ends
    before: list[int] = [-1] * len(level)
    for k, value in enumerate(level):
        if not low <= value <= HIGHEST:
            continue
        place = bisect_right(ends, -value)
        before[k] = last[place - 1] if place else -1
        ends[place : place + 1], last[place : place + 1] = [-value], [k]
    row = []
    k = last[-1] if last else -1
    while k >= 0:
        row.append(k)
        k = before[k]
    return row[::-1]
