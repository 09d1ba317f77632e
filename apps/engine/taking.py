"""Evictions in one pool's walk: who is asked to leave, for whom, and from when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from apps.engine.asking import Asking
from apps.engine.candidates import Taker
from apps.engine.draft import Asked, Considered
from apps.engine.eviction import Found, Proof, Search
from apps.engine.keeping import BLOCKED, DEFERRED, LEAVING, ROOM, Means
from apps.engine.placement import Room, Spots, place
from apps.engine.preemption import OWN_TENANT
from apps.engine.promised import Row, last_members
from apps.engine.types import LISTED, MODES, NONE, Bools, Ints, Mode, Passed, Reason

if TYPE_CHECKING:
    from apps.engine.starting import Starting


ROUNDS = 20
"""How often all who are blocked are tried again within one decision: a guard, not a limit met."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """Who is demoted by this decision for one gang."""

    new: list[int]  # candidates
    found: Found


class Taking(Asking):
    """The evictions of one walk."""

    def __init__(self, walk: Starting, means: Means) -> None:
        super().__init__(walk, means)
        running = walk.ground.running
        self.claims: dict[int, int] = {}  # candidate → for whom it is demoted
        last = last_members(running)
        for c in np.flatnonzero(self.candidates.demoted >= 0).tolist():
            self._lower(c, self.candidates.sizes[c] - int(last[self.candidates.index[c]]))
        for c, index in enumerate(self.candidates.index.tolist()):
            whose = self.at.get(int(running.leaving_for[index]), NONE)
            if self.candidates.demoted[c] >= 0 and whose != NONE:
                self.claims[c] = whose
        self.active = means.name != "none" and len(self.candidates.index) > 0
        self.entitled = not means.rule.by_share
        self.lowered: dict[int, Lowered] = {}
        self.tried, self.rounds = NONE, 0
        self.failed: dict[tuple[int, ...], int] = {}
        self.put_off: dict[tuple[int, ...], int] = {}  # the largest that waits for the next

    @property
    def may(self) -> bool:
        """Tell whether anybody could be evicted, or is leaving."""
        return self.active or bool(self.promised.rows)

    def evict(self, k: int) -> bool:
        """Promise a gang a place that somebody leaves, now or by this decision; True if it can."""
        if not self.may:
            return False
        before = self._raise(k)
        done = self._evict(k)
        after = self.lowered.get(k)
        self.turns += before != (after.new if after is not None else [])
        return done

    def _evict(self, k: int) -> bool:
        walk, size = self.walk, self.walk.size[k]
        self.deferred.pop(k, None)
        if walk.policy.backfill == "none" and walk.is_behind(k):
            return False
        if self.promised.rows and self._next(k):
            return True
        mine = {c for c, whose in self.claims.items() if whose == k} if self.claims else set()
        taker = self._taker(k)
        kind = (taker.row, taker.class_priority, walk.gpus[k], walk.topology[k])
        if self.active and (mine or size < self.failed.get(kind, size + 1)):
            if not mine and size <= self.put_off.get(kind, 0):
                self.deferred[k] = NONE
                return False
            if self._search(k, taker, mine):
                if self.spent and not mine and self.deferred.get(k) == NONE:
                    self.put_off[kind] = size
                return k in self.places
            if not mine:
                self.failed[kind] = size
        self.unclaim(k)
        return False

    @property
    def spent(self) -> bool:
        """Tell whether nobody more may be asked by this decision: a set only says that it may."""
        return self.means.allowance.left == 0 and self.walk.policy.mode != "demote"

    def _taker(self, k: int) -> Taker:
        walk = self.walk
        tenant, job = walk.tenant[k], walk.job[k]
        return Taker(
            tenant=tenant,
            row=int(self.holdings.row_of[tenant]),
            class_priority=int(walk.pending.class_priority[job]),
            need=walk.size[k] * walk.gpus[k],
        )

    def unclaim(self, k: int, taken: Collection[int] = ()) -> None:
        """Let others have who was demoted for a gang that takes none, or these, of them."""
        if not taken:
            self._raise(k)
        mine = [c for c, whose in self.claims.items() if whose == k and c not in taken]
        for c in mine:
            del self.claims[c]
        self.turns += bool(mine)

    def _next(self, k: int) -> bool:
        """Promise what others leave over, if that is enough."""
        if not self.could_be_next(k):
            return False
        proof = Proof(self.ask(k), self.candidates, self.holdings)
        if not proof.fits():
            self.not_next(k, proof)
            return False
        spots = self._place(k, proof.usable())
        if spots is None:
            return False
        self._promise(k, spots, proof.late_room(), set())
        return True

    def _search(self, k: int, taker: Taker, mine: set[int]) -> bool:
        """Look for victims, stage by stage; False: none would do, now or later."""
        candidates = self.candidates
        if not self.entitled:
            self.entitled = True
            self.holdings.entitle(*self.means.shares(*self.means.guess()))
        stages = self.means.rule.stages(taker, candidates, self.holdings)
        helps = self.helps(k) if stages else None
        if helps is None:
            return False
        ask, code = self.ask(k), candidates.code
        plain = not (ask.over or ask.over_then or ask.guarded or ask.guarded_then)
        if self.claims:
            code = code.copy()
            code[[c for c, whose in self.claims.items() if whose != k]] = Passed.LEAVING
        locked = candidates.locked & (code != Passed.LEAVING)
        for later in (False, True) if locked.any() else (False,):
            for stage in stages:
                open_ = code == Passed.CHOSEN
                passed = np.where(open_ | locked if later else open_, stage.passed, code)
                if plain:
                    passed[(passed == Passed.CHOSEN) & ~helps.candidates] = Passed.NO_HELP
                order = np.flatnonzero(passed == Passed.CHOSEN)
                if not len(order):
                    continue
                search = Search(
                    ask, candidates, self.holdings, stage, passed,
                    self._in_turn(order, mine, later), helps.nodes if plain else None,
                )  # fmt: skip
                if self.spent and not mine and not later:
                    if search.exists():
                        self.deferred[k] = NONE
                        return True
                    continue
                found = search.run()
                if found is not None and found.victims:
                    return self._decide(k, found, later=later)
        return False

    def _in_turn(self, order: Ints, mine: set[int], later: bool) -> Ints:
        """Put who is demoted for the taker first; who may not go yet last, the soonest first."""
        if not mine and not later:
            return order
        keys = [order, ~np.isin(order, list(mine))]
        if later:
            keys.insert(1, self.candidates.unlocks[order])
        return order[np.lexsort(tuple(keys))]

    def _decide(self, k: int, found: Found, *, later: bool) -> bool:
        """Ask a proven set to leave, or say from when it may be asked."""
        victims, candidates = found.victims, self.candidates
        self.unclaim(k, victims)
        if later:
            self.deferred[k] = max(int(candidates.unlocks[c]) for c in victims)
            return True
        whole = [c for c in victims if victims[c] == candidates.sizes[c]]
        if self.walk.policy.mode == "demote" and not all(self._due(c) for c in whole):
            self._demote(k, found, whole)
            return True
        if not self._may_ask(len(victims)):
            self.deferred[k] = NONE
            return True
        spots = self._place(k, found.proof.usable())
        if spots is None:
            return False
        self._count_asked(len(victims))
        self._consider(k, found)
        mode = MODES[self.walk.policy.mode]
        self._go(k, victims, Mode.CHECKPOINT if mode == Mode.DEMOTE else mode)
        self._promise(
            k, spots, found.proof.late_room(), {int(candidates.index[c]) for c in victims}
        )
        return True

    def _may_ask(self, many: int) -> bool:
        """Tell whether so many more may be asked by this decision."""
        left = self.means.allowance.left
        return left is None or many <= left

    def _count_asked(self, many: int) -> None:
        """Take so many from what may be asked by this decision; below 0 they are given back."""
        if self.means.allowance.left is not None:
            self.means.allowance.left -= many

    def _due(self, c: int) -> bool:
        """Tell whether a demoted job is still in the way after the grace."""
        since = int(self.candidates.demoted[c])
        return since >= 0 and self.walk.now >= since + max(self.walk.policy.grace, 1)

    def _demote(self, k: int, found: Found, whole: list[int]) -> None:
        """Lower who is not lowered yet, all or none, and wait for the grace."""
        candidates, now, grace = self.candidates, self.walk.now, self.walk.policy.grace
        new = [c for c in whole if candidates.demoted[c] < 0]
        if not self._may_ask(len(new)):
            self.deferred[k] = NONE
            return
        self._count_asked(len(new))
        if new:
            self.lowered[k] = Lowered(new, found)
        for c in new:
            candidates.demoted[c] = now
            self._lower(c, candidates.sizes[c])
        self.claims |= dict.fromkeys(whole, k)
        self.deferred[k] = max(int(candidates.demoted[c]) + grace for c in whole)

    def _lower(self, c: int, members: int) -> None:
        """Count so many members of a candidate more as demoted; below 0: as so no more."""
        self.holdings.lower(self.candidates.tenants[c], members * self.candidates.units[c])

    def _raise(self, k: int) -> list[int]:
        """Take demotions of this decision back: what is to be done for the gang is asked again."""
        lowered = self.lowered.pop(k, None)
        if lowered is None:
            return []
        for c in lowered.new:
            self.candidates.demoted[c] = NONE
            self._lower(c, -self.candidates.sizes[c])
            self.claims.pop(c, None)
        self._count_asked(-len(lowered.new))
        return lowered.new

    def write(self) -> None:
        """Write down what was decided; demotions last, as they may be taken back until now."""
        until = self.walk.now + self.walk.policy.grace
        for k, lowered in sorted(self.lowered.items()):
            for c in lowered.new:
                self._ask_one(k, c, self.candidates.sizes[c], Mode.DEMOTE, until)
            self._consider(k, lowered.found)
        super().write()

    def _go(self, k: int, victims: dict[int, int], mode: Mode) -> None:
        """Ask each victim to leave; from here on its room is promised."""
        walk, candidates = self.walk, self.candidates
        until = walk.now + (0 if mode == Mode.KILL else walk.policy.grace)
        for c in sorted(victims):
            members, size = victims[c], candidates.sizes[c]
            self._ask_one(k, c, members, mode if members == size else Mode.SHRINK, until)
            self.claims.pop(c, None)
            candidates.leaves(c)
            victim, tenant = int(candidates.index[c]), candidates.tenants[c]
            self.promised.leave(victim, candidates.freed(c, size - members, size), until)
            walk.out.gone[victim] = members
            gpus = members * candidates.units[c]
            self.give_up(tenant, gpus)
            if candidates.demoted[c] >= 0:
                self._lower(c, -members)
            if walk.behind is not None and not NONE < candidates.ends[c] <= walk.behind.kept.at:
                walk.leaves_quota(tenant, gpus)

    def _ask_one(self, k: int, c: int, members: int, mode: Mode, until: int) -> None:
        candidates = self.candidates
        own = candidates.tenants[c] == self.walk.tenant[k]
        self.walk.out.asked.append(
            Asked(
                job=self.walk.job[k],
                victim=int(candidates.index[c]),
                mode=int(mode),
                members=members,
                gpus=members * candidates.units[c],
                until=until,
                lost=int(candidates.lost[c]) // candidates.sizes[c] * members,
                rule=OWN_TENANT if own else self.means.name,
            )
        )

    def _consider(self, k: int, found: Found) -> None:
        """Note who was looked at and why the others were passed over."""
        reached = max(found.reached, max(found.victims, default=-1) + 1)
        first = range(min(reached, LISTED))
        listed = [*first, *sorted(c for c in found.victims if c >= len(first))]
        self.walk.out.considered[self.walk.job[k]] = Considered(
            victim=self.candidates.index[listed].tolist(),
            passed=found.passed[listed].tolist(),
            counts=np.bincount(found.passed[:reached], minlength=len(Passed)),
        )

    def _place(self, k: int, room: list[int]) -> Spots | None:
        """Place the gang for real on what is idle, or will be: before anybody is asked to leave."""
        walk, topology = self.walk, self.walk.topology[k]
        where = Room(room)
        if topology:
            where.divide(topology, *walk.ground.domains(topology))
        return place(where, walk.size[k], walk.gpus[k], topology, walk.how, walk.waste)

    def _promise(self, k: int, spots: Spots, late: list[int], victims: set[int]) -> None:
        """Keep the gang its place; what of it is ``late`` takes nothing from the reservation."""
        walk = self.walk
        self.turns += 1
        if k == walk.first_blocked:
            walk.unreserve()
        self.keep(k, sorted(spots), victims)
        if not walk.is_behind(k):
            return
        taken = {p: max(m * walk.gpus[k] - late[p], 0) for p, m in spots}
        walk.beside(k, taken, self.places[k].idle)

    # --- the end of the walk

    def again(self) -> bool:
        """Try all who are blocked once more, as what they see has changed; True if it matters."""
        walk = self.walk
        reasons = walk.notes.reason
        if not self.may or not any(reason in BLOCKED for reason in reasons):
            return False
        news = self._entitle()
        if (self.tried == walk.changes and not news) or self.rounds >= ROUNDS:
            return False
        self.rounds += 1
        self.tried = walk.changes
        self.failed = {}
        for k, reason in enumerate(reasons):
            if reason in BLOCKED and reasons[k] in BLOCKED:
                self.evict(k)
        return walk.changes != self.tried

    def _entitle(self) -> bool:
        """Look again who is entitled to what, as things stand; True if that is news."""
        if not self.means.rule.by_share or not self.active:
            return False
        self.entitled = True
        walk = self.walk
        lacking = np.zeros(len(walk.pending.id), dtype=np.bool_)
        starting = np.zeros(len(walk.pending.id), dtype=np.bool_)
        reasons = np.array(walk.notes.reason, dtype=np.int64)
        lacking[walk.order] = np.isin(reasons, (*ROOM, LEAVING, DEFERRED))
        starting[walk.order] = reasons == Reason.STARTS
        return self.holdings.entitle(*self.means.shares(lacking, starting))

    def _lower_ends(self, k: int, leaves: Bools) -> list[Row]:
        """List what a gang's demoted jobs free once their grace is over, and mark their members."""
        candidates, walk = self.candidates, self.walk
        rows: list[Row] = []
        for c, whose in self.claims.items():
            if whose != k:
                continue
            victim = int(candidates.index[c])
            members = walk.ground.running.member_offsets[victim : victim + 2]
            leaves[int(members[0]) : int(members[1])] = True
            due = int(candidates.demoted[c]) + walk.policy.grace
            ends = due if candidates.ends[c] < 0 else min(candidates.ends[c], due)
            freed = candidates.freed(c, 0, candidates.sizes[c])
            rows += [(max(ends, walk.now), p, g, candidates.tenants[c]) for p, g in freed]
        return rows
