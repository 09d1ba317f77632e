"""Likely starts, by limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given

from apps.engine.codec import difference
from apps.engine.cycle import schedule
from apps.engine.forecast import carry_out, likely_starts
from apps.engine.types import MICROSECOND
from tests.engine import clock
from tests.engine.build import jobs_of, snapshot_of
from tests.engine.test_always import thorough
from tests.engine.worlds import policies, snapshots

MINUTE = 60 * MICROSECOND


def scenario(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "pools": [{"name": "gpu"}],
        "nodes": [{"name": "n1", "pool": "gpu", "gpus": 8}],
        "tenants": [{"name": "t"}],
        "jobs": [{"tenant": "t", "pool": "gpu", **job} for job in jobs],
    }


def minutes(case: dict[str, Any]) -> dict[str, int | None]:
    """Return when each job likely starts, in minutes from now."""
    shot, policy = snapshot_of(case)
    names = {j["id"]: j["name"] for j in jobs_of(case)}
    starts = likely_starts(shot, policy).tolist()
    return {
        names[job]: None if at < 0 else (at - shot.now) // MINUTE
        for job, at in zip(shot.pending.id.tolist(), starts, strict=True)
    }


def test_a_line_starts_one_after_the_other() -> None:
    case = scenario(
        [
            {
                "name": "run",
                "state": "running",
                "size": 5,
                "started": "-10m",
                "on": ["n1"] * 5,
                "limit": "70m",
            },
            {"name": "big", "size": 7, "limit": "1h", "submitted": "-5m"},
            {"name": "mid", "size": 2, "limit": "70m", "submitted": "-4m"},
            {"name": "held", "held": True},
            {"name": "wide", "size": 9},
        ]
    )

    assert minutes(case) == {"big": 60, "mid": 120, "held": None, "wide": None}


def test_behind_work_without_a_limit_there_is_no_likely_start() -> None:
    case = scenario(
        [
            {"name": "run", "state": "running", "size": 8, "started": "-1h", "on": ["n1"] * 8},
            {"name": "next"},
        ]
    )

    assert minutes(case) == {"next": None}


@thorough
@given(snapshots(), policies())
def test_the_virtual_clock_carries_a_plan_out_as_the_tests_do(shot: Any, policy: Any) -> None:
    # A forecast is of what happens if nobody is asked to leave.
    policy = replace(policy, preemption="none")
    plan = schedule(shot, policy)

    mine, theirs = carry_out(shot, policy, plan), clock.apply(shot, policy, plan)

    assert difference(schedule(mine, policy), schedule(theirs, policy)) == []
