"""Snapshots, policies and plans as columns, and columns as bytes: lossless, versioned, no pickle.

Bytes are zlib (level 1) of: the length of a JSON header (4 bytes, big-endian), the header, and the
arrays, one after another. Integers are stored as narrow as they fit and read as they were.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from apps.engine.types import Columns, Plan, Policy, Snapshot

VERSION = 2
READS = (1, 2)
"""Versions it reads: what an older one lacks has a default."""
LEVEL = 1
NARROW = (np.int8, np.int16, np.int32)

T = TypeVar("T")


class Undecodable(ValueError):
    """Bytes that are not of this codec, or of a version it does not read."""


def to_columns(value: Any, prefix: str = "") -> Columns:
    """Flatten a dataclass: a dotted name for each array, number or text in it."""
    columns: Columns = {}
    for field in fields(value):
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            columns.update(to_columns(inner, f"{prefix}{field.name}."))
        else:
            columns[prefix + field.name] = inner
    return columns


def from_columns(kind: type[T], columns: Columns, prefix: str = "") -> T:
    """Rebuild a dataclass from its columns; what has a default may be missing.

    :raises Undecodable: if a column without a default is missing.
    """
    values: dict[str, Any] = {}
    optional = _optional(kind)  # type: ignore[arg-type]  # a class is hashable
    for name, hint in _hints(kind).items():  # type: ignore[arg-type]  # a class is hashable
        if is_dataclass(hint):
            inside = f"{prefix}{name}."
            if name in optional and not any(column.startswith(inside) for column in columns):
                continue
            values[name] = from_columns(hint, columns, f"{prefix}{name}.")  # type: ignore[arg-type]  # a class, by its hint
        elif prefix + name in columns:
            value = columns[prefix + name]
            values[name] = tuple(value) if isinstance(value, list) else value
        elif name not in optional:
            raise Undecodable(f"no column {prefix + name}")
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _optional(kind: type) -> frozenset[str]:
    return frozenset(
        field.name
        for field in fields(kind)
        if field.default is not MISSING or field.default_factory is not MISSING
    )


def dump(kind: str, columns: Columns) -> bytes:
    """Write columns as bytes."""
    arrays: list[tuple[str, str, str, tuple[int, ...]]] = []
    values: dict[str, Any] = {}
    parts: list[bytes] = []
    for name, value in columns.items():
        if isinstance(value, np.ndarray):
            stored = np.ascontiguousarray(_narrow(value))
            arrays.append((name, value.dtype.str, stored.dtype.str, value.shape))
            parts.append(stored.tobytes())
        else:
            values[name] = value
    header = json.dumps(
        {"version": VERSION, "kind": kind, "arrays": arrays, "values": values},
        separators=(",", ":"),
    ).encode()
    return zlib.compress(b"".join([len(header).to_bytes(4, "big"), header, *parts]), LEVEL)


def load(kind: str, data: bytes) -> Columns:
    """Read columns from bytes.

    :raises Undecodable: if they are damaged, of another kind or of another version.
    """
    try:
        raw = zlib.decompress(data)
        start = 4 + int.from_bytes(raw[:4], "big")
        header = json.loads(raw[4:start])
        version, found = header["version"], header["kind"]
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise Undecodable(f"not a stored {kind}: {error}") from error
    if version not in READS or found != kind:
        raise Undecodable(f"a {found} of version {version}, not a {kind} of version {VERSION}")
    columns: Columns = dict(header["values"])
    for name, dtype, stored, shape in header["arrays"]:
        narrow = np.dtype(stored)
        size = int(np.prod(shape, dtype=np.int64))
        if start + size * narrow.itemsize > len(raw):
            raise Undecodable(f"a {kind} that was cut off at {name}")
        flat = np.frombuffer(raw, dtype=narrow, count=size, offset=start)
        columns[name] = flat.astype(np.dtype(dtype)).reshape(shape)
        start += size * narrow.itemsize
    return columns


def _narrow(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype != np.int64 or not array.size:
        return array
    low, high = int(array.min()), int(array.max())
    for dtype in NARROW:
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return array.astype(dtype)
    return array


def encode_snapshot(snapshot: Snapshot, policy: Policy) -> bytes:
    """Write what a decision was made from."""
    columns = to_columns(snapshot, "snapshot.") | to_columns(policy, "policy.")
    return dump("snapshot", columns)


def decode_snapshot(data: bytes) -> tuple[Snapshot, Policy]:
    """Read what a decision was made from.

    :raises Undecodable: if the bytes are not a stored snapshot of this version.
    """
    columns = load("snapshot", data)
    return (
        from_columns(Snapshot, columns, "snapshot."),
        from_columns(Policy, columns, "policy."),
    )


def encode_plan(plan: Plan) -> bytes:
    """Write a decision."""
    return dump("plan", to_columns(plan))


def decode_plan(data: bytes) -> Plan:
    """Read a decision.

    :raises Undecodable: if the bytes are not a stored plan of this version.
    """
    return from_columns(Plan, load("plan", data))


def difference(one: Any, other: Any, limit: int = 10) -> list[str]:
    """Name the first fields in which two plans (or snapshots) differ; NaN equals NaN.

    Each line is ``verdicts.reason[3]: 12 is 13``, or ``order: 4 rows are 5``.
    """
    found: list[str] = []
    mine, theirs = to_columns(one), to_columns(other)
    for name, value in mine.items():
        if len(found) >= limit:
            break
        against = theirs[name]
        if not isinstance(value, np.ndarray):
            if value != against:
                found.append(f"{name}: {value!r} is {against!r}")
        elif value.shape != against.shape:
            found.append(f"{name}: {_rows(value)} are {_rows(against)}")
        else:
            found += _cells(name, value, against, limit - len(found))
    return found


def _rows(array: npt.NDArray[Any]) -> str:
    return " × ".join(str(n) for n in array.shape) + " values"


def _cells(name: str, value: npt.NDArray[Any], against: npt.NDArray[Any], limit: int) -> list[str]:
    differs = value != against
    if value.dtype.kind == "f":
        differs &= ~(np.isnan(value) & np.isnan(against))
    lines = []
    for cell in np.argwhere(differs)[:limit].tolist():
        where = ", ".join(str(c) for c in cell)
        lines.append(f"{name}[{where}]: {value[tuple(cell)]} is {against[tuple(cell)]}")
    return lines
