"""Tables and figure of the idle cost page: texts that add up, from a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from apps.common import show
from apps.common.money import MICROS
from apps.console import charts
from apps.console.charts import Column, Figure
from apps.console.palette import STATES, State
from apps.console.ranges import Bucket
from apps.ledger.models import Price
from apps.ledger.reports import Part, Report, Row, Shown, add_shown

NOBODY = {
    "unallocated": "nobody: unallocated",
    "unavailable": "nobody: unavailable",
    "foreign": "work Rollcall did not start",
}
NONE = ""

Write = Callable[[Shown], str]


@dataclass(frozen=True, slots=True)
class PartsTable:
    """The states by pool and price: heads, a line a state, and the line they add up to."""

    heads: tuple[str, ...]
    lines: tuple[tuple[State, tuple[str, ...]], ...]
    total: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TenantLine:
    """What one tenant held; a text of "" does not apply, ``bars`` are (state, x, width)."""

    name: str
    url: str
    busy: str
    held_idle: str
    gang_wait: str
    bars: tuple[tuple[str, float, float], ...]
    wasted: str
    total: str


@dataclass(frozen=True, slots=True)
class BucketLine:
    """One bar of the figure as a line of its table."""

    label: str
    cells: tuple[str, ...]
    total: str


def percent_of(part: Part) -> str:
    """Return a part's per cent of capacity; a little is not nothing."""
    if not part.tenths and part.amount.gpu_hours:
        return f"< 0.1{show.THIN}%"
    return f"{show.decimals(part.percent, 1)}{show.THIN}%"


def price_words(price: Price | None) -> str:
    """Return a price as a head: ``$2.50``."""
    if price is None:
        return "no price"
    return show.money(Fraction(price.micros_per_gpu_hour, MICROS))


def parts_table(
    report: Report,
    states: Sequence[str],
    pools: Mapping[int, str],
    prices: Mapping[int, Price],
    *,
    money: bool,
) -> PartsTable:
    """Return hours by pool, per cent, and money by price; one pool or price is not said twice."""
    by_pool = report.by_pool if len(report.by_pool) > 1 else []
    priced = report.by_price if money else []
    columns: list[tuple[str, Callable[[str], str], str]] = [
        (f"{pools[row.key]}, GPUh", _cell(row, _hours), _hours(row.total)) for row in by_pool
    ]
    columns.append(
        (
            "All, GPUh" if by_pool else "GPUh",
            lambda state: _hours(report.parts[state].shown),
            _hours(report.total),
        )
    )
    whole = f"{show.decimals(Fraction(100 if report.amount.gpu_hours else 0), 1)}{show.THIN}%"
    columns.append(("Of capacity", lambda state: percent_of(report.parts[state]), whole))
    for row in priced if len(priced) > 1 else []:
        pool_id, price_id = row.key
        head = price_words(None if price_id is None else prices[price_id])
        where = f"{pools[pool_id]} at " if by_pool else "At "
        head = head if price_id is None else f"{where}{head}"
        columns.append((head, _cell(row, _money), _money(row.total)))
    if money:
        price = prices.get(priced[0].key[1] or 0) if len(priced) == 1 else None
        head = f"At {price_words(price)}" if price is not None else "All"
        columns.append(
            (head, lambda state: _money(report.parts[state].shown), _money(report.total))
        )
    return PartsTable(
        tuple(head for head, _, _ in columns),
        tuple((STATES[s], tuple(cell(s) for _, cell, _ in columns)) for s in states),
        tuple(total for _, _, total in columns),
    )


def _hours(shown: Shown) -> str:
    return shown.gpu_hours_text


def _money(shown: Shown) -> str:
    return shown.money_text


def _cell(row: Row[Any], write: Write) -> Callable[[str], str]:
    return lambda state: write(row.cells[state])


