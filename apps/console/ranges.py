"""Ranges of time a page can be asked for, in the report zone, and the buckets of its figures.

A relative range (``24h``) ends now and stays relative in a shared link; a period (a day, a week,
a month) is whole days of the report zone. All instants are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from apps.common.errors import Invalid
from apps.common.time import DAY_US, HOUR_US, MICROSECOND, from_us, to_us

MINUTE_US = 60 * MICROSECOND
RELATIVE = {"1h": HOUR_US, "24h": DAY_US, "7d": 7 * DAY_US, "30d": 30 * DAY_US}
WORDS = {"1h": "1 hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
PERIODS = ("day", "week", "month")
LONGEST = timedelta(days=1830)
ONE_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open stretch of time, how it was asked for, and where its neighbours start."""

    name: str  # a key of RELATIVE or PERIODS, or "custom"
    since_us: int
    until_us: int
    first: date  # in the report zone
    last: date  # inclusive
    earlier: date | None = None
    later: date | None = None  # None: it would start in the future

    @property
    def length_us(self) -> int:
        """Return how long it is."""
        return self.until_us - self.since_us


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bar of a figure; the zone's name is in ``label``, so a repeated hour is two bars."""

    since_us: int
    until_us: int
    label: str
    tick: str  # "": no label under this bar


def midnight_us(day: date, zone: ZoneInfo) -> int:
    """Return the instant a day starts at in a zone."""
    return to_us(datetime(day.year, day.month, day.day, tzinfo=zone))


def day_of(at_us: int, zone: ZoneInfo) -> date:
    """Return the day an instant falls on in a zone."""
    return from_us(at_us).astimezone(zone).date()


def relative(name: str, *, now_us: int, zone: ZoneInfo) -> Span:
    """Return the span of that length that ends now."""
    if name not in RELATIVE:
        raise Invalid(f"range must be one of {', '.join(RELATIVE)}, not {name!r}.", field="range")
    since_us = now_us - RELATIVE[name]
    return Span(name, since_us, now_us, day_of(since_us, zone), day_of(now_us, zone))


