"""Evictions over time: how many, and the GPU-hours they lost, by mode, for figure and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Case, Count, IntegerField, Q, QuerySet, Sum, Value, When
from django.db.models.functions import TruncDate, TruncHour

from apps.backends.models import Pool
from apps.common import show
from apps.common.money import (
    MICROS,
    apportion,
    apportion_table,
    gpu_hours_of,
    round_half_up,
    scaled,
    steps,
)
from apps.common.time import DAY_US, HOUR_US, from_us, to_us
from apps.console import charts, ranges
from apps.console.charts import Column, Figure
from apps.console.palette import MODES
from apps.console.people import Viewer
from apps.console.ranges import Bucket, Span
from apps.jobs.eviction_facts import fraction_of
from apps.jobs.models import Eviction
from apps.ledger.reports import MANY_GPU_HOURS, Amount

LABELLED = 8  # up to so many bars each has its name and its sum
EACH = 5


@dataclass(frozen=True, slots=True)
class Group:
    """Evictions alike: of one bar, mode and outcome; ``own``: the victim is the reader's."""

    start_us: int
    mode: str
    outcome: str
    own: bool
    count: int
    amount: Amount


def by_day(span: Span) -> bool:
    """Return whether a bar is a day; else it is an hour."""
    return span.length_us > 2 * DAY_US


def groups_of(
    rows: QuerySet[Eviction], span: Span, pools: Sequence[Pool], viewer: Viewer, zone: ZoneInfo
) -> list[Group]:
    """Count evictions and sum what they lost, by bar, mode, outcome and whose they were; one query."""
    fractions = {pool.pk: fraction_of(pool) for pool in pools}
    bar = TruncDate("at", tzinfo=zone) if by_day(span) else TruncHour("at", tzinfo=UTC)
    found = (
        rows.order_by()
        .annotate(bar=bar, own=_own(viewer))
        .values_list("bar", "mode", "outcome", "own", "job__pool_id")
        .annotate(
            many=Count("pk"),
            lost=Sum("lost_gpu_us"),
            money=Sum("lost_micros"),
            unpriced=Sum("lost_gpu_us", filter=Q(lost_micros__isnull=True)),
        )
    )
    return [
        Group(
            _start(start, zone),
            mode,
            outcome,
            bool(own),
            count,
            Amount(
                gpu_hours_of(int(lost or 0), fractions[pool]),
                Fraction(int(money or 0), MICROS),
                gpu_hours_of(int(unpriced or 0), fractions[pool]),
            ),
        )
        for start, mode, outcome, own, pool, count, lost, money, unpriced in found
    ]


def _own(viewer: Viewer) -> Any:
    if viewer.is_admin:
        return Value(1, output_field=IntegerField())
    mine = When(viewer.own("job__tenant__"), then=Value(1))
    return Case(mine, default=Value(0), output_field=IntegerField())


def _start(value: date | datetime, zone: ZoneInfo) -> int:
    return to_us(value) if isinstance(value, datetime) else ranges.midnight_us(value, zone)


@dataclass(slots=True)
class Bar:
    """One bar: when, how many evictions, and the GPU-hours lost by mode."""

    bucket: Bucket
    count: int = 0
    lost: dict[str, Fraction] = field(default_factory=lambda: dict.fromkeys(MODES, Fraction(0)))
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))

    @property
    def total(self) -> Fraction:
        """Return the GPU-hours of all modes."""
        return sum(self.lost.values(), Fraction(0))


def bars_of(groups: Sequence[Group], span: Span, zone: ZoneInfo) -> list[Bar]:
    """Return the bars of a span, the oldest first, empty ones included."""
    bars = {start: Bar(bucket) for start, bucket in _buckets(span, zone)}
    for group in groups:
        bar = bars[group.start_us]
        bar.count += group.count
        bar.counts[group.mode] += group.count
        bar.lost[group.mode] += group.amount.gpu_hours
    return list(bars.values())


