"""What the kinds of cluster share in reading a workload: keys, defaults, and one form of refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from apps.common.errors import Invalid

Keys = Mapping[str, tuple[Any, Callable[[str, object], Any]]]
"""Each key: what it defaults to, and what reads it."""


def invalid(key: str, message: str) -> Invalid:
    """Return the refusal of a key."""
    return Invalid(f"workload.{key} {message}", field=f"workload.{key}")


def read_keys(workload: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Return each key as it is read, or its default.

    :raises Invalid: naming ``workload.<key>``.
    """
    if not isinstance(workload, Mapping):
        raise Invalid("workload must be an object.", field="workload")
    unknown = sorted(str(key) for key in workload if key not in keys)
    if unknown:
        raise invalid(unknown[0][:80], f"is not known; there are {', '.join(keys)}.")
    return {
        key: read(key, workload[key]) if key in workload else default
        for key, (default, read) in keys.items()
    }
