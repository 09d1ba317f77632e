"""Promises in one pool's walk: who has a place that others are leaving, and what cannot be evicted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from apps.engine.holdings import Holdings
from apps.engine.placement import Room, Spots, place
from apps.engine.preemption import Rule
from apps.engine.promised import Place, Promised, Row, last_members, leaving_rows
from apps.engine.types import NONE, Bools, Ints, Reason

if TYPE_CHECKING:
    from apps.engine.starting import Starting

ROOM = (int(Reason.CAPACITY), int(Reason.PLACEMENT), int(Reason.RESERVED))
BLOCKED = (*ROOM, int(Reason.CEILING))
LEAVING, DEFERRED = int(Reason.LEAVING), int(Reason.DEFERRED)

Shares = Callable[[Bools, Bools], tuple[Ints, Ints]]
"""Which pending jobs lack only room and which start → what tenants, and their own work, may keep."""


@dataclass(slots=True)
class Allowance:
    """How many may still be asked by this decision, over all pools; None: no limit."""

    left: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """What a pool's evictions are made with."""

    rule: Rule
    name: str
    holdings: Holdings
    shares: Shares
    guess: Callable[[], tuple[Bools, Bools]]  # who lacks room and who starts without evictions
    allowance: Allowance


class Keeping:
    """What one walk promises, and has promised before."""

    def __init__(self, walk: Starting, means: Means) -> None:
        self.walk, self.means, self.holdings = walk, means, means.holdings
        ground, running = walk.ground, walk.ground.running
        rows, self.leaves = leaving_rows(running, ground, ground.pool)
        self.promised = Promised([-debt for debt in ground.debt])
        last = last_members(running)
        for victim, freed in rows.items():
            self.promised.leave(victim, freed, int(running.leaving[victim]))
            self.give_up(
                int(running.tenant[victim]),
                int(last[victim] * running.gpus_per_member[victim]),
            )
        self.places = self.promised.places
        self.at = {int(walk.pending.id[job]): k for k, job in enumerate(walk.job)}
        self.for_whom: dict[int, int] = {
            v: self.at.get(int(running.leaving_for[v]), NONE) for v in rows
        }
        self._kept = 0  # GPUs that are idle and kept
        self._whole_at = NONE
        self._whole: Ints = np.zeros(0, dtype=np.int64)
        self._first = NONE
        self._most: dict[tuple[int, int], int] = {}
        self.deferred: dict[int, int] = {}  # until, -1: it is not said
        self.turns = 0  # what changed beside starts
        self.fixed = self._fixed()

    def give_up(self, tenant: int, gpus: int) -> None:
        """Count what a victim will not use any more."""
        self.walk.limits.follow(tenant, then=-gpus)
        self.holdings.move(tenant, -gpus)
        if self.walk.kept is not None:
            self.walk.kept.moved(tenant)

    def unclaim(self, k: int, taken: Collection[int] = ()) -> None:
        """Let others have who was demoted for a gang that takes none, or these, of them."""

    # --- what was promised before

    def stand(self) -> None:
        """Keep for each gang what it was promised, and start who has its place free."""
        walk = self.walk
        standing = [k for k, job in enumerate(walk.job) if walk.pending.promised[job]]
        spots = {k: self._spots(k) for k in standing}
        coming = self._still_coming(standing)
        for mends in (False, True):
            for k in standing:
                where = spots[k]
                if k in self.places or self._over(k, walk.limits.then):
                    continue
                if where is None or not self._has_room(k, where):
                    if mends:
                        self._mend(k)
                elif not mends:
                    split = coming[k] if self._splits(k, where, coming[k]) else None
                    self.keep(k, where, self._victims(k), split)
        for k in standing:
            if k in self.places:
                self._begin(k)

    def _victims(self, k: int) -> set[int]:
        return {v for v, whom in self.for_whom.items() if whom == k}

    def _still_coming(self, standing: list[int]) -> dict[int, dict[int, int]]:
        """Tell what of each promise is still to come, by position.

        What left is of those whose own victims are gone, then of the first in line.
        """
        walk, rows = self.walk, self.promised.rows
        coming: dict[int, dict[int, int]] = {}
        for k in standing:
            held = walk.held(k)
            mine = coming[k] = {p: -members * walk.gpus[k] for p, members in held.items()}
            for _, position in walk.holding(k):
                mine[position] = mine.get(position, 0) + walk.gpus[k]
        there: dict[int, int] = {}
        for mine in coming.values():
            for position, gpus in mine.items():
                there[position] = there.get(position, 0) + gpus
        for position, gpus in there.items():
            left = gpus - max(self.promised.coming[position], 0)
            for own in (True, False):
                for k in standing:
                    takes = coming[k].get(position, 0)
                    if own:
                        takes -= sum(
                            g for v in self._victims(k) for p, g in rows[v] if p == position
                        )
                    takes = max(min(takes, left), 0)
                    if takes:
                        coming[k][position] -= takes
                        left -= takes
        return coming

    def _splits(self, k: int, where: Spots, coming: dict[int, int]) -> bool:
        """Tell whether so much is still to come, and the rest idle."""
        gpus, free = self.walk.gpus[k], self.walk.free
        return all(
            coming[p] <= max(self.promised.coming[p], 0) and m * gpus - coming[p] <= free[p]
            for p, m in where
        )

    def _begin(self, k: int) -> None:
        """Start a promised gang whose place is free; let go of a promise that nobody can keep."""
        walk, mine = self.walk, self.places[k]
        need, tenant = walk.size[k] * walk.gpus[k], walk.tenant[k]
        there = not any(mine.lacks(position) for position in mine.spots)
        may = all(walk.limits.now[t] + need <= c for t, c in walk.chain(tenant))
        if walk.kept is not None and may:
            may = walk.idle.total - walk.counted >= walk.kept.withheld(tenant)
        if there and may and not self._owed(mine):
            self.release(k)
            walk.commit(k, sorted(mine.spots.items()), short=False)
        elif not self._awaited(k):
            self.release(k)

    def _owed(self, mine: Place) -> bool:
        """Tell whether a gang's victims have not all left, though its place may be free.

        They may leave for the sake of a limit or of a guarantee that is not lent, not of their room.
        """
        return bool(mine.victims & self.promised.rows.keys())

    def _spots(self, k: int) -> Spots | None:
        """Return the place that was promised, None if it is not whole."""
        rows = self.walk.holding(k)
        if sorted(rank for rank, _ in rows) != list(range(self.walk.size[k])):
            return None
        spots: dict[int, int] = {}
        for _, position in rows:
            spots[position] = spots.get(position, 0) + 1
        return sorted(spots.items())

    def _over(self, k: int, used: list[int]) -> bool:
        need = self.walk.size[k] * self.walk.gpus[k]
        return any(used[t] + need > c for t, c in self.walk.chain(self.walk.tenant[k]))

    def _has_room(self, k: int, spots: Spots) -> bool:
        gpus = self.walk.gpus[k]
        return all(members * gpus <= self._room(p) for p, members in spots)

    def _room(self, position: int) -> int:
        return self.walk.free[position] + self.promised.coming[position]

    def _mend(self, k: int) -> None:
        """Promise another place for what is lost of a promise, keeping the rest of it."""
        walk = self.walk
        if walk.topology[k]:
            return
        gpus = walk.gpus[k]
        kept: dict[int, int] = {}
        for _, position in walk.holding(k)[: walk.size[k]]:
            if (kept.get(position, 0) + 1) * gpus <= self._room(position):
                kept[position] = kept.get(position, 0) + 1
        room = [max(self._room(p) - kept.get(p, 0) * gpus, 0) for p in range(len(walk.free))]
        left = walk.size[k] - sum(kept.values())
        more = place(Room(room), left, gpus, 0, walk.how, walk.waste) if left else []
        if more is None:
            return
        for position, members in more:
            kept[position] = kept.get(position, 0) + members
        self.keep(k, sorted(kept.items()), self._victims(k))

    def elsewhere(self, k: int) -> bool:
        """Start a promised gang at once if it fits whole on what is idle; True if it does."""
        walk = self.walk
        held = self.places[k].idle
        if walk.behind is not None or (walk.kept is not None and self._owed(self.places[k])):
            return False
        if walk.idle.total + sum(held.values()) < walk.size[k] * walk.gpus[k]:
            return False
        mine = self.release(k)
        failed, walk.failed = walk.failed, {}
        if not self._over(k, walk.limits.used) and walk.start(k):
            return True
        walk.failed = failed
        coming = {position: mine.lacks(position) for position in mine.spots}
        self.keep(k, sorted(mine.spots.items()), mine.victims, coming)
        return False

    # --- keeping and releasing

    def keep(
        self, k: int, spots: Spots, victims: set[int], coming: dict[int, int] | None = None
    ) -> None:
        """Promise a gang its place: what is idle of it is kept, the rest is to come.

        ``coming`` says what is to come of it; else whole members are held first, and of one that is
        not whole yet what comes goes before what is idle.
        """
        walk, gpus = self.walk, self.walk.gpus[k]
        mine = Place(dict(spots), gpus, {}, victims)
        for position, members in spots:
            need = members * gpus
            if coming is not None:
                comes = coming[position]
            else:
                whole = min(self.idle(k, position) // gpus, members) * gpus
                comes = min(max(self.promised.coming[position], 0), need - whole)
            idle = need - comes
            if idle:
                mine.idle[position] = idle
                self._kept += idle
                walk.occupy(position, idle)
            self.promised.coming[position] -= comes
        self.places[k] = mine
        self.deferred.pop(k, None)
        self.unclaim(k)
        self._count(k, 1)
        until = [self.promised.until[v] for v in self.promised.waits_for(mine)]
        walk.notes.say(k, LEAVING)
        walk.notes.until[k] = max(until, default=walk.now)
        walk.draft.forecast[walk.job[k]] = max(walk.notes.until[k], walk.now)
        walk.waits(k)

    def idle(self, k: int, position: int) -> int:
        """Return what of the idle GPUs of a node the gang may use."""
        behind, free = self.walk.behind, self.walk.free[position]
        if behind is None or not self.walk.is_behind(k):
            return free
        return free - behind.kept.held(position, free)

    def release(self, k: int) -> Place:
        """Take a promise back."""
        walk, mine = self.walk, self.places.pop(k)
        for position in mine.spots:
            idle = mine.idle.get(position, 0)
            if idle:
                self._kept -= idle
                walk.occupy(position, -idle)
            self.promised.coming[position] += mine.lacks(position)
        self._count(k, -1)
        walk.draft.forecast[walk.job[k]] = NONE
        return mine

    def _count(self, k: int, sign: int) -> None:
        """Count a promised gang as used then, 1, or no more, -1."""
        walk = self.walk
        tenant, need = walk.tenant[k], sign * walk.size[k] * walk.gpus[k]
        walk.limits.follow(tenant, then=need)
        self._follow(k, tenant, need)

    def started(self, k: int) -> None:
        """Follow a gang that starts now."""
        walk = self.walk
        tenant, need = walk.tenant[k], walk.size[k] * walk.gpus[k]
        walk.limits.follow(tenant, now=need, then=need)
        self._follow(k, tenant, need)
        self.unclaim(k)

    def _follow(self, k: int, tenant: int, need: int) -> None:
        self.holdings.move(tenant, need)
        if self.walk.kept is not None:
            self.walk.kept.moved(tenant)
        if self.fixed is not None and not self.walk.pending.preemptible[self.walk.job[k]]:
            while tenant >= 0:
                self.fixed[tenant] += need
                tenant = self.walk.limits.parents[tenant]

    def kept_idle(self) -> int:
        """Return how many idle GPUs are kept for promised gangs."""
        return self._kept

    def keeps_from(self, k: int) -> int:
        """Find for whom idle GPUs are kept without which a gang would have a place, -1: nobody."""
        walk = self.walk
        if not self._kept:
            return NONE
        if self._whole_at != walk.changes:
            self._whole_at, self._most = walk.changes, {}
            whole = np.array(walk.free, dtype=np.int64)
            for mine in self.places.values():
                for position, idle in mine.idle.items():
                    whole[position] += idle
            self._whole = whole
            self._first = min(k for k, mine in self.places.items() if mine.idle)
        key = (walk.gpus[k], walk.topology[k])
        if key not in self._most:
            slots, of = self._whole // walk.gpus[k], walk.domain_of(k)
            self._most[key] = int(slots.sum() if of is None else np.bincount(of, slots).max())
        if self._most[key] < walk.size[k]:
            return NONE
        return self._first

    # --- work that cannot be preempted

    def _fixed(self) -> list[int] | None:
        """Sum what cannot be evicted by tenant, None: nothing of the kind is asked for."""
        walk, running = self.walk, self.walk.ground.running
        if not self.means.rule.by_share or walk.pending.preemptible[walk.order].all():
            return None
        fixed = [0] * len(walk.limits.parents)
        here = ~running.preemptible & (running.pool == walk.ground.pool)
        for index in np.flatnonzero(here).tolist():
            tenant = int(running.tenant[index])
            while tenant >= 0:
                fixed[tenant] += int(running.size[index] * running.gpus_per_member[index])
                tenant = walk.limits.parents[tenant]
        return fixed

    def beyond_guarantee(self, k: int) -> tuple[int, int]:
        """Find whose guarantee a job that cannot be preempted would pass, and what is left of it.

        The lowest is named, -1: nobody's.
        """
        walk = self.walk
        if self.fixed is None or walk.pending.preemptible[walk.job[k]]:
            return NONE, NONE
        need, tenant = walk.size[k] * walk.gpus[k], walk.tenant[k]
        while tenant >= 0:
            left = walk.limits.guarantee[tenant] - self.fixed[tenant]
            if need > left:
                return tenant, max(left, 0)
            tenant = walk.limits.parents[tenant]
        return NONE, NONE

    def ends(self, k: int) -> list[Row]:
        """List what ends by when, for a gang: what runs on or leaves, and who was promised."""
        walk, leaves = self.walk, self._all_leaves()
        rows = self._lower_ends(k, leaves)
        rows += walk.ground.ends(leaves)
        rows += self.promised.left_over(walk.now)
        for other, mine in self.places.items():
            if walk.limit[other] >= 0:
                ends, tenant = walk.notes.until[other] + walk.limit[other], walk.tenant[other]
                rows += [(ends, p, m * mine.gpus, tenant) for p, m in mine.spots.items()]
        return rows

    def _lower_ends(self, k: int, leaves: Bools) -> list[Row]:
        return []

    def _all_leaves(self) -> Bools:
        """Mark the members that leave, those of this decision too."""
        running = self.walk.ground.running
        leaves = self.leaves.copy()
        for victim, members in self.walk.out.gone.items():
            end = int(running.member_offsets[victim + 1])
            leaves[end - members : end] = True
        return leaves

    def write(self) -> None:
        """Write down what is promised, who waits for whom, who is deferred and who may stay."""
        walk, out = self.walk, self.walk.out
        needed: set[int] = set()
        for k, mine in self.places.items():
            waits = self._awaited(k)
            needed |= waits
            job = walk.job[k]
            out.leaving[job] = sorted(waits)
            held, promised = walk.rank_rows(k, mine)
            if held:
                out.holds[job] = held
            out.promises[job] = promised
        for k, until in self.deferred.items():
            if walk.notes.reason[k] in BLOCKED:
                walk.notes.say(k, DEFERRED)
                walk.notes.until[k] = until
        running = walk.ground.running
        asked = {v for v in self.for_whom if running.leaving_for[v] != NONE}
        out.stays = asked - needed

    def _awaited(self, k: int) -> set[int]:
        """Return whom a promised gang waits for: their room, its ceiling, or others' guarantees."""
        walk, rows = self.walk, self.promised.rows
        waits = self.promised.waits_for(self.places[k])
        if waits:
            return waits
        need = walk.size[k] * walk.gpus[k]
        full = {t for t, c in walk.chain(walk.tenant[k]) if walk.limits.now[t] + need > c}
        tenant = walk.ground.running.tenant
        under = {v for v in rows if full & set(self.holdings.path(int(tenant[v])))}
        return under or (set(rows) if walk.kept is not None else set())
