"""The smallest set of victims that lets a gang start whole: proven before anyone is asked.

Candidates are added in order until the gang fits, then given back from the last on (DOMAIN §5).
Elastic gangs lose members before anybody goes whole. A gang fits exactly where the members that its
nodes take are as many as it has, so the proof is a count that follows each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from apps.engine.candidates import Candidates, Rows, Stage
from apps.engine.holdings import Holdings
from apps.engine.lending import Kept
from apps.engine.types import Bools, Ints, Passed


@dataclass(slots=True)
class Guarded:
    """Idle guarantees that are not lent: GPUs there are, of which some are kept from a tenant."""

    kept: Kept
    tenant: int
    gpus: int
    need: int

    def freed(self, tenant: int, gpus: int) -> None:
        """Follow what a victim of a tenant frees, or takes back (below 0)."""
        self.kept.count(tenant, -gpus)
        self.gpus += gpus

    def copy(self) -> Guarded:
        """Copy, for a proof to move."""
        return Guarded(self.kept.copy(), self.tenant, self.gpus, self.need)

    def holds(self) -> bool:
        """Tell whether what is left is enough."""
        return self.gpus - self.kept.withheld(self.tenant) >= self.need


@dataclass(frozen=True, slots=True)
class Ask:
    """What a gang needs, and what there is for it without a victim."""

    size: int
    gpus: int  # per member
    row: int  # of its tenant's own work, in the holdings
    tenant: int
    room: list[int]  # idle or coming, by position; below 0 where work that is not ours overlaps
    spare: list[int] | None  # what an earlier reservation does not need at its instant
    cap: list[int] | None  # likewise, with what leaves later than that
    at: int  # that reservation's instant, -1: none
    domain_of: Sequence[int] | None  # where all members must be together
    over: dict[int, int]  # GPUs to go below ceilings, by tenant
    over_then: dict[int, int]  # likewise at the reservation's instant
    guarded: tuple[Guarded, ...] = ()
    guarded_then: tuple[Guarded, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """What is given up in one go: the last member of an elastic gang, or all of a job."""

    candidate: int
    members: int
    gpus: int
    rows: Rows
    whole: bool


class Proof:
    """Whether a gang fits on what there is and what the units added so far free."""

    def __init__(self, ask: Ask, candidates: Candidates, holdings: Holdings) -> None:
        self.ask, self.candidates, self.holdings = ask, candidates, holdings
        self.room = list(ask.room)
        self.cap = None if ask.cap is None else list(ask.cap)
        self.over, self.over_then = dict(ask.over), dict(ask.over_then)
        self.guarded = [g.copy() for g in ask.guarded]
        self.guarded_then = [g.copy() for g in ask.guarded_then]
        self.plain = not (self.over or self.over_then or self.guarded or self.guarded_then)
        self.slots: dict[int, int] = {}
        self.good = 0
        for position in range(len(self.room)):
            self._count(position, self._slots(position))

    def _slots(self, position: int) -> int:
        free = self.room[position]
        if self.cap is not None:
            free = min(free, self.cap[position])
        return free // self.ask.gpus if free > 0 else 0

    def _count(self, position: int, slots: int) -> None:
        if not slots:
            return
        of = self.ask.domain_of
        domain = 0 if of is None else of[position]
        before = self.slots.get(domain, 0)
        self.slots[domain] = before + slots
        self.good += (before + slots >= self.ask.size) - (before >= self.ask.size)

    def late(self, candidate: int) -> bool:
        """Tell whether a victim would still run at the reservation's instant."""
        ends = self.candidates.ends[candidate]
        return ends < 0 or ends > self.ask.at

    def move(self, unit: Unit, sign: int) -> None:
        """Add what a unit frees (1), or take it back (-1)."""
        late = self.late(unit.candidate)
        for position, gpus in unit.rows:
            before = self._slots(position)
            self.room[position] += sign * gpus
            if self.cap is not None and late:
                self.cap[position] += sign * gpus
            self._count(position, self._slots(position) - before)
        if not self.plain:
            self._move_limits(unit, sign, late)

    def _move_limits(self, unit: Unit, sign: int, late: bool) -> None:
        tenant = self.candidates.tenants[unit.candidate]
        if self.over or self.over_then:
            for above in self.holdings.path(tenant):
                if above in self.over:
                    self.over[above] -= sign * unit.gpus
                if late and above in self.over_then:
                    self.over_then[above] -= sign * unit.gpus
        freed = sign * sum(gpus for _, gpus in unit.rows)
        for guarded in (*self.guarded, *(self.guarded_then if late else ())):
            guarded.freed(tenant, freed)

    def usable(self) -> list[int]:
        """Return what the gang may use of each node."""
        cap = self.cap if self.cap is not None else self.room
        return [max(min(r, c), 0) for r, c in zip(self.room, cap, strict=True)]

    def late_room(self) -> list[int]:
        """Return what of that is not there yet, but for the victims, at the reservation's instant."""
        if self.cap is None or self.ask.spare is None:
            return [0] * len(self.room)
        return [c - s for c, s in zip(self.cap, self.ask.spare, strict=True)]

    def fits(self) -> bool:
        """Tell whether the whole gang has a place, under its ceilings and beside what is kept."""
        return self.good > 0 and (
            self.plain
            or (
                all(over <= 0 for over in self.over.values())
                and all(over <= 0 for over in self.over_then.values())
                and all(guarded.holds() for guarded in (*self.guarded, *self.guarded_then))
            )
        )


