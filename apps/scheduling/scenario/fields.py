"""Reading the values of a scenario file: a wrong one names the file, the table and the key."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_NAMES = 100_000
DURATION = re.compile(r"(-?)(\d+(?:\.\d+)?)([smhd])")


class ScenarioError(Exception):
    """A scenario file that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which file a value stands."""

    file: str
    table: str

    def wrong(self, key: str, message: str) -> ScenarioError:
        """Return the error to raise."""
        where = f"{self.file}: [{self.table}] " if self.table else f"{self.file}: "
        return ScenarioError(f"{where}{key}: {message}")


@dataclass(frozen=True, slots=True)
class Field:
    """How a key is read, and what it is when absent; ``required`` has no default."""

    read: Callable[[Place, str, Any], Any]
    default: Any = None
    required: bool = False


def table(place: Place, raw: Any, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return a table's values with defaults filled in; refuse unknown and missing keys."""
    if not isinstance(raw, Mapping):
        raise place.wrong(place.table.rpartition(".")[2], "must be a table")
    for key in raw:
        if key not in fields:
            raise place.wrong(key, "there is no such key")
    found = {}
    for key, field in fields.items():
        if key in raw:
            found[key] = field.read(place, key, raw[key])
        elif field.required:
            raise place.wrong(key, "is missing")
        else:
            found[key] = field.default
    return found


def text(place: Place, key: str, value: Any) -> str:
    """Return a non-empty string."""
    if not isinstance(value, str) or not value.strip():
        raise place.wrong(key, f"must be a word, not {value!r}")
    return value


