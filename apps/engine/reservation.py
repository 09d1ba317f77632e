"""The first blocked gang of a pool: when it fits whole, what it keeps until then, what is lent.

EASY backfill, DOMAIN decision 25. Positions are those of the pool's usable nodes, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from apps.engine.placement import Placer, Room, fewest
from apps.engine.types import NONE

End = tuple[int, int, int]
"""(instant by which it ends, position, GPUs it frees there)."""


@dataclass(slots=True)
class Reservation:
    """What the gang keeps until the instant ``at``."""

    job: int
    at: int  # NONE: no such instant; nothing it holds is lent
    gpus: int  # per member
    now: dict[int, int]  # members that may hold before, by position
    spare: list[int]  # GPUs free then that the plan does not need
    holds: bool  # false while the rest is too far away (hold_late)
    quota: dict[int, int] = field(default_factory=dict)  # left under its ceilings, by tenant

    def held(self, position: int, idle: int) -> int:
        """Return the GPUs it holds on a node where ``idle`` are idle: whole members only."""
        if not self.holds:
            return 0
        return min(self.now.get(position, 0), idle // self.gpus) * self.gpus


@dataclass(frozen=True, slots=True)
class Wanted:
    """The gang that looks for an instant."""

    job: int
    size: int
    gpus: int
    domains: Sequence[Sequence[int]]  # where all members must be; one domain: anywhere
    possible: Sequence[bool]  # by domain: its usable nodes could hold the gang
    held: dict[int, int]  # members it holds, by position
    most_now: int  # members it may hold now at most


def earliest(
    wanted: Wanted, free: list[int], ends: Sequence[End], lack: Callable[[int], int] | None
) -> int:
    """Find the first instant at which the gang fits whole, NONE: never; ``free`` is moved to it.

    ``ends`` ascend. ``lack`` gives the GPUs that are kept from the gang at an instant.
    """
    size, gpus, need = wanted.size, wanted.gpus, wanted.size * wanted.gpus
    domain_of = {p: d for d, nodes in enumerate(wanted.domains) for p in nodes}
    slots = [sum(free[p] // gpus for p in nodes) for nodes in wanted.domains]
    total = sum(free)
    fits = any(s >= size for s in slots)
    for index, (at, position, freed) in enumerate(ends):
        before = free[position]
        free[position] = before + freed
        total += freed
        domain = domain_of[position]
        slots[domain] += (before + freed) // gpus - before // gpus
        fits = fits or slots[domain] >= size
        last_of_instant = index + 1 == len(ends) or ends[index + 1][0] != at
        if fits and last_of_instant and (lack is None or total - lack(at) >= need):
            return at
    return NONE


def reserve(
    wanted: Wanted,
    idle: Sequence[int],
    ends: Sequence[End],
    how: Placer,
    waste: Sequence[float],
    lack: Callable[[int], int] | None = None,
) -> Reservation:
    """Plan the gang at the earliest instant, preferring what it holds, then what is free."""
    then = list(idle)
    at = earliest(wanted, then, ends, lack)
    gpus = wanted.gpus
    nodes = wanted.domains[_domain(wanted, idle, then, at)] if wanted.domains else ()
    planned: dict[int, int] = {}
    left = min(wanted.size, wanted.most_now)
    for position in nodes:
        members = min(wanted.held.get(position, 0), idle[position] // gpus, left)
        if members > 0:
            planned[position] = members
            left -= members
    rest = [idle[p] - planned.get(p, 0) * gpus for p in nodes]
    if left and sum(f // gpus for f in rest) >= left:
        for place, members in how(Room(rest), left, gpus, waste) or ():
            planned[nodes[place]] = planned.get(nodes[place], 0) + members
    elif left:
        for position, free in zip(nodes, rest, strict=True):
            if free >= gpus:
                planned[position] = planned.get(position, 0) + free // gpus
    now = dict(planned)
    if at != NONE:
        _complete(planned, nodes, then, wanted.size, gpus)
    spare = [f - planned.get(p, 0) * gpus for p, f in enumerate(then)]
    return Reservation(wanted.job, at, gpus, now, spare, holds=True)


def _domain(wanted: Wanted, idle: Sequence[int], then: Sequence[int], at: int) -> int:
    """Choose where: the most it holds, then the most that fits now, the fullest, the first."""
    best, chosen = None, 0
    gpus = wanted.gpus
    for domain, nodes in enumerate(wanted.domains):
        if at == NONE:
            takes = wanted.possible[domain]
        else:
            takes = sum(then[p] // gpus for p in nodes) >= wanted.size
        kept = sum(min(wanted.held.get(p, 0), idle[p] // gpus) for p in nodes)
        now = sum(idle[p] // gpus for p in nodes)
        key = (not takes, -kept, -now, sum(then[p] for p in nodes), domain)
        if best is None or key < best:
            best, chosen = key, domain
    return chosen


def _complete(
    planned: dict[int, int], nodes: Sequence[int], then: Sequence[int], size: int, gpus: int
) -> None:
    """Add the members that fit later: on nodes it uses already, then on the fewest others."""
    left = size - sum(planned.values())
    for position in sorted(planned):
        more = min(then[position] // gpus - planned[position], left)
        planned[position] += more
        left -= more
    if not left:
        return
    others = [p for p in nodes if p not in planned]
    slots = [then[p] // gpus for p in others]
    top = max(slots, default=0)
    count = [0] * (top + 1)
    for many in slots:
        count[many] += 1
    for level, many in fewest(count, top, left, 1) or ():
        for position in [p for p, s in zip(others, slots, strict=True) if s == level][:many]:
            planned[position] = min(level, left)
            left -= planned[position]


class Behind:
    """What later jobs may use: views of the idle GPUs, each a room.

    A job that ends by the reservation's instant may use all that is idle; any other what is idle
    and spare then. What is not held is tried first: a bar pauses only where it must.
    """

    __slots__ = ("idle", "kept", "unheld", "unheld_long", "usable_long")

    def __init__(self, idle: Room, free: Sequence[int], kept: Reservation) -> None:
        self.idle = idle
        self.kept = kept
        top = idle.top
        unheld = [f - kept.held(p, f) for p, f in enumerate(free)]
        self.unheld = Room(unheld, top)
        self.usable_long = self.unheld
        self.unheld_long = self.unheld
        if kept.at != NONE:
            spare = kept.spare
            self.usable_long = Room([min(f, s) for f, s in zip(free, spare, strict=True)], top)
            self.unheld_long = Room([min(f, s) for f, s in zip(unheld, spare, strict=True)], top)
        for topology, domains in idle.domains.items():
            for room in {id(r): r for r in self.views}.values():
                room.divide(topology, domains, idle.domain_of[topology])

    @property
    def views(self) -> tuple[Room, Room, Room]:
        """Return the rooms that are not the idle one."""
        return self.unheld, self.usable_long, self.unheld_long

    def rooms(self, short: bool) -> tuple[Room, ...]:
        """Return where to try, in turn."""
        if self.kept.at == NONE:
            return (self.unheld,)
        return (self.unheld, self.idle) if short else (self.unheld_long, self.usable_long)

    def usable(self, short: bool) -> int:
        """Return how many GPUs such a job could use now."""
        return self.rooms(short)[-1].total

    def took(self, position: int, gpus: int, idle: int, short: bool) -> bool:
        """Follow what a started job took and left idle; True if the bar paused on that node."""
        held_before = self.kept.held(position, idle + gpus)
        unheld = idle - self.kept.held(position, idle)
        self.unheld.set(position, unheld)
        if self.kept.at != NONE:
            if not short:
                self.kept.spare[position] -= gpus
            spare = self.kept.spare[position]
            self.usable_long.set(position, min(idle, spare))
            self.unheld_long.set(position, min(unheld, spare))
        return self.kept.held(position, idle) != held_before
