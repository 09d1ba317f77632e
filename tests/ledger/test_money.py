"""Money is exact inside, rounded once, and shown parts add up to the shown total."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.common.money import (
    apportion,
    apportion_table,
    cost_of,
    gpu_hours_of,
    round_cents,
    round_half_up,
    scaled,
)

HOUR = 3_600_000_000
DOLLARS = 1_000_000


def test_a_half_cent_goes_up() -> None:
    assert round_cents(Fraction("0.005")) == 1
    assert round_cents(Fraction("0.004999")) == 0
    assert round_cents(Fraction("-0.005")) == 0
    assert str(scaled(0, 2)) == "0.00"


def test_a_gpu_hour_costs_its_price() -> None:
    assert cost_of(HOUR, 2_500_000) == Fraction("2.5")
    assert cost_of(1, 1) == Fraction(1, HOUR * DOLLARS)


@pytest.mark.parametrize(
    ("slices", "hours"), [([1] * 7, 1), ([3, 2, 2], 1), ([3, 3], Fraction(6, 7))]
)
def test_mig_slices_are_sevenths(slices: list[int], hours: Fraction) -> None:
    assert sum(gpu_hours_of(one * HOUR, Fraction(1, 7)) for one in slices) == hours


def test_one_share_of_ten_for_an_hour_is_a_tenth_of_a_gpu_hour() -> None:
    assert gpu_hours_of(HOUR, Fraction(1, 10)) == Fraction("0.1")
    assert gpu_hours_of(80 * HOUR, Fraction(1, 10)) == 8
    assert cost_of(HOUR, 2_500_000, Fraction(1, 10)) == Fraction("0.25")


def test_thirds_are_apportioned_by_largest_remainder_then_by_order() -> None:
    third = Fraction(100, 3)

    assert apportion([third] * 3) == [34, 33, 33]
    assert apportion([Fraction("1.2"), Fraction("2.7"), Fraction("0.1")]) == [1, 3, 0]
    assert apportion([Fraction(0), Fraction("0.5")]) == [0, 1]
    assert apportion([]) == []


amounts = st.fractions(min_value=0, max_value=1000, max_denominator=97)


@given(parts=st.lists(amounts, min_size=1, max_size=8))
def test_apportioned_parts_add_up_and_are_within_one(parts: list[Fraction]) -> None:
    shown = apportion(parts)

    assert sum(shown) == round_half_up(sum(parts, Fraction(0)))
    assert all(abs(one - part) < 1 for one, part in zip(shown, parts, strict=True))
    assert all(one == 0 for one, part in zip(shown, parts, strict=True) if part == 0)


@given(st.data())
def test_a_table_adds_up_down_each_column_and_zeros_stay_zero(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    cell = st.just(Fraction(0)) | amounts
    columns = [data.draw(st.lists(cell, min_size=height, max_size=height)) for _ in range(width)]
    totals = apportion([sum(column, Fraction(0)) for column in columns])

    table = apportion_table(columns, totals)

    assert [sum(column) for column in table] == totals
    for column, shown in zip(columns, table, strict=True):
        assert all(one == 0 for one, exact in zip(shown, column, strict=True) if exact == 0)
    for row in range(height):
        exact = sum((column[row] for column in columns), Fraction(0))
        assert abs(sum(shown[row] for shown in table) - exact) < width + 1


def test_a_rows_roundings_do_not_pile_up() -> None:
    columns = [[Fraction("0.4"), Fraction("0.6")] for _ in range(5)]

    table = apportion_table(columns, [1] * 5)

    assert [sum(shown[row] for shown in table) for row in (0, 1)] == [2, 3]
