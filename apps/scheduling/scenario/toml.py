"""Writing TOML, as much of it as a scenario file needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")
WIDTH = 100


def quoted(text: str) -> str:
    """Return a basic string; what TOML escapes is what JSON does, and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(name: str) -> str:
    """Return a key, quoted where it must be."""
    return name if BARE.fullmatch(name) else quoted(name)


def value(found: Any) -> str:
    """Return a value on one line: text, a number, true or false, a list or an inline table."""
    if isinstance(found, str):
        return quoted(found)
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, Mapping):
        inside = ", ".join(f"{key(name)} = {value(one)}" for name, one in found.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(found, list):
        return f"[{', '.join(map(value, found))}]"
    return repr(found)


def line(name: str, found: Any) -> str:
    """Return a key and its value; a list too long for a line has one item a line."""
    written = f"{name} = {value(found)}"
    if len(written) <= WIDTH or not isinstance(found, list):
        return written
    return f"{name} = [\n" + "".join(f"    {value(one)},\n" for one in found) + "]"


def table(header: str, values: Mapping[str, Any]) -> str:
    """Return a table under its header; values that are None are left out."""
    lines = [line(key(name), found) for name, found in values.items() if found is not None]
    return "\n".join([header, *lines])
