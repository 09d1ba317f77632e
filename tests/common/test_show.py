"""Numbers, durations and instants are written as DESIGN says, and nothing is ever NaN or -0."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from django.template import Context, Template
from hypothesis import given
from hypothesis import strategies as st

from apps.common import show
from apps.common.templatetags import rollcall

THIN = "\u2009"
NOON = datetime(2026, 3, 12, 13, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1234.5"), "$1,234.50"),
        (0, "$0.00"),
        (Fraction(1, 200), "$0.01"),
        (Decimal("-0.001"), "$0.00"),
        (Decimal("-2.5"), "\u2212$2.50"),
    ],
)
def test_money_has_two_decimals_rounded_half_up(value: Any, text: str) -> None:
    assert show.money(value) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (Fraction(9393, 100), "93.93 GPUh"),
        (12_345.6, "12,346 GPUh"),
        (0, "0.00 GPUh"),
        (Fraction(47, 3600), "47 GPU-s"),
        (Fraction(376, 3600), "0.10 GPUh"),
    ],
)
def test_gpu_hours_name_their_unit(hours: Any, text: str) -> None:
    assert show.gpu_hours(hours) == text


@pytest.mark.parametrize(
    ("seconds", "brief", "full"),
    [
        (0, "0 s", "0 s"),
        (47, "47 s", "47 s"),
        (532, "8 min 52 s", "8 min 52 s"),
        (1_800, "30 min", "30 min 00 s"),
        (18_720, "5 h 12 min", "5 h 12 min"),
        (21_720, "6 h 02 min", "6 h 02 min"),
        (230_400, "2 d 16 h", "2 d 16 h"),
        (604_800, "7 d", "7 d 0 h"),
        (59.99, "59 s", "59 s"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, brief: str, full: str) -> None:
    assert show.duration(seconds) == brief
    assert show.duration(timedelta(seconds=seconds), full=True) == full


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(158, 1000), f"15.8{THIN}%"),
        (0, f"0.0{THIN}%"),
        (0.0001, f"< 0.1{THIN}%"),
        (1, f"100.0{THIN}%"),
    ],
)
def test_percent_has_a_thin_space_and_a_floor(value: Any, text: str) -> None:
    assert show.percent(value) == text


def test_a_ratio_and_a_count_read_as_words() -> None:
    assert show.ratio(1.3) == "1.30×"
    assert show.counted(1, "job") == "1 job"
    assert show.counted(1_234, "job") == "1,234 jobs"


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
def test_no_number_is_written_as_minus_zero_or_with_a_hyphen(value: float) -> None:
    for text in (show.money(value), show.whole(value), show.ratio(value), show.gpu_hours(value)):
        assert "-" not in text.replace("GPU-s", "")
        assert text.strip("\u2212$0.,× GPUhs-") or not text.startswith("\u2212")


@pytest.mark.parametrize("value", [None, "", float("nan"), float("inf"), Decimal("NaN")])
@pytest.mark.parametrize(
    "tag", ["money", "gpuh", "duration", "brief", "percent", "ratio", "whole", "number"]
)
def test_what_is_not_there_is_a_dash_with_its_reason(tag: str, value: Any) -> None:
    html = Template("{% load rollcall %}{{ v|" + tag + ':"because" }}').render(
        Context({"v": value})
    )

    assert "–" in html
    assert 'title="because"' in html
    assert not any(word in html for word in ("None", "nan", "NaN", "inf"))


def test_an_instant_names_its_day_only_where_it_is_another(settings: Any) -> None:
    settings.REPORT_ZONE = "Europe/Zurich"

    assert show.instant(NOON, now=NOON) == "14:05"
    assert show.instant(NOON, now=NOON, style="stamp") == "14:05:12 CET"
    assert show.instant(NOON, now=NOON + timedelta(days=1)) == "Thu 12 Mar 14:05"
    assert show.instant(NOON, now=NOON + timedelta(days=400)) == "Thu 12 Mar 2026 14:05"
    assert show.iso(NOON) == "2026-03-12T14:05:12+01:00"
    assert show.zone_words(NOON) == "Europe/Zurich (CET, UTC+1)"


def test_a_zone_without_a_name_and_off_the_hour_is_told_by_its_offset(settings: Any) -> None:
    settings.REPORT_ZONE = "Asia/Kathmandu"

    assert show.zone_words(NOON) == "Asia/Kathmandu (UTC+5:45)"


def test_an_instant_is_a_time_element_with_its_zone(settings: Any) -> None:
    settings.REPORT_ZONE = "UTC"

    html = Template("{% load rollcall %}{% when at %}").render(Context({"at": NOON, "now": NOON}))

    assert html == (
        '<time datetime="2026-03-12T13:05:12+00:00" title="2026-03-12T13:05:12+00:00">13:05</time>'
    )
    assert "not yet" in Template("{% load rollcall %}{% when at %}").render(Context({"at": None}))


@pytest.mark.parametrize("name", ["<b>bold</b>", "שלום", "x" * 10_000, "  spaces  ", "🐘", '"&'])
def test_any_name_is_isolated_escaped_cut_and_whole_in_its_title(name: str) -> None:
    html = Template("{% load rollcall %}{% name n %}").render(Context({"n": name}))

    shown = html.partition(">")[2].removesuffix("</bdi>")
    assert html.startswith("<bdi")
    assert "<b>" not in html
    assert len(shown) <= 48 * len("&quot;")
    assert ("title=" in html) == (len(name) > 48)


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    told = rollcall.unbroken("runs on 8 GPUs for 2 h 05 min, after 3 days")

    assert told == "runs on 8\xa0GPUs for 2\xa0h 05\xa0min, after 3 days"


def test_a_name_of_blanks_is_said_to_be_none() -> None:
    assert show.spoken("   ") == "(no name)"
