"""Mean GPUs of each whole hour by state, from the roll-ups: one query for all clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from zoneinfo import ZoneInfo

from django.db.models import F, Sum

from apps.backends.models import Pool
from apps.common import show
from apps.common.time import HOUR_US
from apps.console import charts, ranges
from apps.console.charts import Column, Figure
from apps.console.palette import STATES
from apps.console.ranges import Bucket
from apps.ledger.models import RollUp

HOURS = 24


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour: physical GPUs by state, exact means."""

    bar: Bucket
    gpus: dict[str, Fraction]

    def text(self, state: str) -> str:
        """Return a state's mean as a table writes it."""
        return show.decimals(self.gpus[state], 1)

    def total(self, states: Sequence[str]) -> Fraction:
        """Return the sum of some states."""
        return sum((self.gpus[state] for state in states), Fraction(0))


def hours_of(pools: Sequence[Pool], *, now_us: int, zone: ZoneInfo) -> list[Hour]:
    """Return the last 24 whole hours before the present one, as far as they are rolled up."""
    since, until = ranges.hours_before(now_us, HOURS)
    fractions = {
        pool.pk: Fraction(pool.fraction_numerator, pool.fraction_denominator) for pool in pools
    }
    rows = (
        RollUp.objects.filter(
            pool__in=list(fractions),
            quarter_us__gte=since,
            quarter_us__lt=until,
            state__in=list(STATES),
        )
        .annotate(hour=F("quarter_us") - (F("quarter_us") - since) % HOUR_US)
        .order_by()
        .values_list("hour", "pool_id", "state")
        .annotate(total=Sum("gpu_us"))
    )
    sums: dict[tuple[int, str], Fraction] = {}
    for hour, pool_id, state, total in rows:
        key = (int(hour), state)
        sums[key] = sums.get(key, Fraction(0)) + int(total) * fractions[pool_id] / HOUR_US
    if not sums:
        return []
    bars = _bars(since, until, zone)
    return [
        Hour(bar, {state: sums.get((bar.since_us, state), Fraction(0)) for state in STATES})
        for bar in bars
    ]


def _bars(since: int, until: int, zone: ZoneInfo) -> list[Bucket]:
    """Cut the span into UTC hours, whatever minutes the zone's hours start at."""
    return [
        Bucket(
            start,
            start + HOUR_US,
            ranges.label_of(start, start + HOUR_US, zone),
            _tick(start, zone),
        )
        for start in range(since, until, HOUR_US)
    ]


def _tick(start_us: int, zone: ZoneInfo) -> str:
    local = ranges.local(start_us, zone)
    return f"{local:%H:%M}" if local.hour % 4 == 1 else ""


def figure_of(hours: Sequence[Hour], states: Sequence[str]) -> Figure:
    """Draw the hours' means, stacked."""
    columns = [
        Column(
            hour.bar.label,
            hour.bar.tick,
            {state: float(hour.gpus[state]) for state in states},
            {state: f"{hour.text(state)} GPUs" for state in states},
            f"{show.decimals(hour.total(states), 1)} GPUs",
        )
        for hour in hours
    ]
    return charts.stacked(columns, states, axis_title="")
