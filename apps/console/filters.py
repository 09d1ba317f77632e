"""Filters of a list as chips: each active one can be removed alone, the others are offered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apps.console.query import Query


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter a page knows; ``choices`` are (value, words), none: free text."""

    key: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""
    default: tuple[str, str] | None = None  # what holds where the address names nothing


@dataclass(frozen=True, slots=True)
class ActiveChip:
    """A filter that is on."""

    key: str
    label: str
    value: str
    remove_url: str


@dataclass(frozen=True, slots=True)
class OfferedChip:
    """A filter that could be put on."""

    key: str
    label: str
    choices: tuple[tuple[str, str], ...]
    placeholder: str
    value: str = ""  # what holds now: the chip changes it instead of adding it


@dataclass(frozen=True, slots=True)
class Chips:
    """What components/_chips.html shows."""

    active: tuple[ActiveChip, ...]
    offered: tuple[OfferedChip, ...]
    hidden: tuple[tuple[str, str], ...]
    action: str
    none_url: str

    @property
    def count(self) -> int:
        """Return how many filters are on."""
        return len(self.active)


def chips_of(query: Query, filters: Sequence[Filter]) -> Chips:
    """Return the chips of a page's filters, in the order given."""
    active, offered = [], []
    for each in filters:
        value = query.get(each.key)
        if value is None:
            if each.choices or each.placeholder:
                held = each.default[1] if each.default else ""
                left = tuple(choice for choice in each.choices if choice != each.default)
                offered.append(OfferedChip(each.key, each.label, left, each.placeholder, held))
            continue
        said = dict(each.choices).get(value, value)
        active.append(ActiveChip(each.key, each.label, said, query.url({each.key: None})))
    names = [each.key for each in filters]
    return Chips(
        tuple(active),
        tuple(offered),
        tuple(query.items()),
        query.path,
        query.url(dict.fromkeys(names)),
    )
