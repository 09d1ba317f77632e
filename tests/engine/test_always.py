"""What must always hold, over every policy in the tables (ARCHITECTURE)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.engine import placement, quotas, starting
from apps.engine.codec import difference
from apps.engine.cycle import schedule
from apps.engine.types import MICROSECOND, NONE, Policy, Reason, Snapshot
from tests.engine import always, mutants
from tests.engine.clock import apply, pass_time
from tests.engine.worlds import policies, shuffled, snapshots

EXAMPLES = 500 if os.environ.get("FULL") == "1" else 60
thorough = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=os.environ.get("FULL") != "1",
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@thorough
@given(snapshots(), policies())
def test_a_plan_keeps_every_rule(shot: Snapshot, policy: Policy) -> None:
    always.check(shot, policy, schedule(shot, policy))


@thorough
@given(snapshots(), policies(), st.integers(0, 2**32 - 1))
def test_the_order_of_the_rows_is_irrelevant(shot: Snapshot, policy: Policy, seed: int) -> None:
    plan = schedule(shot, policy)
    other = shuffled(shot, np.random.default_rng(seed))

    again = schedule(other, policy)

    assert difference(plan, schedule(shot, policy)) == []
    assert always.starts_by_id(shot, plan) == always.starts_by_id(other, again)
    assert always.holds_by_id(shot, plan) == always.holds_by_id(other, again)
    assert always.promises_by_id(shot, plan) == always.promises_by_id(other, again)
    assert always.evictions_by_id(shot, plan) == always.evictions_by_id(other, again)
    assert shot.pending.id[plan.order].tolist() == other.pending.id[again.order].tolist()
    mine, theirs = np.argsort(shot.pending.id), np.argsort(other.pending.id)
    for name in ("verdict", "reason", "needed", "available", "until", "most", "forecast"):
        one, two = getattr(plan.verdicts, name)[mine], getattr(again.verdicts, name)[theirs]
        assert one.tolist() == two.tolist(), name


@thorough
@given(snapshots(), policies(limited=False))
def test_a_plan_applied_and_run_again_changes_nothing(shot: Snapshot, policy: Policy) -> None:
    plan = schedule(shot, policy)
    after = apply(shot, policy, plan)

    again = schedule(after, policy)

    always.check(after, policy, again)
    assert again.starts.job.tolist() == []
    assert always.holds_by_id(after, again) == always.holds_by_id(shot, plan)
    assert again.timed_out.tolist() == []
    assert again.evictions.victim.tolist() == []
    assert again.stays.tolist() == []
    assert always.promises_by_id(after, again) == always.promises_by_id(shot, plan)


@thorough
@given(snapshots(), policies(), st.lists(st.integers(1, 40), min_size=3, max_size=12))
def test_rules_hold_tick_after_tick(shot: Snapshot, policy: Policy, minutes: list[int]) -> None:
    evicted: dict[int, int] = {}
    for pause in minutes:
        plan = schedule(shot, policy)
        always.check(shot, policy, plan)
        after = apply(shot, policy, plan, evicted)
        shot = pass_time(after, pause * 60 * MICROSECOND, evicted)


@thorough
@given(snapshots(), policies(limited=False))
def test_backfill_does_not_delay_the_reservation(shot: Snapshot, policy: Policy) -> None:
    plan = schedule(shot, policy)
    after = apply(shot, policy, plan)
    expected = dict(zip(shot.pending.id.tolist(), plan.verdicts.forecast.tolist(), strict=True))

    again = schedule(after, policy)

    for k, job in enumerate(after.pending.id.tolist()):
        if expected[job] != NONE:
            assert again.verdicts.forecast[k] == expected[job]


# --- the checker itself: a broken engine must be caught


def caught(complaint: str) -> bool:
    """Tell whether any policy shows the broken engine."""
    return mutants.caught(complaint, policies(), most=2000)


def test_a_mutant_that_starts_partial_gangs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def partial(room: Any, size: int, *rest: Any) -> Any:
        return placement.place(room, max(size - 1, 1), *rest)

    monkeypatch.setattr(starting, "place", partial)

    assert caught("partial gang")


def test_a_mutant_that_ignores_the_quota_of_an_ancestor_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only_itself(parents: list[int], tenant: int) -> list[int]:
        return [tenant]

    monkeypatch.setattr(starting, "path_of", only_itself)

    assert caught("ceiling exceeded")


def test_the_mutants_patch_what_the_engine_uses() -> None:
    assert starting.place is placement.place
    assert quotas.UNLIMITED > 0
    assert Reason.STARTS == 0