def parse_day(text: str, field: str) -> date:
    """Return the day written as 2026-03-05."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.min
    if not 1971 <= day.year < 9999:  # a week before or after it must be a day too
        raise Invalid(f"{field} must be a day such as 2026-03-05, not {text!r}.", field=field)
    return day


def custom(first: str, last: str, *, now_us: int, zone: ZoneInfo) -> Span:
    """Return the span of whole days from ``first`` to ``last``, both included."""
    start, end = parse_day(first, "from"), parse_day(last, "to")
    if end < start:
        raise Invalid(f"to ({end}) must not be before from ({start}).", field="to")
    if end - start > LONGEST:
        raise Invalid("A range must not be longer than five years.", field="to")
    if start > day_of(now_us, zone):
        raise Invalid(f"from ({start}) must not be in the future.", field="from")
    days = (end - start) + timedelta(days=1)
    until = midnight_us(end + timedelta(days=1), zone)
    later = start + days
    return Span(
        "custom",
        midnight_us(start, zone),
        min(until, now_us),
        start,
        end,
        start - days,
        later if later <= day_of(now_us, zone) else None,
    )


def period(name: str, *, now_us: int, zone: ZoneInfo, start: date | None = None) -> Span:
    """Return a day, a week or a month; without a start the last whole one before today.

    A week is seven days from ``start``; a period that goes on is cut off at ``now_us``.
    """
    if name not in PERIODS:
        raise Invalid(f"range must be one of {', '.join(PERIODS)}, not {name!r}.", field="range")
    today = day_of(now_us, zone)
    if name == "month":
        first = (start or _month(today, -1)).replace(day=1)
        after, earlier = _month(first, 1), _month(first, -1)
    else:
        days = timedelta(days=1 if name == "day" else 7)
        first = start or today - days
        after, earlier = first + days, first - days
    if first > today:
        raise Invalid(f"from ({first}) must not be in the future.", field="from")
    return Span(
        name,
        midnight_us(first, zone),
        min(midnight_us(after, zone), now_us),
        first,
        after - timedelta(days=1),
        earlier,
        after if after <= today else None,
    )


def _month(day: date, step: int) -> date:
    """Return the first of the month ``step`` months on."""
    months = day.year * 12 + day.month - 1 + step
    return date(months // 12, months % 12 + 1, 1)


def hours_before(now_us: int, hours: int) -> tuple[int, int]:
    """Return the span of whole hours before the present one, which is left out."""
    until = now_us - now_us % HOUR_US
    return until - hours * HOUR_US, until


def buckets(since_us: int, until_us: int, zone: ZoneInfo) -> list[Bucket]:
    """Cut a span by its length: minutes, hours, 4 hours, days or weeks of the report zone.

    The first and last may be shorter than the rest; a day of 23 or 25 hours stays one day.
    """
    length = until_us - since_us
    edges = [since_us, *(e for e in _edges(since_us, until_us, zone) if since_us < e < until_us)]
    spans = list(zip(edges, [*edges[1:], until_us], strict=True)) if length > 0 else []
    return [
        Bucket(start, end, label_of(start, end, zone), _tick(start, length, len(spans), zone))
        for start, end in spans
    ]


def step_words(since_us: int, until_us: int) -> str:
    """Return what one bar stands for: "minute", "hour", "4 hours", "day" or "week"."""
    length = until_us - since_us
    if length <= HOUR_US:
        return "minute"
    if length <= 49 * HOUR_US:
        return "hour"
    if length <= 8 * DAY_US:
        return "4 hours"
    return "day" if length <= 93 * DAY_US else "week"


def _edges(since_us: int, until_us: int, zone: ZoneInfo) -> Iterator[int]:
    step = step_words(since_us, until_us)
    if step == "minute":  # as long in every zone: their offsets are whole minutes
        yield from range(since_us - since_us % MINUTE_US, until_us, MINUTE_US)
        return
    day, last = day_of(since_us, zone), day_of(until_us, zone)
    if step == "week":
        day -= timedelta(days=day.weekday())
    while day <= last:
        start = midnight_us(day, zone)
        after = day + timedelta(days=7 if step == "week" else 1)
        if step == "hour":
            yield from range(start, midnight_us(after, zone), HOUR_US)
        elif step == "4 hours":
            for hour in range(0, 24, 4):
                yield to_us(datetime(day.year, day.month, day.day, hour, tzinfo=zone))
        else:
            yield start
        day = after


def local(at_us: int, zone: ZoneInfo) -> datetime:
    """Return an instant as a zone's wall clock shows it."""
    return from_us(at_us).astimezone(zone)


def label_of(start_us: int, end_us: int, zone: ZoneInfo) -> str:
    """Name a bar's time: ``Sun 8 Mar 08:00 – 12:00 CET``."""
    start, end = from_us(start_us).astimezone(zone), from_us(end_us).astimezone(zone)
    if start.time() == end.time() == datetime.min.time():
        last = end.date() - timedelta(days=1)
        if last == start.date():
            return f"{start:%a} {start.day} {start:%b} {start:%Z}"
        return f"{start:%a} {start.day} {start:%b} – {last:%a} {last.day} {last:%b} {end:%Z}"
    tail = f"{end:%H:%M}" if end.date() == start.date() else f"{end:%a} {end:%H:%M}"
    if end.time() == datetime.min.time() and end.date() == start.date() + timedelta(days=1):
        tail = "24:00"
    return f"{start:%a} {start.day} {start:%b} {start:%H:%M} – {tail} {start:%Z}"


def _tick(start_us: int, length_us: int, count: int, zone: ZoneInfo) -> str:
    """Return the label under a bar: about six an axis, at round hours or days."""
    start = from_us(start_us).astimezone(zone)
    if length_us <= HOUR_US:
        return f"{start:%H:%M}" if start.minute % 10 == 0 and not start.second else ""
    if length_us <= 49 * HOUR_US:
        every = 4 if count > 12 else 2
        return f"{start:%H:%M}" if start.hour % every == 1 % every and not start.minute else ""
    if length_us <= 8 * DAY_US:
        return f"{start:%a} {start.day}" if start.hour == 12 else ""
    every = max(1, count // 6)
    if length_us <= 93 * DAY_US:
        return f"{start.day} {start:%b}" if start.date().toordinal() % every == 0 else ""
    week = start.date().toordinal() // 7
    return f"{start.day} {start:%b}" if week % every == 0 else ""
