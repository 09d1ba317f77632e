"""Read the environment once, and refuse what is not understood."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parents[2]

env = environ.Env()


def seconds(name: str, default: int) -> int:
    """Return a positive whole number of seconds."""
    value = int(env.int(name, default=default))
    if value <= 0:
        raise ImproperlyConfigured(f"{name} must be a positive number of seconds, not {value}.")
    return value


def report_zone(name: str, default: str) -> str:
    """Return the name of a known time zone."""
    value = str(env.str(name, default=default))
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ImproperlyConfigured(f"{name}: there is no time zone {value!r}.") from error
    return value


def one_of(name: str, default: str, choices: tuple[str, ...]) -> str:
    """Return one of the given words."""
    value = str(env.str(name, default=default))
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    return value
