"""Ranges: periods of the report zone, their neighbours, and the buckets of figures."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from apps.common.errors import Invalid
from apps.common.time import HOUR_US, to_us
from apps.console import ranges

ZURICH = ZoneInfo("Europe/Zurich")
NEW_YORK = ZoneInfo("America/New_York")
NOW = to_us(datetime(2026, 3, 12, 13, 5, 12, tzinfo=UTC))


def test_a_week_without_a_start_is_the_seven_whole_days_before_today():
    span = ranges.period("week", now_us=NOW, zone=ZURICH)

    assert (span.first, span.last) == (date(2026, 3, 5), date(2026, 3, 11))
    assert span.length_us == 7 * 24 * HOUR_US
    assert (span.earlier, span.later) == (date(2026, 2, 26), date(2026, 3, 12))


def test_a_period_that_goes_on_ends_now_and_has_no_later_one():
    span = ranges.period("month", now_us=NOW, zone=ZURICH, start=date(2026, 3, 9))

    assert span.first == date(2026, 3, 1)
    assert span.until_us == NOW
    assert span.later is None


def test_months_step_over_the_end_of_a_year():
    span = ranges.period("month", now_us=NOW, zone=ZURICH, start=date(2026, 1, 1))

    assert (span.earlier, span.last, span.later) == (
        date(2025, 12, 1),
        date(2026, 1, 31),
        date(2026, 2, 1),
    )


@pytest.mark.parametrize(("day", "hours"), [(date(2026, 3, 8), 23), (date(2026, 3, 9), 24)])
def test_a_day_has_as_many_hours_as_the_zone_gives_it(day, hours):
    span = ranges.period("day", now_us=NOW, zone=NEW_YORK, start=day)

    bars = ranges.buckets(span.since_us, span.until_us, NEW_YORK)

    assert span.length_us == hours * HOUR_US
    assert len(bars) == hours


@pytest.mark.parametrize("seconds", [0, 12])
def test_an_hour_is_cut_into_minutes(seconds):
    until = to_us(datetime(2026, 3, 12, 13, 5, seconds, tzinfo=UTC))

    bars = ranges.buckets(until - HOUR_US, until, ZURICH)

    assert len(bars) == (61 if seconds else 60)
    assert [bars[0].since_us, bars[-1].until_us] == [until - HOUR_US, until]
    assert all(bar.since_us % ranges.MINUTE_US == 0 for bar in bars[1:])
    assert [bar.tick for bar in bars if bar.tick] == [
        "13:10", "13:20", "13:30", "13:40", "13:50", "14:00"
    ]  # fmt: skip
    assert bars[1].label.startswith("Thu 12 Mar 13:06 – 13:07")
    assert ranges.step_words(until - HOUR_US, until) == "minute"


def test_an_hour_that_comes_twice_is_two_bars_with_different_labels():
    now = to_us(datetime(2026, 11, 5, tzinfo=UTC))
    span = ranges.period("day", now_us=now, zone=NEW_YORK, start=date(2026, 11, 1))

    bars = ranges.buckets(span.since_us, span.until_us, NEW_YORK)

    assert len(bars) == 25
    assert len({bar.label for bar in bars}) == 25


@pytest.mark.parametrize(
    ("name", "start", "count", "words"),
    [
        ("day", "2026-03-10", 24, "hour"),
        ("week", "2026-03-05", 42, "4 hours"),
        ("month", "2026-02-01", 28, "day"),
    ],
)
def test_buckets_cover_a_period_without_a_gap(name, start, count, words):
    span = ranges.period(name, now_us=NOW, zone=ZURICH, start=date.fromisoformat(start))

    bars = ranges.buckets(span.since_us, span.until_us, ZURICH)

    assert len(bars) == count
    assert ranges.step_words(span.since_us, span.until_us) == words
    assert [bar.since_us for bar in bars] == [
        span.since_us,
        *(bar.until_us for bar in bars[:-1]),
    ]
    assert bars[-1].until_us == span.until_us
    assert any(bar.tick for bar in bars)


def test_a_year_is_cut_into_weeks_that_start_on_monday():
    span = ranges.custom("2025-03-12", "2026-03-11", now_us=NOW, zone=ZURICH)

    bars = ranges.buckets(span.since_us, span.until_us, ZURICH)

    assert 52 <= len(bars) <= 54
    assert ranges.day_of(bars[1].since_us, ZURICH).weekday() == 0


def test_a_label_names_day_hours_and_zone():
    span = ranges.period("week", now_us=NOW, zone=ZURICH)

    labels = [bar.label for bar in ranges.buckets(span.since_us, span.until_us, ZURICH)]

    assert "Sun 8 Mar 08:00 – 12:00 CET" in labels
    assert "Sun 8 Mar 20:00 – 24:00 CET" in labels


@pytest.mark.parametrize(
    ("first", "last", "field"),
    [
        ("2026-03-32", "2026-04-01", "from"),
        ("2026-03-05", "tomorrow", "to"),
        ("2026-03-05", "2026-03-04", "to"),
        ("2026-03-13", "2026-03-14", "from"),
        ("1980-01-02", "2026-03-04", "to"),
        ("0001-01-01", "2026-03-04", "from"),
        ("2026-03-05", "9999-12-31", "to"),
    ],
)
def test_a_custom_range_that_cannot_be_names_its_field(first, last, field):
    with pytest.raises(Invalid) as refused:
        ranges.custom(first, last, now_us=NOW, zone=ZURICH)

    assert refused.value.field == field


@pytest.mark.parametrize("make", [ranges.relative, ranges.period])
def test_an_unknown_range_is_named(make):
    with pytest.raises(Invalid, match="fortnight"):
        make("fortnight", now_us=NOW, zone=ZURICH)


def test_a_relative_range_ends_now():
    span = ranges.relative("24h", now_us=NOW, zone=ZURICH)

    assert span.until_us == NOW
    assert span.length_us == 24 * HOUR_US
    assert (span.first, span.last) == (date(2026, 3, 11), date(2026, 3, 12))
