"""What a walk reads of the tenants and writes of the jobs, while a plan is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

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

    def copy(self) -> Draft:
        """Copy, for a walk that only looks."""
        return Draft(*(getattr(self, name).copy() for name in self.__slots__))


class Asked(NamedTuple):
    """One victim of this decision: indexes, and what the columns of ``Evictions`` say."""

    job: int
    victim: int
    mode: int
    members: int
    gpus: int
    until: int
    lost: int
    rule: str


class Considered(NamedTuple):
    """The candidates looked at for one beneficiary at one time: the first of them, and all counted."""

    victim: list[int]
    passed: list[int]
    counts: Ints


@dataclass(slots=True)
class Outcome:
    """What one pool's walk decided."""

    starts: dict[int, list[int]] = field(default_factory=dict)  # nodes by rank
    holds: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # (rank, node)
    timed_out: set[int] = field(default_factory=set)
    promises: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # (rank, node)
    leaving: dict[int, list[int]] = field(default_factory=dict)  # whom each promised gang awaits
    asked: list[Asked] = field(default_factory=list)
    considered: dict[int, Considered] = field(default_factory=dict)
    stays: set[int] = field(default_factory=set)
    gone: dict[int, int] = field(default_factory=dict)  # members that leave, by running index

    def update(self, other: Outcome) -> None:
        """Add what another pool's walk decided."""
        for name in ("starts", "holds", "timed_out", "promises", "leaving", "stays", "gone"):
            getattr(self, name).update(getattr(other, name))
        self.asked += other.asked
        self.considered.update(other.considered)


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The tenants' side, for one pool."""

    parents: list[int]
    used: list[int]  # moved by starts; with evictions: now or then, the larger
    ceiling: list[int]
    guarantee: list[int]
    weightless: list[bool]  # it, or one above it, weighs 0
    zero: list[bool]  # it weighs 0 itself
    now: list[int] = field(default_factory=list)  # with evictions: what is held now
    then: list[int] = field(default_factory=list)  # and once all have left and all promised started

    def follow(self, tenant: int, *, now: int = 0, then: int = 0) -> None:
        """Count GPUs more as used now, and then, by a tenant and all above it."""
        while tenant >= 0:
            self.now[tenant] += now
            self.then[tenant] += then
            self.used[tenant] = max(self.now[tenant], self.then[tenant])
            tenant = self.parents[tenant]

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
