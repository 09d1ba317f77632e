"""Decayed usage as the ledger keeps it: exact, whenever ticks ran, and the same when made anew."""

from __future__ import annotations

import json
import random
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.ledger.models import OpeningBalance, UsageAccount
from apps.ledger.rollup import roll_up
from apps.ledger.usage import decayed_usage, rebuild_usage
from apps.queues.models import ClusterPolicy
from tests.ledger.build import HOUR, World, make_world
from tests.ledger.test_rollup import EXAMPLES

DAY = 24 * HOUR


def usage(world: World, tenant: str = "vision", *, at: float) -> float:
    return decayed_usage(world.cluster, at_us=world.at(at)).get(world.tenant(tenant).pk, 0.0)


@pytest.mark.parametrize(("days", "gpu_hours"), [(1, 182.8001), (7, 969.4911), (28, 1817.7958)])
def test_eight_gpus_running_decay_while_they_run(world: World, days: int, gpu_hours: float) -> None:
    world.run(world.job(gpus=8), [world.node(8)], at=0)

    assert usage(world, at=days * DAY) == pytest.approx(gpu_hours, abs=1e-4)


def test_eight_gpus_for_ever_reach_their_limit(world: World) -> None:
    world.run(world.job(gpus=8), [world.node(8)], at=0)

    assert usage(world, at=1000 * DAY) == pytest.approx(1938.9821, abs=1e-4)


def test_an_opening_balance_halves_every_half_life(world: World) -> None:
    OpeningBalance.objects.create(
        cluster=world.cluster, tenant=world.tenant("vision"), at_us=world.at(0), gpu_hours=100
    )

    assert usage(world, at=14 * DAY) == pytest.approx(25, abs=1e-6)
    assert usage(world, at=10 * DAY) == pytest.approx(37.1499, abs=1e-4)
    world.policy(half_life=14 * DAY)
    assert usage(world, at=14 * DAY) == pytest.approx(50, abs=1e-6)


def test_another_half_life_recomputes_from_intervals_at_once(world: World) -> None:
    node = world.node(8)
    world.run(world.job(gpus=8), [node], at=0, until=12.5 * HOUR)
    world.policy(half_life=14 * DAY)

    at_once = usage(world, at=14 * DAY)
    world.run(world.job(gpus=8), [node], at=14 * DAY)
    still = usage(world, at=14 * DAY)
    roll_up(world.cluster, until_us=world.at(14 * DAY))
    kept = UsageAccount.objects.get()

    assert at_once == pytest.approx(100 * 2 ** (-1 + 12.5 / 24 / 28), rel=1e-4)
    assert still == pytest.approx(at_once, abs=1e-9)
    assert usage(world, at=14 * DAY) == pytest.approx(at_once, abs=1e-9)
    assert kept.half_life_seconds == 14 * DAY
    assert kept.running == 8


def test_no_decay_is_a_choice_of_its_own(world: World) -> None:
    world.policy(half_life=None)
    world.run(world.job(gpus=8), [world.node(8)], at=0, until=10 * HOUR)

    assert usage(world, at=1000 * DAY) == 80


def test_a_half_life_of_zero_is_refused(world: World) -> None:
    world.policy(half_life=7 * DAY)
    ClusterPolicy.objects.update(half_life_seconds=0)

    with pytest.raises(ValueError, match="longer than 0"):
        decayed_usage(world.cluster, at_us=world.at(0))


def test_a_window_cuts_older_usage_off(world: World) -> None:
    world.policy(half_life=None, window=7 * DAY)
    node = world.node(8)
    OpeningBalance.objects.create(
        cluster=world.cluster, tenant=world.tenant("vision"), at_us=world.at(0), gpu_hours=100
    )
    world.run(world.job(gpus=8), [node], at=0, until=2 * DAY)
    world.run(world.job(gpus=1), [node], at=8 * DAY)

    assert usage(world, at=7 * DAY) == 8 * 48 + 100
    assert usage(world, at=8 * DAY) == 8 * 24
    assert usage(world, at=10 * DAY) == 48


def test_holds_are_never_charged(world: World) -> None:
    gang = world.reserve(world.job(gpus=8), at=0)
    world.hold(gang, 0, world.node(8), at=0)

    assert usage(world, at=DAY) == 0


def test_scavenger_work_and_cheap_pools_count_by_their_factors(world: World) -> None:
    world.policy(half_life=None)
    node = world.node(8)
    world.run(world.job(gpus=2, factor=0.0), [node], at=0)
    world.run(world.job(gpus=2, factor=0.5), [node], at=0)
    world.pool.usage_weight = 0.25
    world.pool.save()

    assert usage(world, at=4 * HOUR) == pytest.approx(2 * 0.5 * 4 * 0.25)


def test_an_instant_in_the_past_is_answered_too(world: World) -> None:
    node = world.node(8)
    world.run(world.job(gpus=8), [node], at=0, until=DAY)
    world.run(world.job(gpus=8), [node], at=9 * DAY)

    assert usage(world, at=DAY) == pytest.approx(182.8001, abs=1e-4)


