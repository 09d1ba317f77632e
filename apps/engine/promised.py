"""What leaving victims free in one pool, and to whom it is promised (DOMAIN decision 18)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from apps.engine.candidates import Rows
from apps.engine.ground import Ground
from apps.engine.types import NONE, Bools, Ints, Running

Row = tuple[int, int, int, int]
"""(instant by which it ends, position, GPUs, tenant)."""


@dataclass(slots=True)
class Place:
    """Where a gang will start: some of it idle already, and kept for it."""

    spots: dict[int, int]  # members by position
    gpus: int  # of a member
    idle: dict[int, int]  # GPUs of what is idle that are kept for it, by position
    victims: set[int]  # running indexes asked to leave for it

    def holds(self, position: int) -> int:
        """Return how many of its members have all their GPUs there already."""
        return min(self.idle.get(position, 0) // self.gpus, self.spots[position])

    def lacks(self, position: int) -> int:
        """Return the GPUs that are still to come there."""
        return self.spots[position] * self.gpus - self.idle.get(position, 0)


@dataclass(slots=True)
class Promised:
    """The room of one pool that is about to be free; ``coming`` is what nobody is promised.

    ``coming`` may be below 0 where work that is not ours overlaps: who leaves pays that first.
    """

    coming: list[int]
    rows: dict[int, Rows] = field(default_factory=dict)  # by running index
    until: dict[int, int] = field(default_factory=dict)
    at: dict[int, set[int]] = field(default_factory=dict)  # who leaves, by position
    last: dict[int, int] = field(default_factory=dict)  # when all of them have left
    places: dict[int, Place] = field(default_factory=dict)  # by place in the walk

    def leave(self, victim: int, rows: Rows, until: int) -> None:
        """Count what a victim frees."""
        self.rows[victim], self.until[victim] = rows, until
        for position, gpus in rows:
            self.coming[position] += gpus
            self.at.setdefault(position, set()).add(victim)
            self.last[position] = max(self.last.get(position, until), until)

    def waits_for(self, place: Place) -> set[int]:
        """Return whom a place waits for: its own victims, and who leaves what it takes beside."""
        waits = place.victims & self.rows.keys()
        for position in place.spots:
            lacks = place.lacks(position)
            if lacks > 0:
                at = self.at.get(position, set())
                own = sum(g for v in at & waits for p, g in self.rows[v] if p == position)
                if own < lacks:
                    waits = waits | at
        return waits

    def left_over(self, now: int) -> Iterable[Row]:
        """List what nobody is promised as what ends: (instant, position, GPUs, no tenant)."""
        return [
            (max(self.last[position], now), position, self.coming[position], NONE)
            for position in sorted(self.at)
            if self.coming[position] > 0
        ]


def last_members(running: Running) -> Ints:
    """Return how many of the last members of each attempt were asked to leave, 0: none."""
    many = np.diff(running.member_offsets)
    last = np.where(running.shrinking > 0, np.minimum(running.shrinking, many), many)
    return np.where(running.leaving >= 0, last, 0)


def leaving_rows(running: Running, ground: Ground, pool: int) -> tuple[dict[int, Rows], Bools]:
    """Return what those who were asked before free, by running index, and which members leave."""
    many, last = np.diff(running.member_offsets), last_members(running)
    asked = (running.leaving >= 0) & (running.pool == pool)
    rank = np.arange(len(running.member_node)) - np.repeat(running.member_offsets[:-1], many)
    leaves: Bools = np.repeat(asked, many) & (rank >= np.repeat(many - last, many))
    rows: dict[int, Rows] = {int(v): [] for v in np.flatnonzero(asked)}
    owner = np.repeat(np.arange(len(many)), many)
    for member in np.flatnonzero(leaves).tolist():
        position = int(ground.position[running.member_node[member]])
        if position >= 0:
            victim = int(owner[member])
            rows[victim].append((position, int(running.gpus_per_member[victim])))
    return rows, leaves
