"""Read the environment once, and refuse what is not understood."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parents[2]

env = environ.Env()

# Every name that was asked for: docs/OPERATIONS.md lists them, and a test compares.
NAMES: set[str] = set()

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


def text(name: str, default: str = "") -> str:
    """Return a value as it stands; empty is the same as unset."""
    NAMES.add(name)
    return str(env.str(name, default="")).strip() or default


def whole(name: str, default: int, *, least: int = 0) -> int:
    """Return a whole number that is not below ``least``."""
    value = text(name, str(default))
    if not value.isascii() or not value.isdecimal() or int(value) < least:
        raise ImproperlyConfigured(
            f"{name} must be a whole number of at least {least}, not {value!r}."
        )
    return int(value)


def seconds(name: str, default: int) -> int:
    """Return a positive whole number of seconds."""
    return whole(name, default, least=1)


def flag(name: str, *, default: bool) -> bool:
    """Return yes or no."""
    value = text(name, "yes" if default else "no").lower()
    if value not in _YES + _NO:
        raise ImproperlyConfigured(f"{name} must be yes or no, not {value!r}.")
    return value in _YES


def words(name: str, default: list[str]) -> list[str]:
    """Return a list that is written with commas."""
    return [word.strip() for word in text(name).split(",") if word.strip()] or default


def report_zone(name: str, default: str) -> str:
    """Return the name of a known time zone."""
    value = text(name, default)
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ImproperlyConfigured(f"{name}: there is no time zone {value!r}.") from error
    return value


def one_of(name: str, default: str, choices: tuple[str, ...]) -> str:
    """Return one of the given words."""
    value = text(name, default)
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    return value


def redis_url(name: str, default: str) -> str:
    """Return the address of a Redis, in the form that Celery reads."""
    value = text(name, default)
    if not value.startswith(("redis://", "rediss://", "redis+socket://", "unix://")):
        raise ImproperlyConfigured(
            f"{name} must start with redis://, rediss:// or redis+socket://."
        )
    # The client says unix://, Celery says redis+socket://, and both mean the same.
    return value.replace("unix://", "redis+socket://", 1)


def database(name: str) -> dict[str, Any] | None:
    """Return the settings of a PostgreSQL database; None: it is not set."""
    value = text(name)
    if not value:
        return None
    found: dict[str, Any] = {}
    if value.startswith(("postgres://", "postgresql://")):
        with suppress(ValueError, ImproperlyConfigured):
            found = env.db_url(name)
    if not found.get("NAME"):
        raise ImproperlyConfigured(
            f"{name} must be postgres://USER:PASSWORD@HOST:PORT/NAME, or unset for SQLite."
        )
    return found


def kept_secret(path: Path) -> str:
    """Return the key in a file that only its owner reads; made on first use."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(64))
    key = path.read_text().strip()
    if not key:
        raise ImproperlyConfigured(f"{path} is empty; remove it and start again.")
    return key


def refuse_unknown() -> None:
    """Refuse a ROLLCALL_… variable that nothing reads: most likely a slip of the pen."""
    unknown = sorted(
        name for name in os.environ if name.startswith("ROLLCALL_") and name not in NAMES
    )
    if unknown:
        known = ", ".join(sorted(name for name in NAMES if name.startswith("ROLLCALL_")))
        raise ImproperlyConfigured(f"{unknown[0]} is not a setting of Rollcall; it knows {known}.")
