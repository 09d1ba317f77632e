"""Where the members of a gang go: all of them, or none.

A *room* is the free GPUs of a pool's usable nodes, in the order of their names. Nodes are kept by
how much is free on them, so that finding a place costs the number of distinct amounts, not nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from apps.engine.errors import Refused

Spots = list[tuple[int, int]]
"""(position of a node, members on it), by position."""


class Room:
    """Free GPUs by node; what changes in a tick while gangs are placed."""

    __slots__ = ("count", "domain_free", "domain_of", "domains", "free", "nodes", "top", "total")

    def __init__(self, free: Sequence[int], top: int = 0) -> None:
        self.free = list(free)
        self.top = max(max(self.free, default=0), top)
        self.count = [0] * (self.top + 1)
        self.nodes: list[list[int]] = [[] for _ in range(self.top + 1)]
        for position, gpus in enumerate(self.free):
            self.count[gpus] += 1
            self.nodes[gpus].append(position)
        self.total = sum(self.free)
        self.domains: dict[int, list[list[int]]] = {}
        self.domain_of: dict[int, list[int]] = {}
        self.domain_free: dict[int, list[int]] = {}

    def set(self, position: int, gpus: int) -> None:
        """Change what is free on a node."""
        old = self.free[position]
        self.free[position] = gpus
        self.count[old] -= 1
        self.count[gpus] += 1
        heappush(self.nodes[gpus], position)
        self.total += gpus - old
        for topology, of in self.domain_of.items():
            self.domain_free[topology][of[position]] += gpus - old

    def take(self, gpus: int, many: int) -> list[int]:
        """Pop the first nodes, by name, with exactly so much free; each must be set afterwards."""
        heap, free = self.nodes[gpus], self.free
        taken: list[int] = []
        while len(taken) < many:
            position = heappop(heap)
            if free[position] == gpus and (not taken or taken[-1] != position):
                taken.append(position)
        return taken

    def slots(self, gpus: int) -> int:
        """Count the members of so many GPUs that fit."""
        count = self.count
        return sum(count[f] * (f // gpus) for f in range(gpus, self.top + 1) if count[f])

    def divide(self, topology: int, domains: list[list[int]], of: list[int]) -> None:
        """Keep what is free per domain of a topology."""
        self.domains[topology] = domains
        self.domain_of[topology] = of
        self.domain_free[topology] = [sum(self.free[p] for p in nodes) for nodes in domains]

    def domain_for(self, topology: int, size: int, gpus: int) -> int:
        """Find the fullest domain that takes all members, -1: none; ties by the first name."""
        need, free = size * gpus, self.free
        amounts = self.domain_free[topology]
        for amount, domain in sorted((a, d) for d, a in enumerate(amounts) if a >= need):
            nodes = self.domains[topology][domain]
            if gpus == 1 and amount >= need:
                return domain
            if sum(free[p] // gpus for p in nodes) >= size:
                return domain
        return -1


def pack(room: Room, size: int, gpus: int, waste: Sequence[float]) -> Spots | None:
    """Use the fewest nodes, then the fullest, then by name."""
    need, top, count = size * gpus, room.top, room.count
    for free in range(need, top + 1):
        if count[free]:
            return [(room.take(free, 1)[0], size)]
    levels = fewest(count, top, size, gpus)
    if levels is None:
        return None
    spots: Spots = []
    left = size
    for free, many in levels:
        for position in room.take(free, many):
            members = min(free // gpus, left)
            left -= members
            spots.append((position, members))
    spots.sort()
    return spots


def fewest(count: Sequence[int], top: int, size: int, gpus: int) -> list[tuple[int, int]] | None:
    """Choose how many nodes of each free amount: the fewest in all, the fullest among those."""
    left, nodes = size, 0
    for free in range(top, gpus - 1, -1):
        if count[free]:
            slots = free // gpus
            many = min(count[free], -(-left // slots))
            nodes += many
            left -= many * slots
            if left <= 0:
                break
    if left > 0:
        return None
    chosen: list[tuple[int, int]] = []
    left = size
    for free in range(gpus, top + 1):
        if not count[free] or not nodes:
            continue
        low, high = 0, min(count[free], nodes)
        while low < high:
            many = (low + high + 1) // 2
            rest = left - many * (free // gpus)
            if _most(count, top, free, count[free] - many, nodes - many, gpus) >= rest:
                low = many
            else:
                high = many - 1
        if low:
            chosen.append((free, low))
            nodes -= low
            left -= low * (free // gpus)
    return chosen


def _most(count: Sequence[int], top: int, lowest: int, at_lowest: int, many: int, gpus: int) -> int:
    """Return the members that ``many`` nodes take at most, of those above ``lowest`` or at it."""
    members = 0
    for free in range(top, lowest, -1):
        if many <= 0:
            return members
        used = min(count[free], many)
        members += used * (free // gpus)
        many -= used
    return members + min(at_lowest, many) * (lowest // gpus)


def spread(room: Room, size: int, gpus: int, waste: Sequence[float]) -> Spots | None:
    """Put each member on the emptiest node, then by name."""
    if room.slots(gpus) < size:
        return None
    level = room.top
    members: dict[int, int] = {}
    for _ in range(size):
        while not room.count[level]:
            level -= 1
        position = room.take(level, 1)[0]
        members[position] = members.get(position, 0) + 1
        room.set(position, level - gpus)
    return sorted(members.items())


def frag(room: Room, size: int, gpus: int, waste: Sequence[float]) -> Spots | None:
    """Put each member where it strands least, then on the fullest node, then by name.

    ``waste[f]`` is what is expected to be stranded on a node with ``f`` free. Source: FGD, ATC'23,
    with the shapes of the jobs that wait as the workload.
    """
    if room.slots(gpus) < size:
        return None
    members: dict[int, int] = {}
    by_gain = sorted(
        range(gpus, room.top + 1), key=lambda f: (round(waste[f - gpus] - waste[f], 9), f)
    )
    for _ in range(size):
        level = next(f for f in by_gain if room.count[f])
        position = room.take(level, 1)[0]
        members[position] = members.get(position, 0) + 1
        room.set(position, level - gpus)
    return sorted(members.items())


Placer = Callable[[Room, int, int, Sequence[float]], Spots | None]
PLACERS: Final[dict[str, Placer]] = {"pack": pack, "spread": spread, "frag": frag}


def placer(name: str) -> Placer:
    """Look a placement up.

    :raises Refused: if it is not in the table.
    """
    if name not in PLACERS:
        raise Refused("placement", name, "is not a placement")
    return PLACERS[name]


def place(
    room: Room, size: int, gpus: int, topology: int, how: Placer, waste: Sequence[float]
) -> Spots | None:
    """Find a place for all members, or None; the caller then sets every node of the answer."""
    if size * gpus > room.total:
        return None
    if not topology:
        return how(room, size, gpus, waste)
    domain = room.domain_for(topology, size, gpus)
    if domain < 0:
        return None
    nodes = room.domains[topology][domain]
    inside = how(Room([room.free[p] for p in nodes]), size, gpus, waste)
    return None if inside is None else [(nodes[p], members) for p, members in inside]


def wasted(shapes: dict[int, int], top: int) -> list[float]:
    """Return, for 0 to ``top`` free GPUs on a node, how many a random waiting member strands.

    ``shapes`` counts members by their GPUs.
    """
    whole = sum(shapes.values())
    if not whole:
        return [0.0] * (top + 1)
    return [
        sum(many * (free % gpus) for gpus, many in shapes.items()) / whole
        for free in range(top + 1)
    ]
