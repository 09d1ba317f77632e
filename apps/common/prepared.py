"""A query that Django puts together once and the database answers often.

A tick of a replay does little, many times: there Django takes ten times as long to put a query
together as the database to answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

Value = int | datetime | Sequence[int]

MOST_KEPT = 64
"""How many shapes of its lists a query keeps; further ones are put together anew each time."""

# Values that no row has: where they come out among the parameters, a call puts its own.
_FIRST_INT = 7_000_000_000_000_001
_FIRST_AT = datetime(8_000, 1, 1, tzinfo=UTC)


class Prepared:
    """A read of some columns; ``build`` makes the queryset, which must end in ``values_list``.

    The arguments of ``build`` are integers, instants or lists of integers, and must reach the
    query as they are: ``build`` decides nothing by them, and none is a constant of the query.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, Any]]) -> None:
        self._build = build
        self._kept: dict[tuple[Any, ...], _Statement] = {}

    def rows(self, *values: Value) -> list[tuple[Any, ...]]:
        """Return the rows, as ``values_list`` gives them."""
        shape = (connection.vendor, *(_shape(value) for value in values))
        statement = self._kept.get(shape)
        if statement is None:
            try:
                statement = _Statement(self._build, values)
            except EmptyResultSet:  # a list is empty: no row can be in it
                return []
            if len(self._kept) < MOST_KEPT:
                self._kept[shape] = statement
        return statement.run(values)


class _Statement:
    """One shape of a prepared query for one kind of database."""

    def __init__(self, build: Callable[..., QuerySet[Any, Any]], values: Sequence[Value]) -> None:
        stand_ins = _stand_ins(values)
        compiler = build(*stand_ins).query.get_compiler(connection=connection)
        self._sql, params = compiler.as_sql()
        at = {value: k for k, value in enumerate(_flat(stand_ins))}
        self._params = [(at.get(param), param) for param in params]
        if missing := set(at.values()) - {k for k, _ in self._params}:
            raise ValueError(f"Arguments {sorted(missing)} do not reach the query as they are.")
        self._compiler = compiler
        columns = [column for column, _, _ in compiler.select]
        self._converters = compiler.get_converters(columns)

    def run(self, values: Sequence[Value]) -> list[tuple[Any, ...]]:
        given = list(_flat(values))
        params = [param if k is None else given[k] for k, param in self._params]
        with connection.cursor() as cursor:
            cursor.execute(self._sql, params)
            rows = cursor.fetchall()
        if not self._converters:
            return list(rows)
        return [tuple(row) for row in self._compiler.apply_converters(rows, self._converters)]


def _shape(value: Value) -> Any:
    return len(value) if isinstance(value, Sequence) else type(value)


def _stand_ins(values: Sequence[Value]) -> list[Value]:
    found: list[Value] = []
    count = 0
    for value in values:
        if isinstance(value, Sequence):
            found.append([_FIRST_INT + count + k for k in range(len(value))])
            count += len(value)
        elif isinstance(value, datetime):
            found.append(_FIRST_AT + timedelta(days=count))
            count += 1
        else:
            found.append(_FIRST_INT + count)
            count += 1
    return found


def _flat(values: Sequence[Value]) -> list[Any]:
    """Return the values one by one, as the database takes them."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, Sequence):
            found += value
        elif isinstance(value, datetime):
            found.append(connection.ops.adapt_datetimefield_value(value))
        else:
            found.append(value)
    return found
