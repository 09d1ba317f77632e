"""Who could be asked to give way in one pool, in the order in which they would be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apps.engine.types import NONE, Bools, Ints, Passed, Policy, Running

Rows = list[tuple[int, int]]
"""(position of a node, GPUs on it)."""

NO_CLASS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Taker:
    """The job for which somebody may have to give way."""

    tenant: int
    row: int  # of its tenant's own work, in the holdings
    class_priority: int
    need: int


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Whom a rule lets a taker touch: in one go, all of it tried before the next stage.

    ``passed`` has a ``Passed`` for each candidate, CHOSEN: it may be touched, were it the first.
    After each that is touched the rest is looked at again: none of its rows aside the taker's path
    may go below ``bound``, or (``any_above``) must still be above it.
    """

    passed: Ints
    bound: Ints  # by row
    any_above: bool
    refusal: Passed  # the code of who would go below


class Candidates:
    """The running jobs of one pool as columns, in the order of DOMAIN §5.

    Demoted first, then the lowest class, the least lost GPU-time if killed now, the latest started,
    the latest submitted, the larger id.
    """

    def __init__(
        self, running: Running, pool: int, position: Ints, row_of: Ints, policy: Policy, now: int
    ) -> None:
        here = np.flatnonzero(running.pool == pool)
        since = np.maximum(running.last_checkpoint, running.started)
        lost = running.size * running.gpus_per_member * np.maximum(now - since, 0)
        keys = (
            -running.id,
            -running.submitted,
            -running.started,
            lost,
            running.class_priority,
            running.demoted < 0,
        )
        self.index: Ints = here[np.lexsort(tuple(key[here] for key in keys))]
        self.lost = lost[self.index]
        self.tenant = running.tenant[self.index]
        self.row: Ints = row_of[self.tenant]
        self.class_priority = running.class_priority[self.index]
        self.unit = running.gpus_per_member[self.index]  # GPUs of a member
        self.size = running.size[self.index]
        self.gpus: Ints = self.unit * self.size
        self.least: Ints = np.minimum(np.maximum(running.min_size[self.index], 1), self.size)
        self.elastic: Bools = self.least < self.size
        self.ends_by = running.ends_by[self.index]
        self.demoted: Ints = running.demoted[self.index].copy()  # since when, -1: not
        self._code(running, policy, now)
        self._place(running, position)
        self.units: list[int] = self.unit.tolist()
        self.sizes: list[int] = self.size.tolist()
        self.leasts: list[int] = self.least.tolist()
        self.rows: list[int] = self.row.tolist()
        self.tenants: list[int] = self.tenant.tolist()
        self.ends: list[int] = self.ends_by.tolist()

    def _code(self, running: Running, policy: Policy, now: int) -> None:
        """Say who is not touched whatever the rule, and from when they could be."""
        at = self.index
        # Who starts by this very decision is left alone: a plan made again changes nothing.
        rested = running.started[at] + max(policy.min_runtime, 1)
        restarted = running.restarted[at]
        cool = np.where(restarted >= 0, restarted + policy.cooldown, 0)
        code = np.full(len(at), int(Passed.CHOSEN), dtype=np.int64)
        code[cool > now] = Passed.COOLDOWN
        code[rested > now] = Passed.MIN_RUNTIME
        self.unlocks: Ints = np.where(code != Passed.CHOSEN, np.maximum(cool, rested), 0)
        if policy.thrash_after > 0:
            code[running.evictions[at] >= policy.thrash_after] = Passed.THRASH
        code[running.leaving[at] >= 0] = Passed.LEAVING
        code[~running.preemptible[at]] = Passed.NOT_PREEMPTIBLE
        self.code: Ints = code
        self.locked: Bools = (code == Passed.MIN_RUNTIME) | (code == Passed.COOLDOWN)
        self._lowest: dict[int, int] | None = None
        self._movable: Ints | None = None

    def leaves(self, candidate: int) -> None:
        """Leave out who has been asked to leave."""
        self.code[candidate] = Passed.LEAVING
        self.locked[candidate] = False
        self._lowest = self._movable = None

    def lowest(self, tenant: int | None = None) -> int:
        """Return the lowest class of who may be touched, now or later: in all, or of a tenant."""
        if self._lowest is None:
            ok = (self.code == Passed.CHOSEN) | self.locked
            some = np.full(int(self.tenant.max(initial=0)) + 1, NO_CLASS)
            np.minimum.at(some, self.tenant[ok], self.class_priority[ok])
            self._lowest = {NONE: int(some.min()), **dict(enumerate(some.tolist()))}
        return self._lowest.get(NONE if tenant is None else tenant, NO_CLASS)

    def _place(self, running: Running, position: Ints) -> None:
        """Note where each member is, by position, -1: on no usable node."""
        many = np.diff(running.member_offsets)[self.index]
        starts = running.member_offsets[:-1][self.index]
        offsets = np.concatenate([[0], np.cumsum(many)]).astype(np.int64)
        flat = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1] - starts, many)
        self.owner: Ints = np.repeat(np.arange(len(many)), many)
        where = position[running.member_node[flat]] if len(flat) else flat
        self.where: Ints = where
        self._offsets: list[int] = offsets.tolist()
        self._where: list[int] = where.tolist()

    def freed(self, candidate: int, first: int, end: int) -> Rows:
        """List what the members of ranks ``first`` to ``end`` free."""
        gpus = self.units[candidate]
        return [(p, gpus) for p in self.places(candidate)[first:end] if p >= 0]

    def places(self, candidate: int) -> list[int]:
        """List where its members are, by rank."""
        return self._where[self._offsets[candidate] : self._offsets[candidate + 1]]

    def movable(self, nodes: int) -> Ints:
        """Sum the GPUs of all that could be touched now or later, by position."""
        if self._movable is None:
            ok = ((self.code == Passed.CHOSEN) | self.locked)[self.owner] & (self.where >= 0)
            self._movable = np.bincount(
                self.where[ok], weights=self.unit[self.owner[ok]], minlength=nodes
            ).astype(np.int64)
        return self._movable

    def helpful(self, useful: Bools) -> Bools:
        """Tell who has a member on one of these positions."""
        if not len(self.where):
            return np.zeros(len(self.index), dtype=np.bool_)
        hit = (self.where >= 0) & useful[self.where]
        return np.bincount(self.owner[hit], minlength=len(self.index)) > 0
