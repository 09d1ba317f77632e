"""What the small marks of a page are drawn from: bars, meters, badges; geometry in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Protocol

from django.utils.safestring import SafeString

from apps.common import show
from apps.common.money import apportion
from apps.console.palette import STATES, TERMS, State
from apps.jobs.models import Job
from apps.jobs.states import JobState, Outcome

# Job states -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Badge:
    """A job's state as a glyph and a word."""

    key: str
    glyph: str
    label: str


BADGES = {
    badge.key: badge
    for badge in (
        Badge("pending", "pending", "Pending"),
        Badge("admitted", "admitted", "Admitted"),
        Badge("reserving", "reserving", "Reserving"),
        Badge("running", "running", "Running"),
        Badge("preempting", "preempting", "Leaving"),
        Badge("suspended", "bars", "Suspended"),
        Badge("held", "bars", "On hold"),
        Badge("succeeded", "check", "Succeeded"),
        Badge("failed", "cross", "Failed"),
        Badge("timed_out", "cross", "Timed out"),
        Badge("cancelled", "slash", "Cancelled"),
        Badge("evicted", "evicted", "Evicted"),
    )
}


def badge(job: Job) -> Badge:
    """Return the badge of a job as it is now; on hold and timed out are words of their own."""
    if job.state == JobState.PENDING and job.held_at is not None:
        return BADGES["held"]
    if job.state == JobState.FAILED and job.outcome == Outcome.TIMED_OUT:
        return BADGES["timed_out"]
    return BADGES[job.state.lower()]


# GPU states -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatePart:
    """One state of a state bar: its figures as text, its place in percent of the bar."""

    state: str
    label: str
    gpus: int
    percent: str
    money: str
    url: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class StateBar:
    """The GPU states as one bar, and the sentence that says the same."""

    total: int
    parts: tuple[StatePart, ...]
    words: str


def state_bar(
    gpus: Mapping[str, int],
    *,
    money: Mapping[str, str] | None = None,
    urls: Mapping[str, str] | None = None,
) -> StateBar:
    """Return the bar of GPUs by state; ``money`` is the text under each figure, already apportioned.

    Busy of unknown utilisation is drawn only where there is some; the others always have a figure.
    """
    keys = [key for key in STATES if key != "unknown" or gpus.get("unknown")]
    counts = [gpus.get(key, 0) for key in keys]
    total = sum(counts)
    tenths = apportion([Fraction(1000 * count, total or 1) for count in counts], 1000 * bool(total))
    parts: list[StatePart] = []
    before = 0
    for key, count, tenth in zip(keys, counts, tenths, strict=True):
        parts.append(
            StatePart(
                state=key,
                label=STATES[key].label,
                gpus=count,
                percent=show.percent(Fraction(tenth, 1000)) if total else "–",
                money=(money or {}).get(key, ""),
                url=(urls or {}).get(key, ""),
                x=_percent(before, total),
                width=_percent(count, total),
            )
        )
        before += count
    said = ", ".join(f"{part.label.lower()} {show.whole(part.gpus)}" for part in parts)
    return StateBar(total, tuple(parts), f"{show.counted(total, 'GPU')}: {said}")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4f}" if whole else "0"


def legend(keys: Iterable[str]) -> list[State]:
    """Return the states of a legend in their fixed order."""
    wanted = set(keys)
    return [state for key, state in STATES.items() if key in wanted]


# Priority ---------------------------------------------------------------------------------------


class HasTerms(Protocol):
    """A row with the terms of a priority: a Verdict, or what stands for one."""

    priority: float
    term_fair_share: float
    term_age: float
    term_size: float
    term_queue: float
    term_class: float
    term_boost: float
    term_nice: float


@dataclass(frozen=True, slots=True)
class TermPart:
    """A box of a term bar."""

    term: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class TermBar:
    """A priority as its terms, on the scale of its table."""

    parts: tuple[TermPart, ...]


@dataclass(frozen=True, slots=True)
class TermLabel:
    """A line of the legend of term bars."""

    term: str
    label: str


EXTRA_TERMS = (("class", "class"), ("boost", "boost"))


def _positive(row: HasTerms) -> list[tuple[str, float]]:
    drawn = [*((key, key) for key, _, _ in TERMS), *EXTRA_TERMS]
    return [(key, max(0.0, float(getattr(row, f"term_{key}")))) for key, _ in drawn]


