"""What a page's address asks: read strictly, and changed one parameter at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from django.http import HttpRequest
from django.utils.http import urlencode

from apps.common.errors import Invalid

PAGING = frozenset({"after", "before"})
LONGEST = 400
DURATION = re.compile(r"(\d{1,9})\s*(s|m|min|h|d)")
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


class Query:
    """The parameters of an address; one that is unknown, doubled or unreadable is refused by name."""

    def __init__(self, request: HttpRequest, allowed: Iterable[str]) -> None:
        self.path = request.path
        self._values: dict[str, str] = {}
        known = frozenset(allowed)
        for name in request.GET:
            values = request.GET.getlist(name)
            if name not in known:
                raise Invalid(f"This page knows no parameter {name!r}.", field=name)
            if len(values) > 1:
                raise Invalid(f"{name} is given {len(values)} times; once is enough.", field=name)
            if len(values[0]) > LONGEST or "\x00" in values[0]:
                raise Invalid(f"{name} is not a value this page knows.", field=name)
            if values[0].strip():
                self._values[name] = values[0].strip()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        """Return a parameter as given, or None."""
        return self._values.get(name)

    def one_of(self, name: str, choices: Iterable[str]) -> str | None:
        """Return one of the given words, or None if it is not asked for."""
        value = self._values.get(name)
        words = list(choices)
        if value is not None and value not in words:
            raise Invalid(f"{name} must be one of {', '.join(words)}, not {value!r}.", field=name)
        return value

    def whole(self, name: str, *, least: int = 0, most: int = 2**31 - 1) -> int | None:
        """Return a whole number, or None if it is not asked for."""
        value = self._values.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,19}", value) or not least <= int(value) <= most:
            raise Invalid(
                f"{name} must be a whole number from {least:,} to {most:,}, not {value!r}.",
                field=name,
            )
        return int(value)

    def seconds(self, name: str) -> int | None:
        """Return a duration such as 90s, 10m, 4h or 7d in seconds, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        found = DURATION.fullmatch(value)
        if found is None:
            raise Invalid(f"{name} must be such as 90s, 10m, 4h or 7d, not {value!r}.", field=name)
        return int(found[1]) * SECONDS[found[2]]

    def items(self, *, without: Iterable[str] = ()) -> list[tuple[str, str]]:
        """Return the parameters but those, and but where the pager stands."""
        left_out = PAGING | set(without)
        return [(name, value) for name, value in self._values.items() if name not in left_out]

    def url(self, changes: Mapping[str, str | None] | None = None, *, path: str = "") -> str:
        """Return the address with some parameters changed or (None) removed, back at its start."""
        changed = dict(changes or {})
        values = self.items(without=changed)
        values += [(name, value) for name, value in changed.items() if value is not None]
        target = path or self.path
        return f"{target}?{urlencode(values)}" if values else target
