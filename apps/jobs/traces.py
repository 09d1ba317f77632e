"""Read traces of real clusters, row by row: files of any size, gzip or not, with bad rows in them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from apps.common.errors import Invalid
from apps.common.text import bad_character

GZIP = b"\x1f\x8b"
LONGEST_LINE = 65_536
LONGEST_RUN = 4 * 365 * 86_400.0
MOST_GPUS = 1_000_000
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
LINES_TOLD = 20
"""How many line numbers a report names for each reason."""


class Unusable(Exception):
    """A row that cannot be a job, and why."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace; ``seconds`` is how long it ran, ``group`` whose it was."""

    line: int
    at: datetime
    seconds: float
    gpus: int
    group: str


@dataclass(slots=True)
class Told:
    """How often one reason came, and the first lines it came on."""

    rows: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        """Count a line."""
        self.rows += 1
        if len(self.lines) < LINES_TOLD:
            self.lines.append(line)


@dataclass(slots=True)
class Report:
    """What became of a file's rows; rows = used + left out + refused, the header apart.

    Left out is what asks for no job (a blank line), refused what is no sensible one.
    """

    rows: int = 0
    used: int = 0
    left_out: dict[str, Told] = field(default_factory=dict)
    refused: dict[str, Told] = field(default_factory=dict)
    gpu_seconds: float = 0.0
    first: datetime | None = None
    last: datetime | None = None
    groups: Counter[str] = field(default_factory=Counter)

    @property
    def gpu_hours(self) -> float:
        """Return the GPU-hours of the jobs used."""
        return self.gpu_seconds / 3_600

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and beside them each reason with its first lines."""
        return {
            "rows": self.rows,
            "used": self.used,
            "left_out": sum(told.rows for told in self.left_out.values()),
            "refused": sum(told.rows for told in self.refused.values()),
            "jobs": self.used,
            "gpu_hours": self.gpu_hours,
            "reasons": {
                kind: {
                    reason: {"rows": told.rows, "lines": told.lines}
                    for reason, told in sorted(found.items())
                }
                for kind, found in (("left_out", self.left_out), ("refused", self.refused))
            },
        }

    def use(self, job: TraceJob) -> None:
        """Count a row that is a job."""
        self.used += 1
        self.gpu_seconds += job.seconds * job.gpus
        self.groups[job.group] += 1
        self.first = job.at if self.first is None else min(self.first, job.at)
        self.last = job.at if self.last is None else max(self.last, job.at)


# A file's lines -------------------------------------------------------------------------------------


class Source:
    """An open trace: its lines one at a time, how far it is read, and the digest of its text."""

    def __init__(self, raw: BinaryIO, size: int) -> None:
        self._raw = raw
        self.size = size
        self.packed = raw.peek(2)[:2] == GZIP if isinstance(raw, io.BufferedReader) else False
        self._text: BinaryIO = gzip.GzipFile(fileobj=raw) if self.packed else raw  # type: ignore[assignment]  # reads bytes all the same
        self._digest = hashlib.sha256()

    @property
    def read(self) -> int:
        """Return how many bytes of the file were read, packed as they are."""
        return self._raw.tell()

    @property
    def digest(self) -> str:
        """Return a digest of all lines read, the same whether packed or not."""
        return self._digest.hexdigest()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def lines(self) -> Iterator[str | None]:
        """Give the lines without their ends; None for one that is far too long.

        :raises Invalid: where a packed file breaks off or is damaged.
        """
        try:
            while line := self._text.readline(LONGEST_LINE):
                self._digest.update(line)
                if line.endswith(b"\n") or len(line) < LONGEST_LINE:
                    yield line.decode("utf-8", "surrogateescape").rstrip("\r\n")
                    continue
                while (more := self._text.readline(LONGEST_LINE)) and not more.endswith(b"\n"):
                    self._digest.update(more)
                self._digest.update(more)
                yield None
        except EOFError as error:
            raise Invalid(
                "The file breaks off: it is a truncated gzip. Nothing was imported; fetch it again.",
                field="path",
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise Invalid(
                f"The file is a damaged gzip ({error}). Nothing was imported; fetch it again.",
                field="path",
            ) from error


def open_trace(path: Path) -> Source:
    """Open a trace, packed with gzip or not: its first bytes tell, not its name.

    :raises Invalid: if it cannot be read.
    """
    try:
        return Source(path.open("rb"), path.stat().st_size)
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", field="path") from error


# The columns of a row -------------------------------------------------------------------------------


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise Unusable(f"{name} is no number" if text.strip() else f"{name} is empty") from None
    if not math.isfinite(value):
        raise Unusable(f"{name} is {'NaN' if math.isnan(value) else 'infinite'}")
    return value


def _instant(name: str, text: str) -> datetime:
    """Return an instant given as RFC 3339 or in seconds since 1970; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        at = None
    # "20171009" is a date to Python, and seconds here.
    if at is None or "-" not in text.strip()[1:]:
        seconds = _number(name, text)
        if seconds < 0:
            raise Unusable(f"{name} is negative")
        if seconds > (LATEST - EARLIEST).total_seconds():
            raise Unusable(f"{name} is after {LATEST.year}")
        return EARLIEST + timedelta(seconds=seconds)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    if at < EARLIEST:
        raise Unusable(f"{name} is before {EARLIEST.year}")
    if at > LATEST:
        raise Unusable(f"{name} is after {LATEST.year}")
    return at.astimezone(UTC)


