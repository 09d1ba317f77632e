"""What a simulated job really does: how long it takes, how it ends, how busy it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from apps.backends.adapters.workloads import Keys, invalid, read_keys

LONGEST_SECONDS = 1_000_000_000
"""Thirty-one years: whatever is longer is a mistake, and would overflow an instant."""

OUTCOMES = ("succeeded", "failed")


def _number(key: str, value: object, most: float) -> float:
    """Return a finite number from 0 to ``most``; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(key, f"must be a number, not {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(key, "must be a finite number.")
    if not 0 <= value <= most:
        raise invalid(key, f"must be from 0 to {most:,.0f}.")
    return value


def _seconds(key: str, value: object) -> float | None:
    return None if value is None else _number(key, value, LONGEST_SECONDS)


def _every(key: str, value: object) -> float | None:
    every = _seconds(key, value)
    if every is not None and every < 1:
        raise invalid(key, "must be at least 1 second.")
    return every


def _takes(key: str, value: object) -> float | str:
    return "never" if value == "never" else _number(key, value, LONGEST_SECONDS)


def _share(key: str, value: object) -> float:
    return _number(key, value, 1)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid(key, f"must be true or false, not {value!r}.")
    return value


def _kind(key: str, value: object) -> str:
    if value != "simulated":
        raise invalid(key, f"must be 'simulated' on a simulated cluster, not {value!r}.")
    return "simulated"


def _outcome(key: str, value: object) -> str:
    if not isinstance(value, str) or value not in OUTCOMES:
        raise invalid(key, f"must be one of {', '.join(OUTCOMES)}, not {value!r}.")
    return value


KEYS: Keys = {
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
    checked = read_keys(workload, KEYS)
    if checked["idle_for"] is not None and checked["idle_after"] is None:
        raise invalid("idle_for", "needs workload.idle_after beside it.")
    return checked