def tenant_lines(
    report: Report, names: Mapping[int, str], url_of: Callable[[str], str], write: Write
) -> list[TenantLine]:
    """Return what each tenant held, worst first, then what nobody held."""
    rows = report.by_tenant
    wasted = [row.amounts["held_idle"] + row.amounts["gang_wait"] for row in rows]
    most = max((amount.gpu_hours for amount in wasted), default=Fraction(0))
    lines = []
    for row, waste in zip(rows, wasted, strict=True):
        path = None if row.key is None else names.get(row.key)
        whole = row.amount.gpu_hours
        lines.append(
            TenantLine(
                path or "other tenants",
                url_of(path) if path else "",
                write(row.part("busy")),
                write(row.cells["held_idle"]),
                write(row.cells["gang_wait"]),
                _waste_bars(row, most),
                show.percent(waste.gpu_hours / whole) if whole else "–",
                write(row.total),
            )
        )
    order = {key: place for place, key in enumerate(NOBODY)}
    nobody = sorted(report.nobody, key=lambda row: order[row.key])
    return lines + [
        TenantLine(NOBODY[row.key], "", NONE, NONE, NONE, (), NONE, write(row.total))
        for row in nobody
    ]


def _waste_bars(row: Row[Any], most: Fraction) -> tuple[tuple[str, float, float], ...]:
    bars, at = [], 0.0
    for state in ("held_idle", "gang_wait"):
        width = round(float(100 * row.amounts[state].gpu_hours / most), 2) if most else 0.0
        if width:
            bars.append((state, round(at, 2), max(width, 0.6)))
        at += width
    return tuple(bars)


def bucket_lines(
    bars: Sequence[Bucket], rows: Sequence[Row[int]], states: Sequence[str], write: Write
) -> list[BucketLine]:
    """Return the figure's bars as lines of a table."""
    return [
        BucketLine(bar.label, tuple(write(row.cells[s]) for s in states), write(row.total))
        for bar, row in zip(bars, rows, strict=True)
    ]


def figure_of(
    bars: Sequence[Bucket],
    rows: Sequence[Row[int]],
    states: Sequence[str],
    *,
    money: bool,
    with_money: bool,
    axis_title: str,
    changes: Sequence[int] = (),
) -> Figure:
    """Draw the report over time, in money or GPU-hours; ``changes`` are instants of new prices."""

    def height(shown: Shown) -> float:
        return float((shown.money or 0) if money else shown.gpu_hours)

    def words(shown: Shown) -> str:
        hours = f"{shown.gpu_hours_text} GPUh"
        return f"{hours} · {shown.money_text}" if with_money else hours

    columns = [
        Column(
            bar.label,
            bar.tick,
            {state: height(row.cells[state]) for state in states},
            {state: words(row.cells[state]) for state in states},
            words(row.total),
        )
        for bar, row in zip(bars, rows, strict=True)
    ]
    marks = [place for at in changes if (place := _place(bars, at)) is not None]
    return charts.stacked(columns, states, axis_title=axis_title, lines=marks)


def _place(bars: Sequence[Bucket], at_us: int) -> float | None:
    """Return where an instant lies on the axis of bars, whose first is around 0."""
    for index, bar in enumerate(bars):
        if bar.since_us <= at_us < bar.until_us:
            return index - 0.5 + (at_us - bar.since_us) / (bar.until_us - bar.since_us)
    return None


def same_total(bars: Sequence[Bucket], rows: Sequence[Row[int]], write: Write) -> str:
    """Return what every whole bar adds up to, where that is the same for all."""
    longest = max((bar.until_us - bar.since_us for bar in bars), default=0)
    texts = {
        write(row.total)
        for bar, row in zip(bars, rows, strict=True)
        if bar.until_us - bar.since_us == longest
    }
    return texts.pop() if len(texts) == 1 else ""


def tenant_totals(report: Report, write: Write) -> dict[str, str]:
    """Return the last line of the table by tenant: what the tenants' columns add up to."""
    held = [row for row in report.by_tenant]
    like = report.total
    return {
        "busy": write(add_shown((row.part("busy") for row in held), like)),
        "held_idle": write(report.parts["held_idle"].shown),
        "gang_wait": write(report.parts["gang_wait"].shown),
        "all": write(like),
    }
