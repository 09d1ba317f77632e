"""Numbers, durations and instants as words: one place for pages, exports and sentences."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

THIN = "\u2009"
MINUS = "\u2212"
NAME_LENGTH = 48
SIGNS = {"USD": "$", "EUR": "€", "GBP": "£", "CHF": "CHF\u00a0", "CAD": "CA$", "AUD": "A$"}
CURRENCIES = {
    "USD": "US dollars",
    "EUR": "euros",
    "GBP": "pounds sterling",
    "CHF": "Swiss francs",
    "CAD": "Canadian dollars",
    "AUD": "Australian dollars",
}
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

Number = int | float | Decimal | Fraction


def is_nothing(value: Any) -> bool:
    """Return whether a value is null, empty, NaN or infinite: nothing a page may write."""
    if value is None or value == "":
        return True
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, Decimal) and not value.is_finite()


def _rounded(value: Number, decimals: int) -> Decimal:
    """Return a value rounded half up, and never a negative zero."""
    if isinstance(value, Fraction):
        scaled = value * 10**decimals
        units = math.floor(abs(scaled) + Fraction(1, 2)) * (-1 if scaled < 0 else 1)
        return Decimal(units).scaleb(-decimals)
    exact = value if isinstance(value, Decimal) else Decimal(repr(value))
    rounded = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return abs(rounded) if rounded == 0 else rounded


def _signed(value: Decimal, text: str) -> str:
    return f"{MINUS}{text}" if value < 0 else text


def decimals(value: Number, places: int) -> str:
    """Write a number with thousands separators and a real minus: ``−1,234.50``."""
    rounded = _rounded(value, places)
    return _signed(rounded, f"{abs(rounded):,.{places}f}")


def whole(value: Number) -> str:
    """Write a number rounded to a whole."""
    return decimals(value, 0)


def money(value: Number) -> str:
    """Write an amount in units of the currency, two decimals, rounded half up."""
    rounded = _rounded(value, 2)
    return _signed(rounded, f"{SIGNS[settings.CURRENCY]}{abs(rounded):,.2f}")


def gpu_hours(value: Number, *, unit: bool = True) -> str:
    """Write GPU-hours: two decimals, none from 10,000 on; GPU-seconds below a GPU-minute."""
    size = abs(Fraction(value))
    if unit and 0 < size < Fraction(1, 60):
        seconds = Fraction(value) * 3600
        return f"{decimals(seconds, 0 if abs(seconds) >= 1 else 2)} GPU-s"
    text = decimals(value, 0 if size >= 10_000 else 2)
    return f"{text} GPUh" if unit else text


def duration(value: Number | timedelta, *, full: bool = False) -> str:
    """Write a duration in two units at most: ``47 s``, ``8 min 52 s``, ``2 d 16 h``.

    ``value`` is seconds or a timedelta; a second begun is not counted. A smaller unit of zero is
    left out (``30 min``) unless ``full`` (``30 min 00 s``), which lines up in a column.
    """
    seconds = int(value.total_seconds() if isinstance(value, timedelta) else value)
    sign, left = (MINUS if seconds < 0 else ""), abs(seconds)
    for (unit, size), (smaller, small) in pairwise(UNITS):
        if left >= size:
            count, rest = divmod(left, size)
            second = rest // small
            if not second and not full:
                return f"{sign}{count} {unit}"
            width = 1 if smaller == "h" else 2
            return f"{sign}{count} {unit} {second:0{width}d} {smaller}"
    return f"{sign}{left} s"


def percent(value: Number, *, places: int = 1) -> str:
    """Write a fraction of one in percent, with a thin space."""
    hundred = value * 100
    if 0 < hundred < Fraction(1, 20) and places == 1:
        return f"< 0.1{THIN}%"
    return f"{decimals(hundred, places)}{THIN}%"


def ratio(value: Number) -> str:
    """Write a ratio with its sign: ``1.30×``."""
    return f"{decimals(value, 2)}×"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Write a count with its noun: ``1 job``, ``1,234 jobs``."""
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"


def spoken(value: Any) -> str:
    """Return a name as one line; one of nothing but blanks is said to be so."""
    return " ".join(str(value).split()) or "(no name)"


def cut(text: str, length: int = NAME_LENGTH) -> str:
    """Return a text cut to a length, with an ellipsis where something is missing."""
    return text if len(text) <= length else text[: length - 1] + "…"


def zone() -> ZoneInfo:
    """Return the zone every page and report is in."""
    return ZoneInfo(settings.REPORT_ZONE)


def iso(at: datetime) -> str:
    """Write an instant for machines, in the report zone with its offset."""
    return at.astimezone(zone()).isoformat(timespec="seconds")


def instant(at: datetime, *, now: datetime, style: str = "") -> str:
    """Write an instant in the report zone.

    ``style``: "" is today ``14:05``, else ``Thu 12 Mar 14:05``, the year where it is another;
    "seconds" adds them; "date" is the day alone; "stamp" is the time with seconds and zone, and
    the day where it is not today.
    """
    local, today = at.astimezone(zone()), now.astimezone(zone()).date()
    day = f"{local:%a} {local.day} {local:%b}"
    if local.year != today.year:
        day += f" {local.year}"
    if style == "date":
        return day
    clock = f"{local:%H:%M:%S}" if style in {"seconds", "stamp"} else f"{local:%H:%M}"
    if style == "stamp":
        clock += f" {local.tzname()}"
    return clock if local.date() == today else f"{day} {clock}"


def zone_words(now: datetime) -> str:
    """Write the report zone once for a page: ``Europe/Zurich (CET, UTC+1)``."""
    local = now.astimezone(zone())
    offset = local.utcoffset() or timedelta()
    minutes = int(offset.total_seconds()) // 60
    hours, rest = divmod(abs(minutes), 60)
    sign = "+" if minutes >= 0 else MINUS
    utc = "UTC" if not minutes else f"UTC{sign}{hours}" + (f":{rest:02d}" if rest else "")
    abbreviation = local.tzname() or ""
    if abbreviation == settings.REPORT_ZONE or (not minutes and abbreviation == "UTC"):
        return (
            settings.REPORT_ZONE
            if settings.REPORT_ZONE == "UTC"
            else f"{settings.REPORT_ZONE} (UTC)"
        )
    known = abbreviation if abbreviation.isalpha() else ""
    return f"{settings.REPORT_ZONE} ({', '.join(filter(None, (known, utc)))})"


def zone_name(now: datetime) -> str:
    """Write the zone as a column's head does: ``CET``."""
    return now.astimezone(zone()).tzname() or settings.REPORT_ZONE


def currency_words() -> str:
    """Write the currency for a page's foot: ``US dollars``."""
    return CURRENCIES[settings.CURRENCY]
