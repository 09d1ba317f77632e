"""The five parts of a range: golden numbers, and shown texts that add up to the shown total."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.backends.models import Pool
from apps.common.time import to_us
from apps.ledger import intervals
from apps.ledger.reports import FIVE, Report
from apps.ledger.rollup import reprice, roll_up
from apps.ledger.selectors import (
    buckets,
    five_parts,
    gpus_now,
    held_idle_longest,
    job_cost,
    price_at,
    price_changes,
)
from apps.ledger.sweep import STATES
from tests.ledger.build import HOUR, World, make_world
from tests.ledger.test_rollup import EXAMPLES, SPAN, instants, play, stories

NEW_YORK = ZoneInfo("America/New_York")


def report(world: World, until: float, since: float = 0, **options: Any) -> Report:
    world.cluster.observed_at = world.when(until)
    return five_parts([world.cluster], world.at(since), world.at(until), **options)


def money(text: str) -> Decimal:
    return Decimal(text.replace("$", "").replace(",", ""))


def added(texts: Iterable[str]) -> Decimal:
    return sum((money(text) for text in texts if text != "no price"), Decimal(0))


def test_the_golden_pool(world: World) -> None:
    world.price(2.5)
    world.run(world.job(gpus=5), [world.node(8)], at=0, until=10 * HOUR)

    result = report(world, 10 * HOUR)

    assert result.total.money_text == "$200.00"
    assert result.five["busy"].shown.money_text == "$125.00"
    assert result.not_working.shown.money_text == "$75.00"
    assert result.not_working.percent == Decimal("37.5")
    assert result.adds_up()


def test_the_golden_price_change(world: World) -> None:
    world.price(4)
    changed = world.price(5, at=2 * HOUR)
    job = world.job(gpus=1)
    world.run(job, [world.node(1)], at=0, until=4 * HOUR)
    world.cluster.observed_at = world.when(4 * HOUR)

    assert report(world, 4 * HOUR).total.money_text == "$18.00"
    assert [row.total.money for row in report(world, 4 * HOUR).by_price] == [8, 10]
    assert job_cost(job).total.money == 18
    assert price_changes([world.cluster], world.at(0), world.at(4 * HOUR)) == [changed]
    assert price_at(world.pool, world.at(2 * HOUR)) == changed


def test_the_golden_share_of_a_replicated_gpu(db: Any) -> None:
    world = make_world(fraction="1/10")
    world.price(2.5)
    job = world.job(gpus=1)
    world.run(job, [world.node(80)], at=0, until=HOUR)

    result = report(world, HOUR)

    assert result.total.gpu_hours_text == "8.00"
    assert result.five["busy"].amount.gpu_hours == Fraction("0.1")
    assert result.total.money_text == "$20.00"
    assert job_cost(job).run.money == Fraction("0.25")


@pytest.mark.parametrize(("day", "gpu_hours"), [(date(2026, 3, 8), 184), (date(2026, 11, 1), 200)])
def test_a_day_of_new_york_may_have_23_or_25_hours(db: Any, day: date, gpu_hours: int) -> None:
    start = datetime(day.year, day.month, day.day, tzinfo=NEW_YORK)
    end = datetime(day.year, day.month, day.day + 1, tzinfo=NEW_YORK)
    world = make_world(start=datetime(day.year, day.month, day.day, tzinfo=UTC))
    world.run(world.job(gpus=8), [world.node(8)], at=0)
    world.cluster.observed_at = datetime(day.year, 12, 1, tzinfo=UTC)
    roll_up(world.cluster, until_us=to_us(end) + 10 * 3_600_000_000)

    result = five_parts([world.cluster], to_us(start), to_us(end))

    assert result.five["busy"].amount.gpu_hours == gpu_hours


@pytest.mark.parametrize(("zone", "split"), [("UTC", (32, 32)), ("America/New_York", (64, 0))])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_night_between_months_belongs_to_them_as_the_zone_says(
    db: Any, zone: str, split: tuple[int, int], rolled: bool
) -> None:
    world = make_world(start=datetime(2026, 1, 31, 20, tzinfo=UTC))
    world.run(world.job(gpus=8), [world.node(8)], at=0, until=8 * HOUR)
    world.cluster.observed_at = world.when(30 * HOUR)
    if rolled:
        roll_up(world.cluster, until_us=world.at(30 * HOUR))
    edges = [to_us(datetime(2026, month, 1, tzinfo=ZoneInfo(zone))) for month in (1, 2, 3)]

    hours = tuple(
        five_parts([world.cluster], since, until).five["busy"].amount.gpu_hours
        for since, until in ((edges[0], edges[1]), (edges[1], edges[2]))
    )

    assert hours == split


def test_what_nobody_held_has_rows_of_its_own(world: World) -> None:
    world.price(2.5)
    up, down = world.node(8), world.node(8)
    world.turn(down, "down", at=0)
    nlp = world.tenant("nlp")
    world.tenant("alignment", nlp)
    world.run(world.job("nlp/alignment", gpus=2), [up], at=0)
    world.run(world.job("vision", gpus=1), [up], at=0)

    result = report(world, HOUR)

    assert [(row.key, row.total.money) for row in result.by_tenant] == [
        (nlp.pk, 5),
        (world.tenant("vision").pk, Decimal("2.5")),
    ]
    assert {row.key: row.total.money for row in result.nobody} == {
        "unallocated": Decimal("12.50"),
        "unavailable": 20,
    }


def test_a_lead_sees_its_own_tenants_and_the_others_as_one(world: World) -> None:
    node = world.node(8)
    for name in ("nlp", "vision", "bio"):
        world.run(world.job(name, gpus=2), [node], at=0)
    mine = world.tenant("nlp")

    rows = report(world, HOUR, tenants=[mine]).by_tenant

    assert [(row.key, row.amount.gpu_hours) for row in rows] == [(mine.pk, 2), (None, 4)]


def test_no_price_is_never_zero(world: World) -> None:
    world.node(8)

    result = report(world, HOUR)

    assert result.total.money_text == "no price"
    assert result.parts["free"].shown.money_text == "no price"
    assert result.total.gpu_hours_text == "8.00"
    assert result.adds_up()


def test_a_range_before_the_first_look_is_not_observed(world: World) -> None:
    world.node(8)

    result = report(world, 2 * HOUR, since=-HOUR)

    assert result.since_us == world.at(0)
    assert result.amount.gpu_hours == 16


def test_nothing_at_all_is_shown_as_zero(world: World) -> None:
    result = report(world, 0)

    assert result.total.gpu_hours_text == "0.00"
    assert [part.tenths for part in result.parts.values()] == [0] * 7
    assert result.adds_up()


def test_a_gap_between_looks_is_marked_assumed(world: World) -> None:
    world.price(2.5)
    world.node(8)
    intervals.mark_gap(world.cluster, since_us=world.at(HOUR), until_us=world.at(3 * HOUR))

    result = report(world, 4 * HOUR)

    assert result.assumed.gpu_hours == 16
    assert result.amount.gpu_hours == 32
    assert result.adds_up()


def test_one_pool_can_be_asked_for(world: World) -> None:
    world.node(8)
    other = Pool.objects.create(cluster=world.cluster, name="a100")
    world.node(4, pool=other)

    assert report(world, HOUR, pool=other).amount.gpu_hours == 4
    assert [row.key for row in report(world, HOUR).by_pool] == [world.pool.pk, other.pk]


def test_two_clusters_are_one_report(world: World) -> None:
    cedar = make_world("cedar")
    for one in (world, cedar):
        one.node(8)
        one.cluster.observed_at = one.when(HOUR)

    result = five_parts([world.cluster, cedar.cluster], world.at(0), world.at(HOUR))

    assert result.amount.gpu_hours == 16
    assert result.adds_up()


def test_what_gpus_do_now(world: World) -> None:
    world.price(2.5)
    node = world.node(8)
    attempt = world.run(world.job(gpus=5), [node], at=0)
    intervals.set_marks(
        world.cluster, at_us=world.at(10), held_idle={attempt.pk: 2}, stranded={node.pk: 1}
    )
    world.cluster.observed_at = world.when(20)

    (now,) = gpus_now(world.cluster)

    assert now.gpus == dict.fromkeys(STATES, 0) | {
        "busy": 3,
        "held_idle": 2,
        "stranded": 1,
        "free": 2,
    }
    assert now.total == 8
    assert now.per_hour() == 20
    assert now.per_hour("held_idle") == 5


def test_the_jobs_held_idle_longest(world: World) -> None:
    world.price(2.5)
    node = world.node(8)
    first, second = world.job("a", gpus=2), world.job("b", gpus=1)
    attempts = [world.run(job, [node], at=0) for job in (first, second)]
    marks = {attempt.pk: gpus for attempt, gpus in zip(attempts, (2, 1), strict=True)}
    intervals.set_marks(world.cluster, at_us=world.at(HOUR), held_idle=marks, stranded={})
    world.end(attempts[0], at=3 * HOUR)
    world.cluster.observed_at = world.when(4 * HOUR)

    rows = held_idle_longest([world.cluster], world.at(0), world.at(4 * HOUR))

    assert [(row.job_id, row.amount.gpu_hours, row.until_us) for row in rows] == [
        (first.pk, 4, world.at(3 * HOUR)),
        (second.pk, 3, None),
    ]
    assert rows[0].since_us == world.at(HOUR)
    assert job_cost(first).held_idle.money == 10
    assert job_cost(first).run.money == 15


@pytest.mark.django_db
@settings(max_examples=EXAMPLES)
@given(
    story=stories(),
    cents=st.integers(1, 999),
    cuts=st.lists(instants, max_size=4),
    fraction=st.sampled_from(["1/1", "3/7", "1/10"]),
)
def test_shown_texts_add_up_to_the_shown_total(
    story: dict[str, Any], cents: int, cuts: list[int], fraction: str
) -> None:
    with transaction.atomic():
        world = play(story, looks=[SPAN // 2])
        reprice(world.price(cents / 100))
        numerator, denominator = map(int, fraction.split("/"))
        Pool.objects.filter(pk=world.pool.pk).update(
            fraction_numerator=numerator, fraction_denominator=denominator
        )

        result = report(world, SPAN)

        total = result.total
        whole_us = sum(story["nodes"]) * SPAN
        assert result.amount.gpu_hours == Fraction(whole_us, HOUR) * Fraction(fraction)
        if not story["prices"]:
            exact = result.amount.gpu_hours * Fraction(cents, 100)
            assert money(total.money_text) == Decimal(int(exact * 100 + Fraction(1, 2))) / 100
        for columns in (
            [part.shown for part in result.parts.values()],
            [result.five[name].shown for name in FIVE],
            [result.five["busy"].shown, result.not_working.shown],
            [row.total for row in result.by_price],
            [row.total for row in result.by_pool],
            [row.total for row in result.by_tenant] + [row.total for row in result.nobody],
        ):
            assert added(cell.money_text for cell in columns) == money(total.money_text)
            assert added(cell.gpu_hours_text for cell in columns) == money(total.gpu_hours_text)
        assert sum(part.percent for part in result.parts.values()) == 100
        assert result.adds_up()

        edges = sorted({world.at(0), world.at(SPAN), *(world.at(cut) for cut in cuts)})
        rows = result.over_time(buckets([world.cluster], edges))
        for state in STATES:
            assert sum(row.cells[state].gpu_hours for row in rows) == (
                result.parts[state].shown.gpu_hours
            )
            assert sum(row.cells[state].money or 0 for row in rows) == (
                result.parts[state].shown.money or 0
            )
        transaction.set_rollback(True)