@dataclass(slots=True)
class Found:
    """A proven set: who gives up how many members, and where the gang then has room."""

    victims: dict[int, int]  # by candidate
    room: list[int]
    late: list[int]  # what of it would still run at an earlier reservation's instant
    passed: Ints  # by candidate, a Passed
    reached: int  # candidates looked at, in order


@dataclass(slots=True)
class Search:
    """One search for victims; ``run`` returns them, or None if the gang cannot start by any."""

    ask: Ask
    candidates: Candidates
    holdings: Holdings
    stage: Stage
    passed: Ints  # by candidate: what is said of it before anybody is touched
    order: Ints  # of the candidates that may be touched
    useful: Bools | None  # positions that can help; None: all candidates can
    used: list[int] = field(init=False)
    bound: list[int] = field(init=False)
    aside: dict[int, tuple[int, ...]] = field(init=False)
    taken: list[Unit] = field(init=False)
    shrunk: dict[int, int] = field(init=False)
    reached: int = field(init=False)

    def run(self) -> Found | None:
        """Add in order until it fits, then give back from the last on."""
        self.used, self.bound = self.holdings.used.tolist(), self.stage.bound.tolist()
        self.aside, self.taken, self.shrunk, self.reached = {}, [], {}, 0
        self.passed = self.passed.copy()
        proof = Proof(self.ask, self.candidates, self.holdings)
        if not proof.fits() and not self._add(proof):
            return None
        victims = give_back(proof, self.taken)
        chosen = self.passed == Passed.CHOSEN
        self.passed[chosen] = Passed.GIVEN_BACK
        self.passed[list(victims)] = Passed.CHOSEN
        return Found(victims, proof.usable(), proof.late_room(), self.passed, self.reached)

    def _add(self, proof: Proof) -> bool:
        order = self.order.tolist()
        for units in (self._members(order), self._whole(order)):
            for unit in units:
                proof.move(unit, 1)
                self.taken.append(unit)
                if proof.fits():
                    return True
        return False

    def _members(self, order: list[int]) -> Iterable[Unit]:
        """Give the members that elastic gangs can lose, gang by gang, the last member first."""
        candidates = self.candidates
        for c in order:
            if candidates.leasts[c] == candidates.sizes[c]:
                continue
            unit = candidates.units[c]
            for rank in range(candidates.sizes[c] - 1, self._lowest(c) - 1, -1):
                if not self._touch(c, unit):
                    break
                self.reached = max(self.reached, c + 1)
                self.shrunk[c] = self.shrunk.get(c, 0) + 1
                yield Unit(c, 1, unit, candidates.freed(c, rank, rank + 1), whole=False)

    def _lowest(self, c: int) -> int:
        """Return the lowest rank of an elastic gang whose leaving can help."""
        least, size = self.candidates.leasts[c], self.candidates.sizes[c]
        if self.useful is None:
            return least
        places = self.candidates.places(c)
        helps = [r for r in range(least, size) if places[r] >= 0 and self.useful[places[r]]]
        return min(helps, default=size)

    def _whole(self, order: list[int]) -> Iterable[Unit]:
        """Give whole jobs: what has not shrunk of them."""
        candidates = self.candidates
        for c in order:
            self.reached = max(self.reached, c + 1)
            left = candidates.sizes[c] - self.shrunk.get(c, 0)
            gpus = left * candidates.units[c]
            if self._touch(c, gpus):
                yield Unit(c, left, gpus, candidates.freed(c, 0, left), whole=True)
            else:
                self.passed[c] = self.stage.refusal

    def _touch(self, c: int, gpus: int) -> bool:
        """Take so much from a candidate's tenant, if all of it that stands aside can bear it."""
        row = self.candidates.rows[c]
        aside = self.aside.get(row)
        if aside is None:
            mine = set(self.holdings.path(self.ask.row))
            aside = tuple(r for r in self.holdings.path(row) if r not in mine)
            self.aside[row] = aside
        used, bound = self.used, self.bound
        if self.stage.any_above:
            if any(used[r] <= bound[r] for r in aside):
                return False
        elif any(used[r] - gpus < bound[r] for r in aside):
            return False
        for r in aside:
            used[r] -= gpus
        return True


def give_back(proof: Proof, taken: Sequence[Unit]) -> dict[int, int]:
    """Spare whom the gang can do without, the last first; return how many members each loses."""
    victims: dict[int, int] = {}
    gone: set[int] = set()
    for unit in reversed(taken):
        if unit.candidate not in gone:
            proof.move(unit, -1)
            if proof.fits():
                continue
            proof.move(unit, 1)
        # Who goes whole takes all along; of a gang that shrinks the last members go first.
        gone.add(unit.candidate)
        victims[unit.candidate] = victims.get(unit.candidate, 0) + unit.members
    return victims


def useful(ask: Ask, movable: Ints) -> Bools | None:
    """Tell which positions could take a member if all who may be touched went; None: too few."""
    room = np.maximum(np.array(ask.room, dtype=np.int64) + movable, 0)
    slots = room // ask.gpus
    if ask.domain_of is None:
        return slots > 0 if int(slots.sum()) >= ask.size else None
    domains = np.array(ask.domain_of, dtype=np.int64)
    enough = np.bincount(domains, weights=slots) >= ask.size
    return (slots > 0) & enough[domains] if enough.any() else None
