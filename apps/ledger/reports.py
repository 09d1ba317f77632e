"""The five parts as a report: exact amounts inside, shown figures that visibly add up.

Rounding happens once, at the total. The shown part figures are apportioned to it by largest
remainder; unknown within busy, free and stranded within unallocated add up likewise; the cells of
each table (pool and price, tenant, bucket of a figure) are apportioned to the parts, and the sum of a row is
the sum of its shown cells.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Generic, TypeVar

from apps.common import show
from apps.common.money import (
    CENTS,
    TENTHS,
    apportion,
    apportion_table,
    cost_of,
    gpu_hours_of,
    round_half_up,
    scaled,
    steps,
)
from apps.ledger.rollup import Slice
from apps.ledger.sweep import (
    BUSY,
    EXCESS,
    FREE,
    GANG_WAIT,
    HELD_IDLE,
    STATES,
    STRANDED,
    UNAVAILABLE,
    UNKNOWN,
)

Key = TypeVar("Key", bound=Hashable)

UNALLOCATED = "unallocated"
FIVE = (BUSY, HELD_IDLE, GANG_WAIT, UNALLOCATED, UNAVAILABLE)
PART_OF = {
    BUSY: BUSY,
    UNKNOWN: BUSY,
    HELD_IDLE: HELD_IDLE,
    GANG_WAIT: GANG_WAIT,
    FREE: UNALLOCATED,
    STRANDED: UNALLOCATED,
    UNAVAILABLE: UNAVAILABLE,
}
MANY_GPU_HOURS = 10_000
"""From a total of so many on, GPU-hours are shown without decimals."""


@dataclass(frozen=True, slots=True)
class Amount:
    """GPU-hours of physical GPUs and what they cost, both exact.

    ``unpriced`` are the GPU-hours no price was in force for; their money is unknown, not 0.
    """

    gpu_hours: Fraction = Fraction(0)
    money: Fraction = Fraction(0)
    unpriced: Fraction = Fraction(0)

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.gpu_hours + other.gpu_hours,
            self.money + other.money,
            self.unpriced + other.unpriced,
        )

    @property
    def has_money(self) -> bool:
        """Return whether any of it has a price, or there is nothing to price."""
        return self.unpriced < self.gpu_hours or not self.gpu_hours


def amount_of(gpu_us: int, fraction: Fraction, micros: int | None) -> Amount:
    """Return the amount of GPU-microseconds of a pool's unit; ``micros`` None: no price."""
    hours = gpu_hours_of(gpu_us, fraction)
    if micros is None:
        return Amount(hours, unpriced=hours)
    return Amount(hours, cost_of(gpu_us, micros, fraction))


def total_of(amounts: Iterable[Amount]) -> Amount:
    """Return the exact sum of amounts."""
    total = Amount()
    for amount in amounts:
        total += amount
    return total


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of an amount: units of the last decimal, apportioned."""

    hour_units: int
    hour_decimals: int
    cents: int | None  # None: no price

    def __add__(self, other: Shown) -> Shown:
        cents = [one.cents for one in (self, other) if one.cents is not None]
        return Shown(
            self.hour_units + other.hour_units, self.hour_decimals, sum(cents) if cents else None
        )

    def __sub__(self, other: Shown) -> Shown:
        cents = None if self.cents is None else self.cents - (other.cents or 0)
        return Shown(self.hour_units - other.hour_units, self.hour_decimals, cents)

    @property
    def gpu_hours(self) -> Decimal:
        """Return the GPU-hours shown."""
        return scaled(self.hour_units, self.hour_decimals)

    @property
    def money(self) -> Decimal | None:
        """Return the amount of money shown; None: no price."""
        return None if self.cents is None else scaled(self.cents, CENTS)

    @property
    def gpu_hours_text(self) -> str:
        """Return the GPU-hours as a table writes them, without the unit."""
        return show.decimals(self.gpu_hours, self.hour_decimals)

    @property
    def money_text(self) -> str:
        """Return the money as a table writes it."""
        return "no price" if self.money is None else show.money(self.money)


@dataclass(frozen=True, slots=True)
class Entry:
    """One shared key of a priced slice: who, where, in what state, at what price."""

    pool_id: int
    price_id: int | None
    tenant_id: int | None
    state: str
    amount: Amount


@dataclass(frozen=True, slots=True)
class Part:
    """One state's line: shown figures, exact amount, per cent of capacity."""

    state: str
    shown: Shown
    amount: Amount
    tenths: int  # of a per cent

    @property
    def percent(self) -> Decimal:
        """Return the per cent of capacity shown; all parts add up to 100.0."""
        return scaled(self.tenths, TENTHS)


@dataclass(frozen=True, slots=True)
class Row(Generic[Key]):
    """One row of a table beside the parts: its cells by state, and the sum of what is shown."""

    key: Key
    cells: Mapping[str, Shown]
    amounts: Mapping[str, Amount]
    total: Shown

    @property
    def amount(self) -> Amount:
        """Return the exact sum."""
        return total_of(self.amounts.values())

    def part(self, name: str) -> Shown:
        """Return one of the five parts."""
        return add_shown(
            (cell for state, cell in self.cells.items() if PART_OF[state] == name), self.total
        )


