"""The life of a job from its moves: the stretches of its strip, and what they say in words."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import zip_longest

from apps.common import show
from apps.common.time import MICROSECOND, from_us, to_us
from apps.console.drawings import STEPS, Mark, Stretch, Strip, life_strip
from apps.jobs.models import Job, Move
from apps.jobs.states import TERMINAL, JobState

KINDS = {
    JobState.PENDING: "wait",
    JobState.RESERVING: "hold",
    JobState.ADMITTED: "wait",
    JobState.RUNNING: "run",
    JobState.PREEMPTING: "run",
    JobState.SUSPENDED: "suspended",
}
TICKS = 7
NEAR = 7.0  # percent: a label closer to "now" than this is left out
NEAR_NARROW = 18.0  # likewise where the page is narrow


def stretches_of(job: Job, moves: Sequence[Move]) -> list[Stretch]:
    """Return what a job did, one stretch per kind in a row; the last is open while it lives."""
    found: list[Stretch] = []
    ends = [to_us(move.at) for move in moves[1:]]
    for move, end in zip_longest(moves, ends):
        if move.after in TERMINAL:
            break
        kind = KINDS[JobState(move.after)]
        start = to_us(move.at)
        number = move.attempt_number
        # A move tells the attempt it was in before; what follows an attempt's end is the next.
        if found and move.after in (JobState.PENDING,) and move.before in _RAN:
            number += 1
        label = _label(job, kind, number, open_end=end is None)
        last = found[-1] if found else None
        if last is not None and last.kind == kind and (kind != "wait" or last.label == label):
            found[-1] = Stretch(kind, label, last.start_us, end)
        else:
            found.append(Stretch(kind, label, start, end))
    return found


_RAN = frozenset({JobState.RUNNING, JobState.PREEMPTING, JobState.SUSPENDED, JobState.ADMITTED})


def _label(job: Job, kind: str, number: int, *, open_end: bool) -> str:
    attempt = f", attempt {number}" if job.attempt_number > 1 else ""
    verb = {
        "wait": "waits" if open_end else "waited",
        "hold": "gathers" if open_end else "gathered",
        "run": "runs" if open_end else "ran",
        "suspended": "suspended",
    }[kind]
    return f"{verb}{attempt}"


def strip_of(
    job: Job, moves: Sequence[Move], *, now: datetime, likely: datetime | None = None
) -> Strip:
    """Lay out a job's life up to now, or up to its likely start where that is not far off."""
    since = to_us(job.submitted_at)
    end = to_us(job.ended_at or now)
    until = max(end, since + MICROSECOND)
    stretches = [
        Stretch(s.kind, s.label, s.start_us, end if s.end_us is None else s.end_us)
        for s in stretches_of(job, moves)
    ]
    if likely is not None and job.ended_at is None and now < likely <= now + 3 * _age(job, now):
        until = to_us(likely) + (to_us(likely) - since) // 8
        stretches.append(Stretch("likely", "likely start", to_us(likely), until))
    ticks = _ticks(since, until, now)
    mark = None if job.ended_at is not None else to_us(now)
    strip = life_strip(stretches, ticks, since_us=since, until_us=until, now_us=mark)
    if strip.now is None:
        return strip
    place = strip.now
    clear = [
        replace(tick, wide=abs(tick.x - place) < NEAR_NARROW)
        for tick in strip.ticks
        if abs(tick.x - place) > NEAR
    ]
    anchor = "end" if place > 96 else "start" if place < 4 else "middle"
    told = Mark(place, f"now {show.instant(now, now=now)}", anchor)
    return Strip(strip.pieces, (*clear, told), place)


def _age(job: Job, now: datetime) -> timedelta:
    return max(now - job.submitted_at, timedelta(minutes=10))


def _ticks(since_us: int, until_us: int, now: datetime) -> list[tuple[int, str]]:
    """Return round instants of the report zone, seven at the most, and how they are written."""
    length = (until_us - since_us) / MICROSECOND
    step = STEPS[min(bisect_left(STEPS, length / TICKS), len(STEPS) - 1)]
    while length / step > TICKS:
        step *= 2
    offset = from_us(since_us).astimezone(show.zone()).utcoffset() or timedelta()
    shift = int(offset.total_seconds()) * MICROSECOND
    first = -(-(since_us + shift) // (step * MICROSECOND)) * step * MICROSECOND - shift
    instants = range(first, until_us + 1, step * MICROSECOND)
    return [(at, _written(at, step)) for at in instants]


def _written(at_us: int, step: int) -> str:
    local = from_us(at_us).astimezone(show.zone())
    if step < 60:
        return f"{local:%H:%M:%S}"
    if step < 43_200:
        return f"{local:%H:%M}"
    return f"{local.day} {local:%b}" + ("" if step % 86_400 == 0 else f" {local:%H:%M}")


def words_of(job: Job, moves: Sequence[Move], *, now: datetime) -> str:
    """Say what the strip shows: each stretch with its length."""
    told = [
        f"{stretch.label} {show.duration(((stretch.end_us or to_us(now)) - stretch.start_us) // MICROSECOND)}"
        for stretch in stretches_of(job, moves)
    ]
    return ", then ".join(told) if told else "Submitted just now."
