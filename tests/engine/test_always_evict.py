"""What must always hold of evictions, over every rule, mode and fair share, and that it is seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from apps.engine import eviction, fairshare, holdings, keeping, taking
from apps.engine.cycle import schedule
from apps.engine.preemption import RULES
from apps.engine.types import MICROSECOND, MODES, Mode, Passed, Policy, Reason, Snapshot
from tests.engine import always, mutants
from tests.engine.clock import apply, pass_time
from tests.engine.test_always import EXAMPLES, thorough
from tests.engine.worlds import policies, snapshots

EVICTING = sorted(set(RULES) - {"none"})
COMBINATIONS = list(product(EVICTING, sorted(MODES), sorted(fairshare.POLICIES)))
each = settings(thorough, max_examples=EXAMPLES if EXAMPLES > 100 else 15)


@pytest.mark.parametrize(("rule", "mode", "fair_share"), COMBINATIONS)
def test_every_rule_mode_and_fair_share_keeps_what_must_hold(
    rule: str, mode: str, fair_share: str
) -> None:
    @each
    @given(snapshots(), policies(rule, mode, fair_share))
    def holds(shot: Snapshot, policy: Policy) -> None:
        always.check(shot, policy, schedule(shot, policy))

    holds()


@pytest.mark.parametrize(("rule", "mode"), list(product(EVICTING, sorted(MODES))))
def test_who_evicted_starts_when_its_victims_have_left(rule: str, mode: str) -> None:
    @each
    @given(snapshots(), policies(rule, mode, limited=False))
    def starts(shot: Snapshot, policy: Policy) -> None:
        plan = schedule(shot, policy)
        promised = set(shot.pending.id[plan.leaving.job].tolist())
        left = pass_time(apply(shot, policy, plan), 0, all_leave=True)

        after = schedule(left, policy)

        assert promised <= set(left.pending.id[after.starts.job].tolist())

    starts()


@pytest.mark.parametrize(("rule", "mode"), list(product(EVICTING, sorted(MODES))))
def test_evictions_come_to_an_end_when_nothing_is_new(rule: str, mode: str) -> None:
    """No pair evicts each other in turn: with nobody ending or submitting, all comes to rest."""

    @each
    @given(snapshots(), policies(rule, mode, limited=False))
    def rests(shot: Snapshot, policy: Policy) -> None:
        endless = np.full(len(shot.pending.id), -1)
        running = replace(shot.running, ends_by=np.full(len(shot.running.id), -1))
        shot = replace(shot, pending=replace(shot.pending, limit=endless), running=running)
        policy = replace(policy, cooldown=0, min_runtime=0, thrash_after=0, gang_timeout=-1)
        asked: list[int] = []
        for _ in range(40):
            plan = schedule(shot, policy)
            asked.append(len(plan.evictions.victim))
            shot = pass_time(apply(shot, policy, plan), 61 * MICROSECOND)

        assert asked[-5:] == [0] * 5

    rests()


# --- deliberate mutants, each of which must be seen


def caught(complaint: str, rule: str | None = None) -> bool:
    """Tell whether policies of a rule that kill show the broken engine."""
    return mutants.caught(complaint, policies(rule, "kill"), most=3000)


def test_a_mutant_that_evicts_needlessly_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_all(proof: eviction.Proof, taken: Any) -> dict[int, int]:
        victims: dict[int, int] = {}
        for unit in taken:
            victims[unit.candidate] = victims.get(unit.candidate, 0) + unit.members
        return victims

    monkeypatch.setattr(eviction, "give_back", keep_all)

    assert caught("needless victim")


def test_a_mutant_that_evicts_without_proof_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(self: eviction.Proof) -> bool:
        return bool(self.room != self.ask.view.room.tolist())  # something left: it will do

    monkeypatch.setattr(eviction.Proof, "fits", trusting)
    monkeypatch.setattr(taking.Taking, "_place", lambda self, k, room: [])

    assert caught("evicted without proof")


def test_a_mutant_that_pushes_others_below_their_guarantee_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_guaranteed(self: Any, bound: Any, on_path: Any) -> Any:
        return np.full(len(self.parent), 2**40)

    monkeypatch.setattr(holdings.Holdings, "surplus", none_guaranteed)
    monkeypatch.setattr(eviction.Search, "_touch", lambda self, c, gpus: True)

    assert caught("below the guarantee", "priority")


def test_a_mutant_that_promises_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = keeping.Keeping.keep

    def forgets(self: keeping.Keeping, *given: Any) -> None:
        coming = list(self.promised.coming)
        keep(self, *given)
        self.promised.coming[:] = coming

    monkeypatch.setattr(keeping.Keeping, "keep", forgets)

    assert caught("promised twice")


def test_a_mutant_that_takes_the_wrong_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    in_turn = taking.Taking._in_turn

    def backwards(self: taking.Taking, order: Any, mine: Any, later: bool) -> Any:
        return in_turn(self, order, mine, later)[::-1]

    monkeypatch.setattr(taking.Taking, "_in_turn", backwards)

    assert caught("wrong order")


def test_the_mutants_change_what_the_engine_uses() -> None:
    assert eviction.Search.run.__globals__["give_back"] is eviction.give_back
    assert {Mode.KILL, Passed.CHOSEN, Reason.STARTS} == {0}