def add_shown(cells: Iterable[Shown], like: Shown) -> Shown:
    """Return the sum of shown figures; of none: zero, with money if ``like`` has it."""
    total = Shown(0, like.hour_decimals, None if like.cents is None else 0)
    for cell in cells:
        total += cell
    return total


class Report:
    """Where the GPU time of a range went.

    ``since_us`` and ``until_us`` are what was observed of the range asked for; ``capacity`` is
    counted from node intervals alone, apart from the parts; ``assumed`` is what of it lies in gaps
    between looks; ``excess`` what more was allocated than there was, outside the sum.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        since_us: int,
        until_us: int,
        capacity: Amount,
        assumed: Amount,
        row_of: Mapping[int, int | None],
    ) -> None:
        self.entries = [entry for entry in entries if entry.state != EXCESS]
        self.excess = total_of(e.amount for e in entries if e.state == EXCESS)
        self.since_us = since_us
        self.until_us = until_us
        self.capacity = capacity
        self.assumed = assumed
        self._row_of = row_of

    @cached_property
    def amount(self) -> Amount:
        """Return the exact total."""
        return total_of(entry.amount for entry in self.entries)

    @cached_property
    def hour_decimals(self) -> int:
        """Return how many decimals GPU-hours have, in every cell of this report."""
        return 0 if self.amount.gpu_hours >= MANY_GPU_HOURS else CENTS

    @cached_property
    def total(self) -> Shown:
        """Return the total as shown: rounded once, half up."""
        return Shown(
            round_half_up(self.amount.gpu_hours, self.hour_decimals),
            self.hour_decimals,
            round_half_up(self.amount.money, CENTS) if self.amount.has_money else None,
        )

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Return the seven states in their order; they add up to the total and to 100.0 %."""
        amounts = self._by_state(self.entries)
        shown = apportion_shown(
            [amounts[state] for state in STATES], self.total, self.hour_decimals
        )
        whole = self.amount.gpu_hours
        shares = [amounts[s].gpu_hours * 1000 / whole if whole else Fraction(0) for s in STATES]
        tenths = apportion(shares, 1000 if whole else 0)
        return {
            state: Part(state, shown[i], amounts[state], tenths[i])
            for i, state in enumerate(STATES)
        }

    @cached_property
    def five(self) -> dict[str, Part]:
        """Return the five parts: busy with unknown, unallocated as free and stranded."""
        five = {}
        for name in FIVE:
            mine = [part for part in self.parts.values() if PART_OF[part.state] == name]
            five[name] = Part(
                name,
                add_shown((part.shown for part in mine), self.total),
                total_of(part.amount for part in mine),
                sum(part.tenths for part in mine),
            )
        return five

    @cached_property
    def not_working(self) -> Part:
        """Return all that is not busy, so that busy and this add up to the total."""
        rest = [part for name, part in self.five.items() if name != BUSY]
        return Part(
            "not_working",
            self.total - self.five[BUSY].shown,
            total_of(part.amount for part in rest),
            sum(part.tenths for part in rest),
        )

    @cached_property
    def by_price(self) -> list[Row[tuple[int, int | None]]]:
        """Return a row per (pool, price); price None: none was in force."""
        keys = sorted(
            {(entry.pool_id, entry.price_id) for entry in self.entries},
            key=lambda key: (key[0], key[1] or 0),
        )
        return self._table(keys, lambda entry: (entry.pool_id, entry.price_id))

    @cached_property
    def by_pool(self) -> list[Row[int]]:
        """Return a row per pool: the rows of its prices, added up as shown."""
        pools: dict[int, list[Row[tuple[int, int | None]]]] = {}
        for row in self.by_price:
            pools.setdefault(row.key[0], []).append(row)
        return [
            Row(
                pool_id,
                {s: add_shown((row.cells[s] for row in rows), self.total) for s in STATES},
                {s: total_of(row.amounts[s] for row in rows) for s in STATES},
                add_shown((row.total for row in rows), self.total),
            )
            for pool_id, rows in pools.items()
        ]

    @cached_property
    def by_tenant(self) -> list[Row[int | None]]:
        """Return what each tenant held, worst first, then what other tenants held (key None).

        What nobody held is ``nobody``; these rows and those add up to the total.
        """
        held = [entry for entry in self._tenant_rows if not isinstance(entry.key, str)]
        held.sort(
            key=lambda row: (
                row.key is None,
                -row.amounts[HELD_IDLE].money - row.amounts[GANG_WAIT].money,
                -row.amount.gpu_hours,
                row.key or 0,
            )
        )
        return [Row(_id(row.key), row.cells, row.amounts, row.total) for row in held]

    @cached_property
    def nobody(self) -> list[Row[str]]:
        """Return what no tenant held: unallocated, unavailable, and foreign work if there was any."""
        rows = [row for row in self._tenant_rows if isinstance(row.key, str)]
        return [Row(str(row.key), row.cells, row.amounts, row.total) for row in rows]

    def over_time(self, buckets: Sequence[Sequence[Entry]]) -> list[Row[int]]:
        """Return a row per bucket of a figure; they add up to the parts as shown."""
        of_bucket = [
            (index, entry)
            for index, entries in enumerate(buckets)
            for entry in entries
            if entry.state != EXCESS
        ]
        amounts = {(i, s): Amount() for i in range(len(buckets)) for s in STATES}
        for index, entry in of_bucket:
            amounts[index, entry.state] += entry.amount
        return self._rows(list(range(len(buckets))), amounts)

    def adds_up(self) -> bool:
        """Return whether the parts are the capacity exactly, and every shown column its total."""
        total = self.total
        tables: list[Sequence[Shown]] = [
            [part.shown for part in self.parts.values()],
            [part.shown for part in self.five.values()],
            [row.total for row in self.by_pool],
            [row.total for row in self.by_tenant] + [row.total for row in self.nobody],
        ]
        return (
            self.amount == self.capacity
            and all(add_shown(column, total) == total for column in tables)
            and sum(part.tenths for part in self.parts.values()) in (0, 1000)
        )

    @cached_property
    def _tenant_rows(self) -> list[Row[int | str | None]]:
        keys: set[int | str | None] = {self._who(entry) for entry in self.entries}
        keys |= {UNALLOCATED, UNAVAILABLE}
        return self._table(sorted(keys, key=lambda key: (str(type(key)), str(key))), self._who)

    def _who(self, entry: Entry) -> int | str | None:
        if entry.tenant_id is not None:
            return self._row_of.get(entry.tenant_id)
        return "foreign" if entry.state == UNKNOWN else PART_OF[entry.state]

    def _table(self, keys: Sequence[Key], key_of: Callable[[Entry], Key]) -> list[Row[Key]]:
        amounts = {(key, state): Amount() for key in keys for state in STATES}
        for entry in self.entries:
            amounts[key_of(entry), entry.state] += entry.amount
        return self._rows(keys, amounts)

    def _rows(
        self, keys: Sequence[Key], amounts: Mapping[tuple[Key, str], Amount]
    ) -> list[Row[Key]]:
        """Return rows whose cells add up to the parts, column by column."""
        columns = [[amounts[key, state] for key in keys] for state in STATES]
        parts = [self.parts[state].shown for state in STATES]
        hours = apportion_table(
            [[_hours(cell, self.hour_decimals) for cell in column] for column in columns],
            [part.hour_units for part in parts],
        )
        cents = apportion_table(
            [[_cents(cell) for cell in column] for column in columns],
            [part.cents or 0 for part in parts],
        )
        rows = []
        for i, key in enumerate(keys):
            cells = {
                state: Shown(
                    hours[s][i],
                    self.hour_decimals,
                    cents[s][i] if columns[s][i].has_money and parts[s].cents is not None else None,
                )
                for s, state in enumerate(STATES)
            }
            rows.append(
                Row(
                    key,
                    cells,
                    {state: columns[s][i] for s, state in enumerate(STATES)},
                    add_shown(cells.values(), self.total),
                )
            )
        return rows

    @staticmethod
    def _by_state(entries: Iterable[Entry]) -> dict[str, Amount]:
        amounts = dict.fromkeys(STATES, Amount())
        for entry in entries:
            amounts[entry.state] += entry.amount
        return amounts