def term_scale(rows: Iterable[HasTerms]) -> float:
    """Return the widest sum of terms of a table: what all its bars are drawn against."""
    return max((_extent(row) for row in rows), default=0.0) or 1.0


def _extent(row: HasTerms) -> float:
    total = sum(value for _, value in _positive(row))
    return max(total, total + float(row.term_nice), abs(min(0.0, float(row.term_nice))))


def term_bar(row: HasTerms, scale: float) -> TermBar:
    """Return the bar of one row: fair share, age, size, queue, and nice taken off the end.

    A nice that raises the priority is a box added to it. What nice takes beyond zero is drawn from
    the start: the box then is as long as it is strong, within the scale.
    """
    parts: list[TermPart] = []
    at = 0.0
    for key, value in _positive(row):
        if value > 0:
            parts.append(TermPart(key, _percent(at, scale), _percent(value, scale)))
            at += value
    nice = float(row.term_nice)
    if nice:
        start = max(0.0, at + nice) if nice < 0 else at
        parts.append(TermPart("nice", _percent(start, scale), _percent(abs(nice), scale)))
    return TermBar(tuple(parts))


def term_legend(rows: Sequence[HasTerms]) -> list[TermLabel]:
    """Return what the legend of a table's term bars has to name; class and boost only if drawn."""
    lines = [TermLabel(key, label) for key, label, _ in TERMS]
    for key, label in EXTRA_TERMS:
        if any(float(getattr(row, f"term_{key}")) > 0 for row in rows):
            lines.append(TermLabel(key, label))
    return [*lines, TermLabel("nice", "nice (taken off)")]


# Shares -----------------------------------------------------------------------------------------

METER_HALF = 46.0


@dataclass(frozen=True, slots=True)
class ShareMeter:
    """Where a ratio lies between ½× and 2×; ``beyond`` names the side it leaves on."""

    side: str
    x: str
    width: str
    beyond: str
    words: str


def share_meter(ratio: float | None, *, weight: float = 1.0) -> ShareMeter:
    """Return the meter of used ÷ share, and its words: ``30 % over``."""
    if weight == 0:
        return ShareMeter("", "46", "", "", "weight 0")
    if ratio is None:
        return ShareMeter("", "46", "", "", "no share")
    if ratio <= 0:
        return ShareMeter("under", "0", "46", "under", "unused")
    place = max(-1.0, min(1.0, math.log2(ratio)))
    beyond = "over" if ratio > 2 else "under" if ratio < 0.5 else ""
    off = abs(round((ratio - 1) * 100))
    words = (
        f"{show.whole(off)}{show.THIN}% {'over' if ratio > 1 else 'under'}"
        if off
        else "at its share"
    )
    width = abs(place) * METER_HALF
    x = METER_HALF if place >= 0 else METER_HALF - width
    return ShareMeter("over" if place > 0 else "under", f"{x:.1f}", f"{width:.1f}", beyond, words)


# Small parts ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alert:
    """One sentence of an alert strip, and where it leads; ``level`` is warn, bad or ok."""

    level: str
    text: str | SafeString
    url: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its label, its unit and one line of why."""

    label: str
    value: str | SafeString
    unit: str = ""
    why: str | SafeString = ""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of a timeline; ``gap`` is the length of a break of over an hour before it."""

    at: datetime
    glyph: str
    tone: str
    text: str | SafeString
    gap: str = ""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A trend in 64 × 18 pixels."""

    points: str
    last_x: str
    last_y: str
    reference: str | None


def sparkline(
    values: Sequence[float | Decimal], *, reference: float | None = None
) -> Sparkline | None:
    """Return the line of two values or more, from zero to the largest."""
    if len(values) < 2:
        return None
    numbers = [float(value) for value in values]
    top = max(*numbers, reference or 0.0) or 1.0
    places = [
        (f"{1 + 60 * k / (len(numbers) - 1):.1f}", f"{16 - 14 * value / top:.1f}")
        for k, value in enumerate(numbers)
    ]
    line = f"{16 - 14 * reference / top:.1f}" if reference is not None else None
    return Sparkline(" ".join(f"{x},{y}" for x, y in places), *places[-1], line)
