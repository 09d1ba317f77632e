"""An account's users, and a cluster's QOS, as they are kept: rows without names of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from apps.backends.port import SeenQos, SeenUser

MOST_PEOPLE = 500


def most_used(people: Iterable[SeenUser]) -> list[SeenUser]:
    """Return the users with the most usage first, not more than ``MOST_PEOPLE``."""
    return sorted(people, key=lambda one: (-(one.raw_usage or 0.0), one.name))[:MOST_PEOPLE]


def packed(rows: Iterable[SeenUser | SeenQos]) -> list[list[Any]]:
    """Return rows as JSON keeps them."""
    return [[_plain(getattr(row, one.name)) for one in fields(row)] for row in rows]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def people_of(kept: Sequence[Sequence[Any]]) -> tuple[SeenUser, ...]:
    """Return the users that were kept."""
    return tuple(SeenUser(*row) for row in kept)


def qos_of(kept: Sequence[Sequence[Any]]) -> tuple[SeenQos, ...]:
    """Return the QOS that were kept."""
    return tuple(SeenQos(*_cells(row)) for row in kept)


def _cells(row: Sequence[Any]) -> list[Any]:
    return [tuple(cell) if isinstance(cell, list) else cell for cell in row]
