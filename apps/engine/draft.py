"""What a walk reads of the tenants and writes of the jobs, while a plan is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from apps.engine.types import Ints


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
    weightless: list[bool]
