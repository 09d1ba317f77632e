"""What a walk reads of the tenants and writes of the jobs, while a plan is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from apps.engine.types import NONE, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The verdicts as they are made, by pending index."""

    reason: Ints
    needed: Ints
    available: Ints
    tenant: Ints
    for_job: Ints
    until: Ints
    forecast: Ints


@dataclass(slots=True)
class Outcome:
    """What one pool's walk decided."""

    starts: dict[int, list[int]] = field(default_factory=dict)  # nodes by rank
    holds: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # (rank, node)
    timed_out: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The tenants' side, for one pool."""

    parents: list[int]
    used: list[int]  # moved by starts
    ceiling: list[int]
    guarantee: list[int]
    weightless: list[bool]  # it, or one above it, weighs 0
    zero: list[bool]  # it weighs 0 itself

    def beyond(self, tenant: int, need: int) -> int:
        """Find who of weight 0, the lowest first, would pass its guarantee by a job, -1: none."""
        while tenant >= 0:
            if self.zero[tenant] and self.used[tenant] + need > self.guarantee[tenant]:
                return tenant
            tenant = self.parents[tenant]
        return NONE


class Notes:
    """The verdicts of one walk, by place in it: lists, which are quicker than arrays one by one."""

    __slots__ = ("available", "for_job", "needed", "reason", "tenant", "until")

    def __init__(self, count: int) -> None:
        self.reason = [NONE] * count
        self.needed = [NONE] * count
        self.available = [NONE] * count
        self.tenant = [NONE] * count
        self.for_job = [NONE] * count
        self.until = [NONE] * count

    def say(
        self, k: int, reason: int, needed: int = NONE, available: int = NONE, tenant: int = NONE
    ) -> None:
        """Note why a job waits, or that it starts; forget what was noted before."""
        self.reason[k] = reason
        self.needed[k] = needed
        self.available[k] = available
        self.tenant[k] = tenant
        self.for_job[k] = self.until[k] = NONE

    def write(self, draft: Draft, jobs: Ints) -> None:
        """Write all of it into the draft."""
        for name in self.__slots__:
            getattr(draft, name)[jobs] = getattr(self, name)