def _gpus(name: str, text: str) -> int:
    value = _number(name, text)
    if value != int(value):
        raise Unusable(f"{name} is no whole number")
    if value == 0:
        raise Unusable(f"{name} is zero")
    if value < 0:
        raise Unusable(f"{name} is negative")
    if value > MOST_GPUS:
        raise Unusable(f"{name} is above {MOST_GPUS:,}")
    return int(value)


def _seconds(name: str, text: str) -> float:
    value = _number(name, text)
    if value < 0:
        raise Unusable(f"{name} is negative: it ends before it starts")
    if value > LONGEST_RUN:
        raise Unusable(f"{name} is above four years")
    return value


@lru_cache(maxsize=4_096)
def _group(name: str, text: str) -> str:
    group = text.strip()
    if not group:
        raise Unusable(f"{name} is empty")
    if len(group) > 80 or "/" in group or bad_character(group):
        raise Unusable(f"{name} is no name")
    return group


def philly_job(line: int, row: dict[str, str]) -> TraceJob:
    """Return the job of a row of Philly (Jeon et al., ATC'19; a virtual cluster is ``cluster``).

    ``gpu_time`` is duration × GPUs, and only looked at: one that is no time refuses the row.
    """
    if _number("gpu_time", row["gpu_time"]) < 0:
        raise Unusable("gpu_time is negative")
    return TraceJob(
        line=line,
        at=_instant("timestamp", row["timestamp"]),
        seconds=_seconds("duration", row["duration"]),
        gpus=_gpus("num_gpus", row["num_gpus"]),
        group=_group("cluster", row["cluster"]),
    )


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of trace: the columns it must have, and what makes a row a job."""

    columns: tuple[str, ...]
    job: Callable[[int, dict[str, str]], TraceJob]


FORMATS = {
    "philly": Format(("timestamp", "duration", "num_gpus", "gpu_time", "cluster"), philly_job),
}


def _split(line: str) -> list[str]:
    # A line at a time, so that a stray quote spoils its own row and no other.
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        raise Unusable("the line is no CSV") from None


def _header(line: str | None, wanted: Format) -> list[str]:
    """Return the names of the columns; their order is the file's own, others are allowed.

    :raises Invalid: naming a column that is missing or doubled.
    """
    if line is None:
        raise Invalid("The first line is far too long to name columns.", field="path")
    try:
        names = [name.strip().lower() for name in _split(line.removeprefix("\ufeff"))]
    except Unusable:
        names = []
    for column in wanted.columns:
        if column not in names:
            raise Invalid(
                f"The file has no column {column}; its first line must name"
                f" {', '.join(wanted.columns)}.",
                field=column,
            )
        if names.count(column) > 1:
            raise Invalid(f"The file has the column {column} twice.", field=column)
    return names


def read_jobs(source: Source, wanted: Format, report: Report) -> Iterator[TraceJob]:
    """Give the jobs of a trace one by one, and count every row in the report.

    :raises Invalid: if the file as a whole cannot be read: empty, a column missing, cut off.
    """
    lines = source.lines()
    try:
        first = next(lines)
    except StopIteration:
        raise Invalid("The file is empty.", field="path") from None
    names = _header(first, wanted)
    for number, line in enumerate(lines, start=2):
        report.rows += 1
        if line is not None and not line.strip():
            report.left_out.setdefault("a blank line", Told()).add(number)
            continue
        try:
            job = _job(number, line, names, wanted)
        except Unusable as error:
            report.refused.setdefault(str(error), Told()).add(number)
            continue
        report.use(job)
        yield job


def _job(number: int, line: str | None, names: list[str], wanted: Format) -> TraceJob:
    if line is None:
        raise Unusable("the line is far too long")
    values = _split(line)
    if len(values) != len(names):
        raise Unusable(f"the row has {len(values)} fields, not {len(names)}")
    return wanted.job(number, dict(zip(names, values, strict=True)))
