"""Write many rows, or a few columns of them, with one prepared statement.

Django's ``bulk_update`` builds a CASE for each row, ``bulk_create`` an expression for each value;
for the few rows of a tick that takes longer than the database needs for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from django.db import connection
from django.db.models import Field, JSONField, Model

from apps.common.statements import preparing_cursor

AS_THEY_ARE = frozenset({int, str, bool, float, type(None)})
ROWS_A_STATEMENT = 500
"""More would pass the number of parameters a statement may have."""


@lru_cache
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


def _insert(rows: Sequence[Model], columns: Sequence[Field[Any, Any]]) -> tuple[str, str]:
    """Return the start of an INSERT, and the places of one row."""
    meta = type(rows[0])._meta
    table = connection.ops.quote_name(meta.db_table)
    names = ", ".join(_quoted(field) for field in columns)
    places = ", ".join(["%s"] * len(columns))
    return f"INSERT INTO {table} ({names}) VALUES ", f"({places})"  # noqa: S608  names of our own models


def _without_key(model: type[Model]) -> list[Field[Any, Any]]:
    return [field for field in model._meta.concrete_fields if not field.primary_key]


def add_rows(rows: Sequence[Model]) -> None:
    """Insert rows whose keys nobody needs to know, as ``bulk_create`` does."""
    if not rows:
        return
    columns = _without_key(type(rows[0]))
    start, places = _insert(rows, columns)
    values = [[_adapted(field, getattr(row, field.attname)) for field in columns] for row in rows]
    with connection.cursor() as cursor:
        cursor.executemany(start + places, values)


def add_keyed(rows: Sequence[Model]) -> None:
    """Insert rows and set their keys, as ``bulk_create`` does; a batch is one statement."""
    for low in range(0, len(rows), ROWS_A_STATEMENT):
        batch = rows[low : low + ROWS_A_STATEMENT]
        columns = _without_key(type(batch[0]))
        start, places = _insert(batch, columns)
        values = [_adapted(f, getattr(row, f.attname)) for row in batch for f in columns]
        key = connection.ops.quote_name(str(type(batch[0])._meta.pk.column))
        statement = f"{start}{', '.join([places] * len(batch))} RETURNING {key}"
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
            # Both databases return the rows in the order of VALUES; so Django relies on it.
            for row, (pk,) in zip(batch, cursor.fetchall(), strict=True):
                row.pk = pk
                row._state.adding, row._state.db = False, connection.alias


@cache
def _insertion(model: type[Model]) -> tuple[str, list[Field[Any, Any]]]:
    """Return the statement that inserts one row and answers its key, and whose values it takes."""
    columns = _without_key(model)
    start, places = _insert([model()], columns)
    key = connection.ops.quote_name(str(model._meta.pk.column))
    return f"{start}{places} RETURNING {key}", columns


def insert_row(row: Model) -> None:
    """Insert a row and set its key, as ``save(force_insert=True)`` does."""
    statement, columns = _insertion(type(row))
    # As Django adapts them, all integers of a column are of one type: there is one plan to keep.
    values = [field.get_db_prep_save(getattr(row, field.attname), connection) for field in columns]
    with preparing_cursor() as cursor:
        cursor.execute(statement, values)
        (row.pk,) = cursor.fetchone()
    row._state.adding, row._state.db = False, connection.alias


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
