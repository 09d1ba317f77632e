"""Every scenario, our own and the shared ones, through the tick that production runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.scheduling.scenario import failures, play, read

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / "tests" / "engine" / "scenarios").glob("*.toml"))
SHARED = sorted((ROOT.parent / "shared" / "scenarios").glob("*.toml"))
ABSENT: list[Any] = [
    pytest.param(None, marks=pytest.mark.skip(reason="../shared is absent"), id="absent")
]


def name_of(path: Path | None) -> str | None:
    return None if path is None else path.stem


def test_there_are_scenarios_of_our_own_each_with_its_rule_and_source() -> None:
    scenarios = [read(path) for path in OWN]

    assert len(scenarios) >= 25
    assert all(scenario.title != scenario.file for scenario in scenarios)
    assert [s.file for s in scenarios if not s.source] == []
    assert len({scenario.title for scenario in scenarios}) == len(scenarios)
    assert sum(scenario.policy["preemption"] != "none" for scenario in scenarios) >= 25


@pytest.mark.django_db
@pytest.mark.parametrize("path", OWN, ids=name_of)
def test_a_scenario_of_our_own_holds(path: Path) -> None:
    scenario = read(path)

    assert failures(scenario, play(scenario)) == []


@pytest.mark.django_db
@pytest.mark.parametrize("path", SHARED or ABSENT, ids=name_of)
def test_a_shared_scenario_holds(path: Path) -> None:
    scenario = read(path)

    assert failures(scenario, play(scenario)) == []


@pytest.mark.django_db
def test_playing_twice_gives_the_same_answer_and_leaves_nothing_behind() -> None:
    from apps.backends.models import Cluster
    from apps.jobs.models import Job
    from apps.tenants.models import Tenant

    scenario = read(next(path for path in OWN if path.stem == "reserved-for-until"))

    first, second = play(scenario), play(scenario)

    assert first.last == second.last
    assert not Cluster.objects.exists()
    assert not Job.objects.exists()
    assert not Tenant.objects.exists()
