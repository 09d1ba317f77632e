"""Evictions: who sees them, who may confirm a checkpoint once, and what their sentences say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.accounts.models import User
from apps.backends.models import Pool
from apps.common.errors import Conflict
from apps.jobs.eviction_facts import (
    candidates_of,
    evictions_visible_to,
    left_alone_until,
    loss_of,
    stood,
    team_told,
)
from apps.jobs.eviction_words import (
    PASSED,
    happened,
    how_it_left,
    outcome_label,
    what_it_cost,
    where_from,
)
from apps.jobs.evictions import confirm_checkpoint
from apps.jobs.models import Attempt, Eviction, Job, Move
from apps.jobs.states import EvictionMode, EvictionOutcome
from apps.tenants.models import Tenant
from apps.tenants.selectors import sight_of
from tests.factories import NOW, join, make_eviction, make_tenant, make_user

LATER = NOW + timedelta(seconds=30)


def when(at: Any) -> str:
    return f"{at:%H:%M:%S}"


def test_both_sides_see_an_eviction_and_nobody_else(
    victim: Job, taker: Job, alice: User, bob: User, carol: User, root: User
) -> None:
    eviction = make_eviction(victim, taker)
    stranger = join(make_user("dave"), make_tenant("bio"), "lead")

    for user in (alice, bob, carol, root):
        assert list(evictions_visible_to(user)) == [eviction]
    for user in (stranger, make_user("erin")):
        assert not evictions_visible_to(user).exists()


class TestConfirmation:
    def test_the_first_one_counts_and_a_second_answers_the_same(
        self, victim: Job, taker: Job, bob: User, alice: User
    ) -> None:
        make_eviction(victim, taker)

        first = confirm_checkpoint(victim, attempt_number=1, by=bob, now=LATER)
        second = confirm_checkpoint(
            victim, attempt_number=1, by=alice, now=LATER + timedelta(seconds=9)
        )

        assert (second.pk, second.confirmed_at, second.confirmed_by) == (first.pk, LATER, bob)
        assert Attempt.objects.get().last_checkpoint_at == LATER
        (move,) = Move.objects.filter(what="checkpoint_confirmed")
        assert (move.by, move.detail["eviction"]) == (bob, first.pk)

    def test_one_repeated_after_the_end_still_answers_the_same(
        self, victim: Job, taker: Job, bob: User
    ) -> None:
        eviction = make_eviction(
            victim, taker, outcome="checkpointed", confirmed_at=LATER, confirmed_by=bob
        )

        again = confirm_checkpoint(victim, attempt_number=1, by=bob, now=NOW + timedelta(hours=1))

        assert (again, again.confirmed_at) == (eviction, LATER)
        assert Attempt.objects.get().last_checkpoint_at is None

    def test_an_older_checkpoint_never_replaces_a_newer_one(
        self, victim: Job, taker: Job, bob: User
    ) -> None:
        make_eviction(victim, taker)
        newer = LATER + timedelta(seconds=5)
        Attempt.objects.update(last_checkpoint_at=newer)

        confirm_checkpoint(victim, attempt_number=1, by=bob, now=LATER)

        assert Attempt.objects.get().last_checkpoint_at == newer

    @pytest.mark.parametrize(
        ("columns", "attempt", "code"),
        [
            ({}, 2, "other_attempt"),
            ({}, 99, "other_attempt"),
            ({"outcome": "grace_exceeded"}, 1, "already_left"),
            ({"outcome": "succeeded"}, 1, "already_left"),
            ({"outcome": "grace_exceeded"}, 3, "other_attempt"),
            ({"outcome": "stayed"}, 1, "not_leaving"),
            ({"outcome": "demoted", "mode": "demote"}, 1, "not_leaving"),
            ({"mode": "kill"}, 1, "not_leaving"),
        ],
    )
    def test_there_is_nothing_to_confirm(
        self, columns: dict[str, Any], attempt: int, code: str, victim: Job, taker: Job, bob: User
    ) -> None:
        make_eviction(victim, taker, **columns)
        before = Eviction.objects.values().get(), Attempt.objects.values().get()

        with pytest.raises(Conflict) as refused:
            confirm_checkpoint(victim, attempt_number=attempt, by=bob, now=LATER)

        assert (refused.value.code, refused.value.field) == (code, "attempt")
        assert refused.value.message.endswith(".")
        assert (Eviction.objects.values().get(), Attempt.objects.values().get()) == before

    def test_a_job_that_nobody_asked(self, victim: Job, bob: User) -> None:
        with pytest.raises(Conflict) as refused:
            confirm_checkpoint(victim, attempt_number=1, by=bob, now=NOW)

        assert refused.value.code == "not_leaving"

    def test_the_attempt_after_an_eviction_is_its_own(
        self, victim: Job, taker: Job, bob: User
    ) -> None:
        make_eviction(victim, taker, outcome="checkpointed", confirmed_at=LATER, confirmed_by=bob)
        second = make_eviction(victim, taker, at=NOW + timedelta(hours=1))

        answer = confirm_checkpoint(victim, attempt_number=2, by=bob, now=NOW + timedelta(hours=1))

        assert answer == second


class TestWords:
    @pytest.mark.parametrize("outcome", ["", *EvictionOutcome.values])
    @pytest.mark.parametrize("mode", EvictionMode.values)
    def test_each_mode_and_outcome_has_its_sentences(
        self, mode: str, outcome: str, victim: Job, taker: Job
    ) -> None:
        eviction = make_eviction(victim, taker, mode=mode, outcome=outcome)
        loss = loss_of(eviction)

        said = [
            happened(eviction, stood(eviction, "victim")),
            what_it_cost(eviction, loss, when, money=True),
            where_from(eviction, when),
        ]

        for sentence in said:
            told = sentence.format(victim="vit", beneficiary="llama", team="vision")
            assert told.endswith(".")
            assert "None" not in told
            assert "{" not in told
        assert how_it_left(eviction, when)
        assert outcome_label(eviction)

    def test_they_say_who_for_whom_and_what_the_team_held(self, victim: Job, taker: Job) -> None:
        eviction = make_eviction(victim, taker, outcome="checkpointed")
        names = {"victim": "vit", "beneficiary": "llama", "team": "vision"}

        assert happened(eviction, stood(eviction, "victim")).format(**names) == (
            "vit was evicted by reclaim for llama: vision held 24 and was entitled to 16."
        )
        eviction.rule = "priority"
        assert happened(eviction, None).format(**names) == (
            "vit was evicted by priority for llama, whose class is higher."
        )

    def test_grace_exceeded_says_what_is_lost_and_since_when(self, victim: Job, taker: Job) -> None:
        seconds = 39 * 60
        eviction = make_eviction(
            victim, taker, outcome="grace_exceeded", took=timedelta(seconds=120),
            lost_gpu_us=8 * seconds * 1_000_000, lost_micros=13_000_000,
        )  # fmt: skip

        said = what_it_cost(eviction, loss_of(eviction), when, money=True)

        assert said == (
            "Grace of 2 min ran out before a checkpoint; 39 min of work on 8 GPUs is lost:"
            " 5.20 GPUh, $13.00."
        )
        assert "$" not in what_it_cost(eviction, loss_of(eviction), when, money=False)
        assert where_from(eviction, when) == (
            "8 GPUs × 39 min since it started: from 11:23:00 to 12:02:00."
        )

    def test_without_a_price_none_is_made_up(self, victim: Job, taker: Job) -> None:
        eviction = make_eviction(
            victim, taker, outcome="killed", lost_gpu_us=8 * 3_600_000_000, lost_micros=None
        )

        assert what_it_cost(eviction, loss_of(eviction), when, money=True).endswith(
            "8.00 GPUh, no price."
        )

    def test_a_slice_of_a_gpu_loses_a_part_of_its_hours(self, victim: Job, taker: Job) -> None:
        Pool.objects.update(fraction_numerator=3, fraction_denominator=7)
        eviction = make_eviction(victim, taker, outcome="killed", lost_gpu_us=7 * 3_600_000_000)

        eviction.job.pool.refresh_from_db()
        loss = loss_of(eviction)

        assert loss is not None
        assert loss.gpu_hours == 3

    def test_every_code_of_the_engine_has_words(self) -> None:
        from apps.engine.types import Passed

        assert set(PASSED) == {code.name.lower() for code in Passed}


def test_candidates_are_named_as_their_reader_may_know_them(
    victim: Job, taker: Job, alice: User, carol: User
) -> None:
    gone = {"job": 10**9, "tenant": 1, "gpus": 4, "lost_gpu_us": None, "passed": "class"}
    eviction = make_eviction(victim, taker)
    eviction.considered = [gone, *eviction.considered]

    mine = candidates_of(eviction, sight_of(alice))
    theirs = candidates_of(eviction, sight_of(carol))

    assert [(c.place, c.name, c.job) for c in mine] == [
        (1, "a job that is gone", None), (2, "vit", victim),
    ]  # fmt: skip
    assert [(c.name, c.job) for c in theirs][1] == ("a job of vision", None)
    assert mine[0].lost is None


@pytest.mark.parametrize(
    ("setting", "told"),
    [("size", "a team of vision"), ("named", "vision/perception"), ("hidden", "another tenant")],
)
def test_a_team_of_others_is_told_as_the_setting_says(
    setting: str, told: str, carol: User, vision: Tenant, settings: Any
) -> None:
    settings.OTHER_TENANTS = setting

    assert team_told(sight_of(carol), "vision/perception") == told


@pytest.mark.parametrize(
    ("minutes", "after", "until"),
    [([], 3, None), ([0, 10], 3, None), ([0, 10, 20], 3, 60), ([0, 10, 20, 30], 3, 70),
     ([5], 0, None), ([7], 1, 67)],
)  # fmt: skip
def test_a_job_is_left_alone_until_fewer_lie_within_the_hour(
    minutes: list[int], after: int, until: int | None
) -> None:
    times = [NOW + timedelta(minutes=minute) for minute in minutes]

    found = left_alone_until(times, after)

    assert found == (None if until is None else NOW + timedelta(minutes=until))