def flag(place: Place, key: str, value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise place.wrong(key, f"must be true or false, not {value!r}")
    return value


def whole(least: int | None = None) -> Callable[[Place, str, Any], int]:
    """Return a reader of whole numbers, not below ``least``."""

    def read(place: Place, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise place.wrong(key, f"must be a whole number, not {value!r}")
        if least is not None and value < least:
            raise place.wrong(key, f"must be at least {least}, not {value}")
        return value

    return read


def number(least: float | None = None) -> Callable[[Place, str, Any], float]:
    """Return a reader of finite numbers, not below ``least``."""

    def read(place: Place, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise place.wrong(key, f"must be a number, not {value!r}")
        if not math.isfinite(value):
            raise place.wrong(key, f"must be finite, not {value!r}")
        if least is not None and value < least:
            raise place.wrong(key, f"must be at least {least:g}, not {value:g}")
        return float(value)

    return read


def one_of(
    *choices: str, later: Mapping[str, str] | None = None
) -> Callable[[Place, str, Any], str]:
    """Return a reader of one word of several; ``later`` names those that are not built yet."""

    def read(place: Place, key: str, value: Any) -> str:
        if isinstance(value, str) and later and value in later:
            raise place.wrong(key, f"{value!r} {later[value]}")
        if value not in choices:
            raise place.wrong(key, f"must be one of {', '.join(choices)}, not {value!r}")
        return str(value)

    return read


def seconds_of(place: Place, key: str, value: Any) -> float:
    """Return the seconds of ``"90s"``, ``"10m"``, ``"4h"``, ``"7d"``, perhaps below zero."""
    match = DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise place.wrong(key, f'must be a duration as "90s", "10m", "4h" or "7d", not {value!r}')
    sign, amount, unit = match.groups()
    return (-1 if sign else 1) * float(amount) * UNITS[unit]


def duration(*, positive: bool = False) -> Callable[[Place, str, Any], float]:
    """Return a reader of durations in seconds."""

    def read(place: Place, key: str, value: Any) -> float:
        found = seconds_of(place, key, value)
        if found < 0 or (positive and found == 0):
            raise place.wrong(
                key, f"must be {'above' if positive else 'at least'} 0, not {value!r}"
            )
        return found

    return read


def duration_or(word: str, *, positive: bool = False) -> Callable[[Place, str, Any], float | None]:
    """Return a reader of durations in seconds; ``word`` (none, never) reads as None."""
    read_duration = duration(positive=positive)

    def read(place: Place, key: str, value: Any) -> float | None:
        return None if value == word else read_duration(place, key, value)

    return read


def whole_seconds(*, positive: bool = False) -> Callable[[Place, str, Any], float]:
    """Return a reader of durations that are kept in whole seconds."""
    read_duration = duration(positive=positive)

    def read(place: Place, key: str, value: Any) -> float:
        found = read_duration(place, key, value)
        if not found.is_integer():
            raise place.wrong(key, f"must be in whole seconds, not {value!r}")
        return found

    return read


def whole_seconds_or(
    word: str, *, positive: bool = False
) -> Callable[[Place, str, Any], float | None]:
    """Return a reader of whole seconds; ``word`` (none) reads as None."""
    read_duration = whole_seconds(positive=positive)

    def read(place: Place, key: str, value: Any) -> float | None:
        return None if value == word else read_duration(place, key, value)

    return read


def moment(place: Place, key: str, value: Any) -> datetime:
    """Return an RFC 3339 time, written as one or as a string."""
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if not isinstance(found, datetime):
        raise place.wrong(key, f"must be a time as 2026-01-05T12:00:00Z, not {value!r}")
    if found.tzinfo is None:
        raise place.wrong(key, "must carry a time zone, as 2026-01-05T12:00:00Z")
    return found.astimezone(UTC)


def instant(now: datetime) -> Callable[[Place, str, Any], datetime]:
    """Return a reader of RFC 3339 times, and of offsets from ``now``."""

    def read(place: Place, key: str, value: Any) -> datetime:
        if isinstance(value, str) and DURATION.fullmatch(value):
            return now + timedelta(seconds=seconds_of(place, key, value))
        if isinstance(value, datetime) or (isinstance(value, str) and value[:4].isdecimal()):
            return moment(place, key, value)
        raise place.wrong(key, f'must be a time or an offset as "-10m", not {value!r}')

    return read


def words(place: Place, key: str, value: Any) -> list[str]:
    """Return a list of strings."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise place.wrong(key, "must be a list of names")
    return value


def names_of_range(place: Place, key: str, value: Any) -> list[str]:
    """Return the names of ``n[01-03,7]`` or ``a1,b[1-2]n[1-4]``, as Slurm writes them.

    The leading zeros of a range's first number are kept.
    """
    written = text(place, key, value)
    found: list[str] = []
    for name in re.split(r",(?![^\[]*\])", written):
        if not re.fullmatch(r"[^\[\],\s]*(\[[^\[\]]+\][^\[\],\s]*)*", name) or not name:
            raise place.wrong(key, f"{written!r} is no range as n[1-4]")
        found += _spelled_out(place, key, name)
        if len(found) > MOST_NAMES:
            raise place.wrong(key, f"{written!r} is more than {MOST_NAMES:,} nodes")
    return found


def _spelled_out(place: Place, key: str, name: str) -> list[str]:
    """Return the names of one word with any number of brackets, the first varies slowest."""
    before, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    body, _, after = rest.partition("]")
    numbers: list[str] = []
    for part in body.split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if ends is None:
            raise place.wrong(key, f"{name!r} is no range as n[1-4]")
        low, high = ends.group(1), ends.group(2) or ends.group(1)
        if not int(low) <= int(high) < int(low) + MOST_NAMES:
            raise place.wrong(key, f"{name!r} runs from {low} to {high}")
        numbers += [f"{k:0{len(low)}d}" for k in range(int(low), int(high) + 1)]
    afters = _spelled_out(place, key, after) if after else [""]
    if len(numbers) * len(afters) > MOST_NAMES:
        raise place.wrong(key, f"{name!r} is more than {MOST_NAMES:,} nodes")
    return [f"{before}{number}{end}" for number in numbers for end in afters]
