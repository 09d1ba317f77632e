"""What a scenario file says, as values: times are instants, durations seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

NODE_EVENTS = {"node_down": "down", "node_up": "up", "drain": "drained", "undrain": "up"}
"""What an event makes of a node."""

KEEP = object()
"""What an event does not name stays as it is."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the file, ``count`` spelled out; durations in seconds."""

    name: str
    values: Mapping[str, Any]

    def __getattr__(self, key: str) -> Any:
        return self.values[key]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens at an instant."""

    at: datetime
    what: str
    value: Any
    number: int  # which table of the file it is, the first is 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole file; times are instants, durations seconds."""

    file: str
    title: str
    source: str
    now: datetime
    run_for: float
    every: float
    policy: Mapping[str, Any]
    pools: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    tenants: list[dict[str, Any]]
    jobs: list[Job]
    events: list[Event]
    expect: Mapping[str, Any] = field(default_factory=dict)


def end_of(scenario: Scenario) -> datetime:
    """Return the instant of the last decision."""
    return scenario.now + timedelta(seconds=scenario.run_for)
