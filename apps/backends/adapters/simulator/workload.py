"""What a simulated job really does: how long it takes, how it ends, how busy it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from apps.common.errors import Invalid

LONGEST_SECONDS = 1_000_000_000
"""Thirty-one years: whatever is longer is a mistake, and would overflow an instant."""

OUTCOMES = ("succeeded", "failed")


def _invalid(key: str, message: str) -> Invalid:
    return Invalid(f"workload.{key} {message}", field=f"workload.{key}")


def _number(key: str, value: object, most: float) -> float:
    """Return a finite number from 0 to ``most``; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(key, f"must be a number, not {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise _invalid(key, "must be a finite number.")
    if not 0 <= value <= most:
        raise _invalid(key, f"must be from 0 to {most:,.0f}.")
    return value


def _seconds(key: str, value: object) -> float | None:
    return None if value is None else _number(key, value, LONGEST_SECONDS)


def _every(key: str, value: object) -> float | None:
    every = _seconds(key, value)
    if every is not None and every < 1:
        raise _invalid(key, "must be at least 1 second.")
    return every


def _takes(key: str, value: object) -> float | str:
    return "never" if value == "never" else _number(key, value, LONGEST_SECONDS)


def _share(key: str, value: object) -> float:
    return _number(key, value, 1)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _invalid(key, f"must be true or false, not {value!r}.")
    return value


def _kind(key: str, value: object) -> str:
    if value != "simulated":
        raise _invalid(key, f"must be 'simulated' on a simulated cluster, not {value!r}.")
    return "simulated"


def _outcome(key: str, value: object) -> str:
    if not isinstance(value, str) or value not in OUTCOMES:
        raise _invalid(key, f"must be one of {', '.join(OUTCOMES)}, not {value!r}.")
    return value


# Each key: what it defaults to, and what reads it.
KEYS: dict[str, tuple[Any, Callable[[str, object], Any]]] = {
    "kind": ("simulated", _kind),
    "runtime": (None, _seconds),
    "outcome": ("succeeded", _outcome),
    "checkpoint_every": (None, _every),
    "checkpoint_takes": (0, _takes),
    "utilisation": (0.9, _share),
    "idle_after": (None, _seconds),
    "idle_for": (None, _seconds),
    "unknown": (False, _flag),
}


def check(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload with its defaults filled in.

    ``runtime`` None takes as long as the job's limit, for ever if there is none. ``idle_for`` None
    is to the end. ``checkpoint_takes`` may be ``"never"``: a job that ignores the signal.

    :raises Invalid: naming ``workload.<key>``.
    """
    if not isinstance(workload, Mapping):
        raise Invalid("workload must be an object.", field="workload")
    unknown = sorted(str(key) for key in workload if key not in KEYS)
    if unknown:
        raise _invalid(unknown[0][:80], f"is not known; there are {', '.join(KEYS)}.")
    checked = {
        key: read(key, workload[key]) if key in workload else default
        for key, (default, read) in KEYS.items()
    }
    if checked["idle_for"] is not None and checked["idle_after"] is None:
        raise _invalid("idle_for", "needs workload.idle_after beside it.")
    return checked
