"""The smallest set of victims that lets a gang start whole: proven before anyone is asked.

Candidates are added in order until the gang fits, then given back from the last on (DOMAIN §5).
Elastic gangs lose members before anybody goes whole. A gang fits exactly where the members that its
nodes take are as many as it has, so the proof is a count that follows each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

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


class View:
    """What there is without a victim, by position."""

    def __init__(self, room: Ints, spare: Ints | None, cap: Ints | None, at: int) -> None:
        self.room = room  # idle or coming; below 0 where work that is not ours overlaps
        self.spare = spare  # what an earlier reservation does not need at its instant
        self.cap = cap  # likewise, with what leaves later than that
        self.at = at  # that reservation's instant, -1: none
        usable = room if cap is None else np.minimum(room, cap)
        self.usable: Ints = np.maximum(usable, 0)
        self.total = int(self.usable.sum())
        self._slots: dict[tuple[int, int], list[int]] = {}

    def slots(self, gpus: int, domain_of: Sequence[int] | None) -> list[int]:
        """Return how many members of so many GPUs fit, by domain; a copy."""
        key = (gpus, 0 if domain_of is None else id(domain_of))
        if key not in self._slots:
            slots = self.usable // gpus
            if domain_of is not None:
                slots = np.bincount(domain_of, weights=slots).astype(np.int64)
            self._slots[key] = [int(slots.sum())] if domain_of is None else slots.tolist()
        return list(self._slots[key])


@dataclass(frozen=True, slots=True)
class Ask:
    """What a gang needs, and what there is for it without a victim."""

    size: int
    gpus: int  # per member
    row: int  # of its tenant's own work, in the holdings
    view: View
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
        view = ask.view
        self.room: list[int] = view.room.tolist()
        self.cap: list[int] | None = None if view.cap is None else view.cap.tolist()
        self.over, self.over_then = dict(ask.over), dict(ask.over_then)
        self.guarded = [g.copy() for g in ask.guarded]
        self.guarded_then = [g.copy() for g in ask.guarded_then]
        self.plain = not (self.over or self.over_then or self.guarded or self.guarded_then)
        self.slots = view.slots(ask.gpus, ask.domain_of)
        self.good = sum(many >= ask.size for many in self.slots)

    def slots_at(self, position: int) -> int:
        """Return how many members a node takes."""
        free = self.room[position]
        if self.cap is not None:
            free = min(free, self.cap[position])
        return free // self.ask.gpus if free > 0 else 0

    def _count(self, position: int, slots: int) -> None:
        of = self.ask.domain_of
        domain = 0 if of is None else of[position]
        before = self.slots[domain]
        self.slots[domain] = before + slots
        self.good += (before + slots >= self.ask.size) - (before >= self.ask.size)

    def late(self, candidate: int) -> bool:
        """Tell whether a victim would still run at the reservation's instant."""
        ends = self.candidates.ends[candidate]
        return ends < 0 or ends > self.ask.view.at

    def move(self, unit: Unit, sign: int) -> None:
        """Add what a unit frees (1), or take it back (-1)."""
        late = self.late(unit.candidate)
        for position, gpus in unit.rows:
            before = self.slots_at(position)
            self.room[position] += sign * gpus
            if self.cap is not None and late:
                self.cap[position] += sign * gpus
            slots = self.slots_at(position)
            if slots != before:
                self._count(position, slots - before)
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
        room = np.array(self.room, dtype=np.int64)
        if self.cap is not None:
            room = np.minimum(room, np.array(self.cap, dtype=np.int64))
        usable: list[int] = np.maximum(room, 0).tolist()
        return usable

    def late_room(self) -> list[int]:
        """Return what of that is not there yet, but for the victims, at the reservation's instant."""
        spare = self.ask.view.spare
        if self.cap is None or spare is None:
            return [0] * len(self.room)
        return [c - s for c, s in zip(self.cap, spare.tolist(), strict=True)]

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
    proof: Proof  # with all victims gone
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
    refused: bool = field(init=False)

    def run(self) -> Found | None:
        """Add in order until it fits, then give back from the last on."""
        proof = self._prove()
        if proof is None:
            return None
        victims = give_back(proof, self.taken)
        chosen = self.passed == Passed.CHOSEN
        self.passed[chosen] = Passed.GIVEN_BACK
        self.passed[list(victims)] = Passed.CHOSEN
        return Found(victims, proof, self.passed, self.reached)

    def exists(self) -> bool:
        """Tell whether adding in order finds a set, whichever, that needs anybody."""
        return self._prove(by_node=False) is not None and bool(self.taken)

    def _prove(self, *, by_node: bool = True) -> Proof | None:
        """Add in order until it fits."""
        self.used, self.bound = self.holdings.firm.tolist(), self.stage.bound.tolist()
        self.aside, self.taken, self.shrunk, self.reached = {}, [], {}, 0
        self.passed, self.refused = self.passed.copy(), False
        proof = Proof(self.ask, self.candidates, self.holdings)
        if proof.fits() or self._add(proof):
            return proof
        return self._by_node() if self.refused and by_node else None

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
                self.passed[c], self.refused = self.stage.refusal, True

    def _by_node(self) -> Proof | None:
        """Spend what tenants can bear where it makes room: node by node, not in order alone.

        Only where adding in order failed because tenants had nothing left to give. Who may be
        touched freely is added first; then the node is freed next whose victims come first in order.
        """
        of, free = self.ask.domain_of, []
        at: dict[int, dict[int, list[int]]] = {}
        for c in self.order.tolist():
            if not self._aside(c):
                free.append(c)
                continue
            for position in set(self.candidates.places(c)):
                if position >= 0 and (self.useful is None or self.useful[position]):
                    domain = 0 if of is None else of[position]
                    at.setdefault(domain, {}).setdefault(position, []).append(c)
        for domain in sorted(at):
            self.used, self.taken, self.shrunk = self.holdings.firm.tolist(), [], {}
            proof = Proof(self.ask, self.candidates, self.holdings)
            for c in free:
                self._take(proof, c)
            if self._free_nodes(proof, at[domain]):
                self.taken.sort(key=lambda unit: unit.candidate)
                self.reached = len(self.passed)
                return proof
        return None

    def _free_nodes(self, proof: Proof, at: dict[int, list[int]]) -> bool:
        """Free a member's room at a time, on the node whose victims come first."""
        gone = {unit.candidate for unit in self.taken}
        heap = [(0, position) for position in at]
        while heap and not proof.fits():
            cost, position = heappop(heap)
            bundle = self._bundle(proof, [c for c in at[position] if c not in gone], position)
            if bundle is None:
                continue
            if bundle[-1] > cost:
                heappush(heap, (bundle[-1], position))
                continue
            poor = self._bear(bundle)
            if poor is not None:
                at[position].remove(poor)
            else:
                for c in bundle:
                    self._take(proof, c)
                gone.update(bundle)
            heappush(heap, (cost, position))
        return proof.fits()

    def _bundle(self, proof: Proof, here: list[int], position: int) -> list[int] | None:
        """Return the first candidates on a node that free a member's room there, None: too few."""
        gpus, before = self.ask.gpus, proof.slots_at(position)
        room, bundle = proof.room[position], []
        for c in here:
            bundle.append(c)
            room += self.candidates.units[c] * self.candidates.places(c).count(position)
            if max(room, 0) // gpus > before:
                return bundle
        return None

    def _bear(self, bundle: list[int]) -> int | None:
        """Take all of a bundle from its tenants, or none of it: then say whose has too little."""
        used = list(self.used)
        for c in bundle:
            if not self._touch(c, self.candidates.sizes[c] * self.candidates.units[c]):
                self.used = used
                return c
        return None

    def _take(self, proof: Proof, c: int) -> None:
        size, unit = self.candidates.sizes[c], self.candidates.units[c]
        taken = Unit(c, size, size * unit, self.candidates.freed(c, 0, size), whole=True)
        proof.move(taken, 1)
        self.taken.append(taken)

    def _aside(self, c: int) -> tuple[int, ...]:
        """List what of a candidate's path stands aside the taker's: what loses by its leaving.

        Nothing loses by who is demoted: it runs outside its guarantee.
        """
        if self.candidates.demoted[c] >= 0:
            return ()
        row = self.candidates.rows[c]
        aside = self.aside.get(row)
        if aside is None:
            mine = set(self.holdings.path(self.ask.row))
            aside = tuple(r for r in self.holdings.path(row) if r not in mine)
            self.aside[row] = aside
        return aside

    def _touch(self, c: int, gpus: int) -> bool:
        """Take so much from a candidate's tenant, if all of it that stands aside can bear it."""
        aside = self._aside(c)
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
