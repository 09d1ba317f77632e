"""Split the GPU time of one cluster into its states, exactly, instant by instant.

At every instant, per pool: capacity = busy + unknown + held_idle + gang_wait + free + stranded +
unavailable (DOMAIN §3, busy there being busy + unknown). It is computed at each instant at which
anything changes and then summed, all in integers, so any partition of a range adds up to the whole.

Data that cannot be (more allocated than there is) is cut to fit the capacity, in this order of
right to it: members (lower tenant id first), foreign work, holds (likewise), what is unavailable,
what is stranded; free is what is left. What was cut, stranded apart, is reported as ``excess``,
which is no part of the sum. Marks are cut to the members they lie on, unknown first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

BUSY, UNKNOWN, HELD_IDLE, GANG_WAIT = "busy", "unknown", "held_idle", "gang_wait"
FREE, STRANDED, UNAVAILABLE = "free", "stranded", "unavailable"
STATES = (BUSY, UNKNOWN, HELD_IDLE, GANG_WAIT, FREE, STRANDED, UNAVAILABLE)
EXCESS = "excess"

# What an interval is, as a number: see CODE_OF.
UP, OUT, MEMBER, HOLD, MARK_IDLE, MARK_UNKNOWN, MARK_STRANDED, MARK_FOREIGN = range(8)
CODE_OF = {
    ("node", "up"): UP,
    ("node", "drained"): OUT,
    ("node", "down"): OUT,
    ("member", ""): MEMBER,
    ("hold", ""): HOLD,
    ("mark", "held_idle"): MARK_IDLE,
    ("mark", "unknown"): MARK_UNKNOWN,
    ("mark", "stranded"): MARK_STRANDED,
    ("mark", "foreign"): MARK_FOREIGN,
}
NOBODY = 0


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Intervals as columns, clipped to the range they are looked at in."""

    pool: Ints
    code: Ints
    tenant: Ints  # NOBODY: none
    gpus: Ints
    start: Ints
    end: Ints
    out: npt.NDArray[np.bool_]  # a member or hold on a node that is not up


@dataclass(frozen=True, slots=True)
class Piece:
    """GPU-microseconds between two neighbouring cuts."""

    cut: int  # index of the first
    pool: int
    tenant: int
    state: str
    gpu_us: int


def split(rows: Rows, cuts: Sequence[int]) -> Iterator[Piece]:
    """Yield what each state took between neighbouring cuts; ``cuts`` ascend and span the rows."""
    for pool in np.unique(rows.pool).tolist():
        mine = rows.pool == pool
        yield from _split_pool(
            pool,
            Rows(
                rows.pool[mine], rows.code[mine], rows.tenant[mine], rows.gpus[mine],
                rows.start[mine], rows.end[mine], rows.out[mine],
            ),
            np.asarray(cuts, dtype=np.int64),
        )  # fmt: skip


def _split_pool(pool: int, rows: Rows, cuts: Ints) -> Iterator[Piece]:
    times = np.unique(np.concatenate([rows.start, rows.end, cuts]))
    tenants = np.unique(rows.tenant[np.isin(rows.code, (MEMBER, HOLD))])
    levels = _Levels(rows, times, tenants)
    count = len(tenants)

    member, hold = levels.by_tenant(MEMBER), levels.by_tenant(HOLD)
    capacity = levels.total(UP) + levels.total(OUT)
    unavailable = np.maximum(levels.total(OUT) - levels.out_and_used(), 0)
    claims = np.vstack(
        [
            member,
            levels.total(MARK_FOREIGN),
            hold,
            unavailable,
            levels.total(MARK_STRANDED),
        ]
    )
    filled = np.minimum(np.cumsum(claims, axis=0), capacity)
    given = np.diff(filled, axis=0, prepend=0)
    excess = claims[:-1].sum(axis=0) - filled[-2]

    member = given[:count]
    unknown = np.minimum(levels.by_tenant(MARK_UNKNOWN), member)
    idle = np.minimum(levels.by_tenant(MARK_IDLE), member - unknown)
    busy = member - unknown - idle
    nobody = np.array([NOBODY])
    for state, of, level in (
        (BUSY, tenants, busy),
        (UNKNOWN, tenants, unknown),
        (HELD_IDLE, tenants, idle),
        (
            UNKNOWN,
            nobody,
            given[count : count + 1],
        ),  # foreign work: allocated, and not ours to know
        (GANG_WAIT, tenants, given[count + 1 : 2 * count + 1]),
        (UNAVAILABLE, nobody, given[-2:-1]),
        (STRANDED, nobody, given[-1:]),
        (FREE, nobody, (capacity - filled[-1])[None, :]),
        (EXCESS, nobody, excess[None, :]),
    ):
        yield from _sum(pool, state, of, level, times, cuts)


def _sum(
    pool: int, state: str, tenants: Ints, level: Ints, times: Ints, cuts: Ints
) -> Iterator[Piece]:
    """Yield the integral of each row of ``level``, (tenants, instants), between the cuts."""
    if not level.any():
        return
    spent = level * np.diff(times)
    sums = np.add.reduceat(spent, np.searchsorted(times, cuts[:-1]), axis=1)
    for which, cut in np.argwhere(sums).tolist():
        yield Piece(cut, pool, int(tenants[which]), state, int(sums[which, cut]))


class _Levels:
    """GPUs in use from each instant to the next, by what uses them."""

    def __init__(self, rows: Rows, times: Ints, tenants: Ints) -> None:
        self.rows = rows
        self.tenants = tenants
        self.steps = len(times)
        self.first = np.searchsorted(times, rows.start)
        self.last = np.searchsorted(times, rows.end)

    def total(self, code: int) -> Ints:
        """Return the level of a code, (instants,)."""
        return self._level(self.rows.code == code)

    def out_and_used(self) -> Ints:
        """Return what members and holds use on nodes that are not up, (instants,)."""
        return self._level(self.rows.out & np.isin(self.rows.code, (MEMBER, HOLD)))

    def by_tenant(self, code: int) -> Ints:
        """Return the level of a code, (tenants, instants); rows of other tenants are left out."""
        known = (self.rows.code == code) & np.isin(self.rows.tenant, self.tenants)
        level = np.zeros((len(self.tenants), self.steps), dtype=np.int64)
        if known.any():
            row = np.searchsorted(self.tenants, self.rows.tenant[known])
            np.add.at(level, (row, self.first[known]), self.rows.gpus[known])
            np.subtract.at(level, (row, self.last[known]), self.rows.gpus[known])
        return np.cumsum(level, axis=1)[:, :-1]

    def _level(self, which: npt.NDArray[np.bool_]) -> Ints:
        level = np.zeros(self.steps, dtype=np.int64)
        np.add.at(level, self.first[which], self.rows.gpus[which])
        np.subtract.at(level, self.last[which], self.rows.gpus[which])
        return np.cumsum(level)[:-1]
