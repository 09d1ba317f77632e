"""Statements of our own: put together once, and planned once a connection.

Where a request is short, Django takes longer to put a query together than the database to answer it,
and PostgreSQL longer to plan it than to run it.
"""

from __future__ import annotations

from functools import cached_property
from operator import itemgetter
from typing import Any

from django.db import connection, models


def preparing_cursor() -> Any:
    """Return a cursor whose statements PostgreSQL parses and plans once a connection, then keeps.

    The parameters are bound there too: each must stand where its type is clear, which Django's own
    queries do not see to. ``prepare_threshold`` in the settings turns it on.
    """
    if connection.vendor != "postgresql":
        return connection.cursor()
    from django.db.backends.postgresql import base

    django: Any = connection  # the stubs know little of what follows
    server_binding: Any = base.ServerBindingCursor
    django.close_if_health_check_failed()
    django.ensure_connection()
    return django._prepare_cursor(server_binding(django.connection))


def placeholders(count: int) -> str:
    """Return the placeholders of a list of so many values: ``%s, %s``."""
    return ", ".join(["%s"] * count)


class _Part:
    """The columns of one model in a row of the answer."""

    def __init__(self, model: type[models.Model], alias: str, start: int) -> None:
        fields = model._meta.concrete_fields
        quote = connection.ops.quote_name
        self.model = model
        self.names = [field.attname for field in fields]
        self.columns = ", ".join(f"{alias}.{quote(str(field.column))}" for field in fields)
        self.end = start + len(fields)
        self.values = itemgetter(slice(start, self.end))
        self.key = self.names.index(str(model._meta.pk.attname))
        # Most columns come as what they are; which do not depends on the database.
        self.converted = [
            (index, field.get_col(alias))
            for index, field in enumerate(fields)
            if _converters(field.get_col(alias))
        ]

    def of(self, row: tuple[Any, ...]) -> models.Model | None:
        """Return the row's instance; None: a LEFT JOIN found none."""
        values = self.values(row)
        if values[self.key] is None:
            return None
        if self.converted:
            values = list(values)
            for index, column in self.converted:
                for convert in _converters(column):
                    values[index] = convert(values[index], column, connection)
        return self.model.from_db(connection.alias, self.names, values)


def _converters(column: Any) -> list[Any]:
    """Return what makes a column's value of what the database gives, as Django's compiler does."""
    of_database = connection.ops.get_db_converters(column)
    return [*of_database, *column.get_db_converters(connection)]


class Joined:
    """A SELECT where ``{alias}`` stands for all columns of the model given by that name.

    They come first and in the order given, then what else is selected. Another ``{`` is ``{{``.
    """

    def __init__(self, statement: str, **of: type[models.Model]) -> None:
        self.statement, self.models = statement, of

    @cached_property
    def _prepared(self) -> tuple[str, list[_Part], int]:
        parts: dict[str, _Part] = {}
        end = 0
        for alias, model in self.models.items():
            parts[alias] = _Part(model, alias, end)
            end = parts[alias].end
        columns = {alias: part.columns for alias, part in parts.items()}
        return self.statement.format(**columns), list(parts.values()), end

    def first(self, *params: Any) -> tuple[Any, ...] | None:
        """Return the first row, if any: an instance or None of each model, then all else."""
        statement, parts, end = self._prepared
        with preparing_cursor() as cursor:
            cursor.execute(statement, params)
            row = cursor.fetchone()
        return None if row is None else (*(part.of(row) for part in parts), *row[end:])
