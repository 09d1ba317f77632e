"""Lists by keyset over several columns: rows that come or go meanwhile shift nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from apps.common.errors import Invalid
from apps.common.time import from_us, to_us
from apps.console.query import Query

PAGE_SIZE = 50
LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Key:
    """A column of the order: whole numbers, or instants (kept in a cursor as microseconds)."""

    name: str
    descending: bool = False
    instant: bool = False

    def write(self, row: Any) -> str:
        """Return a row's value as it stands in a cursor."""
        value = getattr(row, self.name)
        return str(to_us(value) if isinstance(value, datetime) else int(value))

    def read(self, text: str, field: str) -> Any:
        """Return the value a cursor holds."""
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
            raise Invalid(f"{field} is not a place in this list.", field=field)
        number = int(text)
        if not -LARGEST <= number <= LARGEST:
            raise Invalid(f"{field} is not a place in this list.", field=field)
        if not self.instant:
            return number
        try:
            return from_us(number)
        except OverflowError as error:
            raise Invalid(f"{field} is not a place in this list.", field=field) from error


@dataclass(frozen=True, slots=True)
class Pager:
    """What components/_pager.html shows; an end is text, not a dead link."""

    words: str
    ahead_url: str
    behind_url: str
    ahead: str
    behind: str


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of a page, and the cursors of its neighbours."""

    rows: list[Any]
    after: str
    before: str

    def pager(self, query: Query, words: str, *, names: tuple[str, str]) -> Pager:
        """Return the pager of these rows."""
        ahead = query.url({"before": self.before}) if self.before else ""
        behind = query.url({"after": self.after}) if self.after else ""
        return Pager(words, ahead, behind, *names)


def slice_of(
    rows: QuerySet[Any], keys: Sequence[Key], query: Query, *, size: int = PAGE_SIZE
) -> Slice:
    """Return one page in the order of ``keys``, the last of which is unique; one query.

    :raises Invalid: naming the cursor that is none, or both when both are given.
    """
    after, before = query.get("after"), query.get("before")
    if after is not None and before is not None:
        raise Invalid("Give after or before, not both.", field="before")
    backwards = before is not None
    ordered = rows.order_by(
        *(f"{'-' if key.descending != backwards else ''}{key.name}" for key in keys)
    )
    cursor = before if backwards else after
    if cursor is not None:
        ordered = ordered.filter(_beyond(keys, cursor, backwards))
    found = list(ordered[: size + 1])
    more, found = len(found) > size, found[:size]
    if backwards:
        found.reverse()
    if not found:
        return Slice([], "", "")
    first, last = (".".join(key.write(row) for key in keys) for row in (found[0], found[-1]))
    return Slice(
        found,
        after=last if more or backwards else "",
        before=first if (more if backwards else cursor is not None) else "",
    )


def _beyond(keys: Sequence[Key], cursor: str, backwards: bool) -> Q:
    """Return the condition for rows after (before) the one a cursor names."""
    field = "before" if backwards else "after"
    texts = cursor.split(".")
    if len(texts) != len(keys):
        raise Invalid(f"{field} is not a place in this list.", field=field)
    values = [key.read(text, field) for key, text in zip(keys, texts, strict=True)]
    condition = Q()
    equal = Q()
    for key, value in zip(keys, values, strict=True):
        lookup = "lt" if key.descending != backwards else "gt"
        condition |= equal & Q(**{f"{key.name}__{lookup}": value})
        equal &= Q(**{key.name: value})
    return condition