def test_a_late_end_takes_back_what_was_charged_since(world: World) -> None:
    node = world.node(8)
    late = world.run(world.job("late", gpus=4), [node], at=0)
    world.run(world.job("late", gpus=1), [node], at=2 * DAY, until=3 * DAY)
    world.run(world.job("exact", gpus=4), [node], at=0, until=DAY)
    world.run(world.job("exact", gpus=1), [node], at=2 * DAY, until=3 * DAY)

    world.end(late, at=DAY)

    assert usage(world, "late", at=3 * DAY) == pytest.approx(
        usage(world, "exact", at=3 * DAY), abs=1e-9
    )


def test_an_end_corrected_to_an_earlier_one_is_charged_once(world: World) -> None:
    world.policy(half_life=None)
    attempt = world.run(world.job(gpus=4), [world.node(8)], at=0, until=2 * HOUR)

    world.end(attempt, at=HOUR)
    world.end(attempt, at=HOUR)

    assert usage(world, at=3 * HOUR) == 4


def test_a_drain_under_a_running_member_charges_nothing_twice(world: World) -> None:
    world.policy(half_life=None)
    node = world.node(8)
    attempt = world.run(world.job(gpus=4), [node], at=0)
    world.turn(node, "drained", at=HOUR)
    world.end(attempt, at=2 * HOUR)

    assert usage(world, at=5 * HOUR) == pytest.approx(8)
    assert all(drift.gpu_hours == 0 for drift in rebuild_usage(world.cluster))


def test_clusters_count_together_where_the_installation_says_so(
    world: World, settings: Any
) -> None:
    real, other, virtual = make_world("real"), make_world("other"), world
    for one in (real, other):
        one.cluster.clock_now = None
        one.cluster.save()
    for one in (real, other, virtual):
        one.policy(half_life=None)
        one.run(one.job(gpus=1), [one.node(8)], at=0)

    apart = usage(real, at=HOUR)
    settings.USAGE_SCOPE = "all"

    assert apart == 1
    assert usage(real, at=HOUR) == 2
    assert usage(virtual, at=HOUR) == 1


runs = st.lists(
    st.tuples(
        st.integers(0, 20 * DAY),
        st.none() | st.integers(0, 20 * DAY),
        st.integers(1, 8),
        st.sampled_from(["a", "b"]),
        st.sampled_from([1.0, 0.3, 0.0]),
    ),
    max_size=6,
)


@pytest.mark.django_db
@settings(max_examples=EXAMPLES)
@given(runs=runs, half_life=st.sampled_from([None, HOUR, 7 * DAY]), seed=st.integers(0, 99))
def test_what_is_kept_is_what_intervals_say_in_whatever_order_it_was_told(
    runs: list[Any], half_life: int | None, seed: int
) -> None:
    with transaction.atomic():
        world = make_world("random")
        world.policy(half_life=half_life)
        node = world.node(64)
        ends = []
        random.Random(seed).shuffle(runs)
        for start, length, gpus, tenant, factor in runs:
            attempt = world.run(world.job(tenant, gpus=gpus, factor=factor), [node], at=start)
            if length is not None:
                ends.append((attempt, start + length))
        random.Random(seed + 1).shuffle(ends)
        for attempt, at in ends:
            world.end(attempt, at=at)
        kept = decayed_usage(world.cluster, at_us=world.at(50 * DAY))

        drifts = rebuild_usage(world.cluster)

        assert [drift for drift in drifts if drift.gpu_hours] == []
        assert decayed_usage(world.cluster, at_us=world.at(50 * DAY)) == pytest.approx(
            kept, abs=1e-6
        )
        transaction.set_rollback(True)


def test_rebuild_usage_reports_drift_and_mends_it(world: World) -> None:
    world.run(world.job(gpus=8), [world.node(8)], at=0, until=DAY)
    before = usage(world, at=2 * DAY)
    UsageAccount.objects.update(gpu_hours=1.0)
    first, second = StringIO(), StringIO()

    call_command("rebuild_usage", "--json", "--cluster", "atlas", stdout=first)
    call_command("rebuild_usage", "--json", stdout=second)

    (tenant,) = json.loads(first.getvalue())["clusters"][0]["tenants"]
    assert tenant["tenant"] == "vision"
    assert tenant["drift_gpu_hours"] == pytest.approx(1.0 - 182.8001, abs=1e-4)
    assert json.loads(second.getvalue())["drift_gpu_hours"] == 0
    assert usage(world, at=2 * DAY) == pytest.approx(before, abs=1e-9)


def test_rebuild_usage_says_in_words_what_it_found(world: World) -> None:
    world.run(world.job(gpus=8), [world.node(8)], at=0, until=DAY)
    out = StringIO()

    call_command("rebuild_usage", stdout=out)

    assert "atlas: 1 account, no drift" in out.getvalue()


def test_rebuild_usage_names_a_cluster_it_does_not_know(world: World) -> None:
    from django.core.management import CommandError

    with pytest.raises(CommandError, match="no cluster called nowhere"):
        call_command("rebuild_usage", "--cluster", "nowhere")
