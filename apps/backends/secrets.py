"""Secrets among a cluster's options: sealed where they are stored, and shown nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.backends.kinds import KINDS, option_fields
from apps.common.sealing import seal

SHOWN = "(set)"


def _secret(kind: str) -> set[str]:
    fields = option_fields(kind) if kind in KINDS else ()
    return {field.name for field in fields if field.secret}


def sealed(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as they are stored: each secret sealed."""
    secret = _secret(kind)
    return {
        name: seal(value.strip()) if name in secret and isinstance(value, str) else value
        for name, value in options.items()
    }


def shown(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as they may be shown: of a secret only that it is set."""
    secret = _secret(kind)
    return {name: SHOWN if name in secret and value else value for name, value in options.items()}


def kept(kind: str, options: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with each secret that was left empty, or as it is shown, as it was before."""
    secret = _secret(kind)
    return {
        name: before[name] if name in secret & before.keys() and value in ("", SHOWN) else value
        for name, value in options.items()
    }