def _buckets(span: Span, zone: ZoneInfo) -> list[tuple[int, Bucket]]:
    """Return each bar's own start, which may lie before the span's, and its bucket."""
    if by_day(span):
        days = [span.first + timedelta(days=k) for k in range((span.last - span.first).days + 1)]
        edges = [ranges.midnight_us(day, zone) for day in [*days, span.last + timedelta(days=1)]]
    else:
        first = span.since_us - span.since_us % HOUR_US
        edges = list(range(first, span.until_us + HOUR_US, HOUR_US))
    bars = [(start, end) for start, end in pairwise(edges) if start < span.until_us]
    return [
        (start, _bucket(max(start, span.since_us), min(end, span.until_us), k, len(bars), zone))
        for k, (start, end) in enumerate(bars)
    ]


def _bucket(start_us: int, end_us: int, place: int, many: int, zone: ZoneInfo) -> Bucket:
    local = from_us(start_us).astimezone(zone)
    label = ranges.label_of(start_us, end_us, zone)
    if many <= LABELLED:
        return Bucket(start_us, end_us, label, f"{local:%a}<br>{local.day}")
    last = many - 1 - place
    tick = f"{local:%H:%M}" if many <= 26 else f"{local.day} {local:%b}"
    return Bucket(start_us, end_us, label, "" if last % EACH else tick)


# The figure, and the table beside it -----------------------------------------------------------------


def shown_modes(bars: Sequence[Bar]) -> list[str]:
    """Return the modes that occur; the two usual ones always."""
    usual = {"kill", "checkpoint"}
    return [mode for mode in MODES if mode in usual or any(bar.counts[mode] for bar in bars)]


def figure_of(bars: Sequence[Bar], modes: Sequence[str]) -> Figure:
    """Draw the GPU-hours lost, stacked by mode, with how many evictions there were."""
    few = len(bars) <= LABELLED
    columns = [
        Column(
            bar.bucket.label,
            f"{bar.bucket.tick} · {show.whole(bar.count)}" if few else bar.bucket.tick,
            {mode: float(bar.lost[mode]) for mode in modes},
            {mode: _words(bar.lost[mode], bar.counts[mode]) for mode in modes},
            _words(bar.total, bar.count),
        )
        for bar in bars
    ]
    sums = [_sum(bar.total) for bar in bars] if few else []
    return charts.stacked(columns, modes, axis_title="", known=MODES, sums=sums)


def _sum(lost: Fraction) -> str:
    """Write what stands above a bar; a little is not nothing."""
    if not lost:
        return ""
    return show.decimals(lost, 1) if lost >= Fraction(1, 20) else "< 0.1"


def _words(lost: Fraction, count: int) -> str:
    return f"{show.decimals(lost, 2)} GPUh · {show.counted(count, 'eviction')}"


@dataclass(frozen=True, slots=True)
class TableLine:
    """A bar as a line of the table: cells by mode, apportioned so that columns add up as shown."""

    label: str
    count: str
    cells: tuple[str, ...]
    total: str


def table_of(bars: Sequence[Bar], modes: Sequence[str]) -> tuple[list[TableLine], TableLine]:
    """Return the lines of the table, and its last line, the total."""
    by_mode = [sum((bar.lost[mode] for bar in bars), Fraction(0)) for mode in modes]
    whole = sum(by_mode, Fraction(0))
    places = 0 if whole >= MANY_GPU_HOURS else 2
    unit = steps(places)
    totals = apportion([part * unit for part in by_mode], round_half_up(whole, places))
    columns = [[bar.lost[mode] * unit for bar in bars] for mode in modes]
    cells = apportion_table(columns, totals)

    def line(label: str, count: int, units: Sequence[int]) -> TableLine:
        texts = [show.decimals(scaled(n, places), places) for n in (*units, sum(units))]
        return TableLine(label, show.whole(count), tuple(texts[:-1]), texts[-1])

    rows = list(zip(*cells, strict=True)) if bars else []
    lines = [line(bar.bucket.label, bar.count, row) for bar, row in zip(bars, rows, strict=True)]
    return lines, line("All", sum(bar.count for bar in bars), totals)