def apportion_shown(amounts: Sequence[Amount], total: Shown, hour_decimals: int) -> list[Shown]:
    """Return what is shown of parts of a total that is shown."""
    hours = apportion([_hours(amount, hour_decimals) for amount in amounts], total.hour_units)
    cents = apportion([_cents(amount) for amount in amounts], total.cents or 0)
    return [
        Shown(
            hours[i],
            hour_decimals,
            cents[i] if amount.has_money and total.cents is not None else None,
        )
        for i, amount in enumerate(amounts)
    ]


def entries_of(
    slices: Iterable[Slice], fractions: Mapping[int, Fraction], micros: Mapping[int, int]
) -> list[Entry]:
    """Return slices as exact amounts; ``micros`` is price id → millionths per GPU-hour."""
    return [
        Entry(
            one.pool_id,
            one.price_id,
            one.tenant_id,
            one.state,
            amount_of(
                one.gpu_us,
                fractions[one.pool_id],
                None if one.price_id is None else micros[one.price_id],
            ),
        )
        for one in slices
    ]


def _id(key: int | str | None) -> int | None:
    return key if isinstance(key, int) else None


def _hours(amount: Amount, decimals: int) -> Fraction:
    return amount.gpu_hours * steps(decimals)


def _cents(amount: Amount) -> Fraction:
    return amount.money * steps(CENTS)
