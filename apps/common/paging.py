"""Long lists by keyset, over one unique column: page 20,000 costs what page 1 costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import Model, QuerySet

from apps.common.errors import Invalid

Row = TypeVar("Row", bound=Model)

MOST_COUNTED = 10_000
LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows there are; ``capped``: at least so many, nobody counted on."""

    number: int
    capped: bool

    def __str__(self) -> str:
        return f"{self.number:,}+" if self.capped else f"{self.number:,}"


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows of a list; ``after`` and ``before`` are the cursors of the pages beside it."""

    rows: list[Row]
    after: str | None
    before: str | None


def capped_count(queryset: QuerySet[Row], *, most: int = MOST_COUNTED) -> Count:
    """Count rows, but never more than ``most``: a table may hold millions."""
    number = queryset.order_by()[: most + 1].count()
    return Count(number=min(number, most), capped=number > most)


def read_cursor(value: str | None, *, field: str) -> int | None:
    """Return the place a cursor names: the value of the last row seen.

    :raises Invalid: naming ``field``, for anything this module did not give out.
    """
    if value is None or value == "":
        return None
    if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > LARGEST:
        raise Invalid(f"{field} is not a cursor of this list.", field=field)
    return int(value)


def page_of(
    queryset: QuerySet[Row],
    *,
    size: int,
    after: str | None = None,
    before: str | None = None,
    column: str = "pk",
    descending: bool = False,
) -> Page[Row]:
    """Return one page of a list ordered by ``column``, which must be unique in it; one query.

    Rows that come or go meanwhile shift nothing. ``column`` may lead over relations.

    :raises Invalid: naming the cursor that is none, or both when both are given.
    """
    place, back = read_cursor(after, field="after"), read_cursor(before, field="before")
    if place is not None and back is not None:
        raise Invalid("Give after or before, not both.", field="before")
    backwards = back is not None
    # Going backwards reads the other way round, from the cursor on, and turns the rows at the end.
    falling = descending != backwards
    ordered = queryset.order_by(f"-{column}" if falling else column)
    start = back if backwards else place
    if start is not None:
        ordered = ordered.filter(**{f"{column}__{'lt' if falling else 'gt'}": start})
    rows = list(ordered[: size + 1])
    more, rows = len(rows) > size, rows[:size]
    if backwards:
        rows.reverse()
    if not rows:
        return Page(rows=[], after=None, before=None)
    first, last = _value(rows[0], column), _value(rows[-1], column)
    return Page(
        rows=rows,
        after=last if more or backwards else None,
        before=first if (more if backwards else place is not None) else None,
    )


def _value(row: Model, column: str) -> str:
    value: object = row
    for name in column.split("__"):
        value = getattr(value, name)
    return str(value)
