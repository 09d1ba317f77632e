"""Write many rows, or a few columns of them, with one prepared statement.

Django's ``bulk_update`` builds a CASE for each row, ``bulk_create`` an expression for each value;
for the few rows of a tick that takes longer than the database needs for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from django.db import connection
from django.db.models import Field, JSONField, Model

from apps.common.statements import placeholders, preparing_cursor

AS_THEY_ARE = frozenset({int, str, bool, float, type(None)})
ROWS_A_STATEMENT = 500
"""More would pass the number of parameters a statement may have."""


@cache
def _columns_of(model: type[Model], names: frozenset[str]) -> list[Field[Any, Any]]:
    """Return the fields of these names, by name or by column, in the order of the model."""
    meta = model._meta
    found = [f for f in meta.concrete_fields if f.name in names or f.attname in names]
    if len(found) != len(names):
        raise ValueError(f"{meta.label} does not have all of {', '.join(sorted(names))}.")
    return found


def _quoted(field: Field[Any, Any]) -> str:
    return connection.ops.quote_name(str(field.column))


def _adapted(field: Field[Any, Any], value: Any) -> Any:
    """Return a value as the database takes it; most are as they are."""
    if type(value) in AS_THEY_ARE and not isinstance(field, JSONField):
        return value
    return field.get_db_prep_save(value, connection)


def set_columns(rows: Sequence[Model], fields: Sequence[str]) -> None:
    """Write some fields of rows that stand in the database, as ``bulk_update`` does."""
    if not rows:
        return
    model = type(rows[0])
    columns = _columns_of(model, frozenset(fields))
    names = ", ".join(f"{_quoted(field)} = %s" for field in columns)
    key = connection.ops.quote_name(str(model._meta.pk.column))
    values = [
        [*(_adapted(field, getattr(row, field.attname)) for field in columns), row.pk]
        for row in rows
    ]
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {table} SET {names} WHERE {key} = %s",  # noqa: S608  names of our own models
            values,
        )


@cache
def _without_key(model: type[Model]) -> list[Field[Any, Any]]:
    return [field for field in model._meta.concrete_fields if not field.primary_key]


@cache
def _insertion(model: type[Model]) -> tuple[str, str, str]:
    """Return an INSERT of a model in its parts: the start, the places of a row, what it answers."""
    quote, columns = connection.ops.quote_name, _without_key(model)
    names = ", ".join(_quoted(field) for field in columns)
    start = f"INSERT INTO {quote(model._meta.db_table)} ({names}) VALUES "  # noqa: S608  names of our own models
    key = quote(str(model._meta.pk.column))
    return start, f"({placeholders(len(columns))})", f" RETURNING {key}"


def _is_at(row: Model, pk: int) -> None:
    """Have an instance know that it stands in the database under a key."""
    row.pk = pk
    row._state.adding, row._state.db = False, connection.alias


def add_rows(rows: Sequence[Model]) -> None:
    """Insert rows whose keys nobody needs to know, as ``bulk_create`` does."""
    if not rows:
        return
    columns = _without_key(type(rows[0]))
    start, places, _ = _insertion(type(rows[0]))
    values = [[_adapted(field, getattr(row, field.attname)) for field in columns] for row in rows]
    with connection.cursor() as cursor:
        cursor.executemany(start + places, values)


def add_keyed(rows: Sequence[Model]) -> None:
    """Insert rows and set their keys, as ``bulk_create`` does; a batch is one statement."""
    for low in range(0, len(rows), ROWS_A_STATEMENT):
        batch = rows[low : low + ROWS_A_STATEMENT]
        columns = _without_key(type(batch[0]))
        start, places, answer = _insertion(type(batch[0]))
        values = [_adapted(f, getattr(row, f.attname)) for row in batch for f in columns]
        with connection.cursor() as cursor:
            cursor.execute(start + ", ".join([places] * len(batch)) + answer, values)
            # Both databases return the rows in the order of VALUES; so Django relies on it.
            for row, (pk,) in zip(batch, cursor.fetchall(), strict=True):
                _is_at(row, pk)


def insert_row(row: Model) -> None:
    """Insert a row and set its key, as ``save(force_insert=True)`` does."""
    columns = _without_key(type(row))
    # As Django adapts them, all integers of a column are of one type: there is one plan to keep.
    values = [field.get_db_prep_save(getattr(row, field.attname), connection) for field in columns]
    with preparing_cursor() as cursor:
        cursor.execute("".join(_insertion(type(row))), values)
        (pk,) = cursor.fetchone()
    _is_at(row, pk)


def compare_and_set(
    model: type[Model], *, where: Mapping[str, Any], values: Mapping[str, Any]
) -> int:
    """Write columns of the rows that have these values now; return how many there were.

    ``where`` compares by equality, None apart; both name columns of the model.
    """
    new = _columns_of(model, frozenset(values))
    old = _columns_of(model, frozenset(where))
    names = ", ".join(f"{_quoted(field)} = %s" for field in new)
    match = " AND ".join(f"{_quoted(field)} = %s" for field in old)
    table = connection.ops.quote_name(model._meta.db_table)

    def params(fields: Sequence[Field[Any, Any]], of: Mapping[str, Any]) -> list[Any]:
        return [_adapted(f, of[f.name] if f.name in of else of[f.attname]) for f in fields]

    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET {names} WHERE {match}",  # noqa: S608  names of our own models
            [*params(new, values), *params(old, where)],
        )
        return int(cursor.rowcount)
