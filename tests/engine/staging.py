"""Scenes in which somebody is evicted: written down, decided, and played on."""

from __future__ import annotations

from typing import Any

from apps.engine.cycle import schedule
from apps.engine.types import MICROSECOND, Plan, Snapshot
from tests.engine.build import snapshot_of, spell
from tests.engine.clock import apply, pass_time

MINUTE = 60 * MICROSECOND


def scene(
    jobs: list[dict[str, Any]],
    *,
    nodes: int = 1,
    gpus: int = 8,
    tenants: list[dict[str, Any]] | None = None,
    **policy: Any,
) -> dict[str, Any]:
    """Write a scenario of one pool down; jobs are of tenant t unless they say so."""
    return {
        "policy": {"preemption": "priority", **policy},
        "pools": [{"name": "gpu"}],
        "nodes": [{"name": f"n[1-{nodes}]", "pool": "gpu", "gpus": gpus}],
        "tenants": tenants or [{"name": "t"}],
        "jobs": [{"tenant": "t", "pool": "gpu", **job} for job in jobs],
    }


def runs(name: str, on: list[int], started: str = "-1h", **more: Any) -> dict[str, Any]:
    nodes = [f"n{n}" for n in on]
    return {
        "name": name,
        "state": "running",
        "started": started,
        "on": nodes,
        "size": len(on),
        **more,
    }


def decide(scenario: dict[str, Any]) -> dict[str, Any]:
    snapshot, policy = snapshot_of(scenario)
    return spell(scenario, snapshot, schedule(snapshot, policy))


def code(answer: dict[str, Any], job: str) -> str:
    found: str = answer["jobs"][job]["reason"]["code"]
    return found


class Play:
    """A scenario that goes on: decided, carried out, and time passed, by the engine alone."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        self.snapshot, self.policy = snapshot_of(scenario)
        self.plan: Plan = schedule(self.snapshot, self.policy)

    def tick(self, minutes: float = 0.5, *, all_leave: bool = False) -> dict[str, Any]:
        """Carry the last plan out, let time pass and decide again."""
        after = apply(self.snapshot, self.policy, self.plan)
        pause = 0 if all_leave else round(minutes * MINUTE)
        return self.see(pass_time(after, pause, all_leave=all_leave))

    def see(self, snapshot: Snapshot) -> dict[str, Any]:
        self.snapshot = snapshot
        self.plan = schedule(self.snapshot, self.policy)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        return spell(self.scenario, self.snapshot, self.plan)

    def running(self) -> set[str]:
        names = {k + 1: job["name"] for k, job in enumerate(self.scenario["jobs"])}
        return {names[i] for i in self.snapshot.running.id.tolist()}
