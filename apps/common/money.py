"""Money and shares: exact inside, rounded once at the total, shown parts that add up to it.

An amount is a Fraction of the currency's unit. A price is an integer: millionths of the currency
per GPU-hour of a *physical* GPU. A pool's unit may be a part of a GPU (a MIG slice, one of ten
replicas), so money = units × fraction × time × price: one share of ten for 1 h is 0.1 GPUh, and
costs a tenth of the pool's price. How amounts are written is in ``show``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from apps.common.time import HOUR_US

MICROS = 1_000_000
HALF = Fraction(1, 2)
CENTS, TENTHS = 2, 1


def gpu_hours_of(gpu_us: int, fraction: Fraction = Fraction(1)) -> Fraction:
    """Return GPU-hours of physical GPUs; ``gpu_us`` counts pool units of ``fraction`` of one."""
    return gpu_us * fraction / HOUR_US


def cost_of(gpu_us: int, micros_per_gpu_hour: int, fraction: Fraction = Fraction(1)) -> Fraction:
    """Return what GPU-microseconds cost, exactly."""
    return gpu_hours_of(gpu_us, fraction) * micros_per_gpu_hour / MICROS


def steps(decimals: int) -> int:
    """Return how many units of the last decimal one is."""
    return int(10**decimals)


def round_half_up(value: Fraction, decimals: int = 0) -> int:
    """Return a value in units of the last decimal, rounded half up."""
    return math.floor(value * steps(decimals) + HALF)


def round_cents(amount: Fraction) -> int:
    """Return an amount in cents, rounded half up: the one rounding, at the total."""
    return round_half_up(amount, CENTS)


def apportion(parts: Sequence[Fraction], total: int | None = None) -> list[int]:
    """Return integers beside the parts that add up to ``total``, by largest remainder.

    ``total`` None is the sum rounded half up. Equal remainders go to the earlier part. A part of
    zero stays zero; where the total is not within a unit a part of the sum, the largest part
    takes the rest.
    """
    if total is None:
        total = round_half_up(sum(parts, Fraction(0)))
    shown = [math.floor(part) for part in parts]
    missing = total - sum(shown)
    order = sorted(range(len(parts)), key=lambda i: (shown[i] - parts[i], i))
    open_parts = [i for i in order if parts[i] != shown[i]]
    for i in open_parts[: max(missing, 0)]:
        shown[i] += 1
    rest = total - sum(shown)
    if rest and parts:
        shown[max(range(len(parts)), key=lambda i: (parts[i], -i))] += rest
    return shown


def apportion_table(
    columns: Sequence[Sequence[Fraction]], totals: Sequence[int]
) -> list[list[int]]:
    """Return integers beside the cells, so that each column adds up to its total.

    What a row gained or lost by rounding is carried into its next cell, so that the row's sum
    stays near the exact one. A cell of zero stays zero.
    """
    carried = [Fraction(0)] * max((len(column) for column in columns), default=0)
    table = []
    for column, total in zip(columns, totals, strict=True):
        wanted = [
            max(cell + carried[i], Fraction(0)) if cell else Fraction(0)
            for i, cell in enumerate(column)
        ]
        shown = apportion(wanted, total)
        for i, cell in enumerate(column):
            carried[i] += cell - shown[i]
        table.append(shown)
    return table


def scaled(units: int, decimals: int) -> Decimal:
    """Return units of the last decimal as a Decimal: 1234 at 2 is 12.34; never -0."""
    return Decimal(units).scaleb(-decimals)
