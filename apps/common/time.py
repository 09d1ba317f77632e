"""Instants as integers: microseconds since the epoch, UTC, exact in both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

MICROSECOND = 1_000_000
HOUR_US = 3_600 * MICROSECOND
DAY_US = 24 * HOUR_US
QUARTER_US = HOUR_US // 4

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(at: datetime) -> int:
    """Return microseconds since the epoch; ``at`` must carry a zone."""
    return (at - EPOCH) // timedelta(microseconds=1)


def from_us(at: int) -> datetime:
    """Return the UTC instant of microseconds since the epoch."""
    return EPOCH + timedelta(microseconds=at)


def quarter_of(at: int) -> int:
    """Return the start of the UTC quarter-hour that holds an instant."""
    return at - at % QUARTER_US
