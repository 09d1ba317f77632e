"""What happened to a job, as sentences: one place for each kind of move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.utils.html import format_html
from django.utils.safestring import mark_safe

from apps.common import show
from apps.console.marks import Event
from apps.jobs.models import Attempt, Job, Move
from apps.jobs.states import TERMINAL, JobState

BREAK = timedelta(hours=1)

Sentence = Callable[["Teller", Move], str]


@dataclass(frozen=True, slots=True)
class Wait:
    """What a gang held while it waited to be whole; ``cost`` is empty where money is not shown."""

    gpu_hours: str
    cost: str
    url: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """What the job was asked, what that cost, and the record of it; escaped, with links."""

    asked: str
    cost: str
    url: str


@dataclass(frozen=True, slots=True)
class Teller:
    """All a story needs besides its moves."""

    job: Job
    attempts: Mapping[int, Attempt]
    waits: Mapping[datetime, Wait]  # by the start of each reservation
    now: datetime
    evictions: Mapping[int, Evicted] = field(default_factory=dict)  # by id

    def evicted(self, move: Move) -> Evicted | None:
        """Return the eviction a move names."""
        return self.evictions.get(move.detail.get("eviction") or 0)

    def lines(self, moves: Sequence[Move]) -> list[Event]:
        """Tell the moves in order, with a break where nothing happened for over an hour."""
        told: list[Event] = []
        for move in moves:
            sentence, glyph, tone = SENTENCES.get(move.what, (_unknown, "dot", "ink3"))
            since = move.at - told[-1].at if told else timedelta()
            gap = show.duration(since) if since > BREAK else ""
            told.append(Event(move.at, glyph, tone, sentence(self, move), gap))
        if told and self.job.state not in TERMINAL:
            told.append(self._open_end(told[-1].at))
        return told

    def _open_end(self, last: datetime) -> Event:
        since = show.duration(self.now - self.job.state_since)
        gap = show.duration(self.now - last) if self.now - last > BREAK else ""
        if self.job.state in (JobState.PENDING, JobState.RESERVING):
            text = "On hold." if self.job.held_at else f"Waits, {since} so far."
        elif self.job.state == JobState.ADMITTED:
            text = "Is told to start; the cluster has not said so yet."
        elif self.job.state == JobState.PREEMPTING:
            text = f"Is leaving, {since} so far."
        else:
            text = f"Runs, {since} so far."
        glyph, tone = OPEN_ENDS[JobState(self.job.state)]
        return Event(self.now, glyph, tone, text, gap)

    def ran(self, number: int) -> str:
        """Return how long an attempt ran, or an empty text."""
        attempt = self.attempts.get(number)
        if attempt is None or attempt.started_at is None:
            return ""
        return show.duration((attempt.ended_at or self.now) - attempt.started_at)


OPEN_ENDS = {
    JobState.PENDING: ("pending", "ink3"),
    JobState.RESERVING: ("reserving", "gang_wait"),
    JobState.ADMITTED: ("admitted", "busy"),
    JobState.RUNNING: ("running", "busy"),
    JobState.PREEMPTING: ("preempting", "held_idle"),
    JobState.SUSPENDED: ("bars", "ink3"),
}


def _by(move: Move) -> str:
    return f" by {move.by}" if move.by else ""


def _why(move: Move) -> str:
    reason = str(move.detail.get("reason") or "")
    return f": “{reason}”." if reason else "."


def _submitted(teller: Teller, move: Move) -> str:
    job = teller.job
    gang = (
        f"{show.counted(job.size, 'member')} × {show.counted(job.gpus_per_member, job.pool.unit)}"
    )
    held = ", on hold" if move.detail.get("held") else ""
    return (
        f"Submitted{_by(move)}: {gang} of {job.pool.name}, class {job.priority_class.name}{held}."
    )


def _reserved(teller: Teller, move: Move) -> str:
    held, size = move.detail.get("held"), move.detail.get("size")
    wait = teller.waits.get(move.at)
    # One that goes on, after what it held was lent, is told where it began.
    goes_on = wait is None and any(since < move.at for since in teller.waits)
    verb = "holds room again" if goes_on else "reserves room"
    start = f"Attempt {move.attempt_number} {verb}"
    if held and size:
        start += f" for {held} of {show.counted(int(size), 'member')}"
    if wait is None:
        return f"{start} and waits for the rest."
    cost = f"{wait.gpu_hours}, {wait.cost}" if wait.cost else wait.gpu_hours
    return format_html('{}. <b>Gang wait {}.</b> <a href="{}">waterfall</a>', start, cost, wait.url)


GIVEN_BACK = {
    "timed_out": "Its reservation timed out: it gives back all it held, and others may have it.",
    "lent": "What it held is lent to jobs that will have ended when it can start.",
}


def _unreserved(teller: Teller, move: Move) -> str:
    why = str(move.detail.get("why") or "")
    return GIVEN_BACK.get(why, "Gives back all it held and waits without a reservation.")


def _admitted(teller: Teller, move: Move) -> str:
    return f"Attempt {move.attempt_number} is admitted: there is room for all its members."


def _started(teller: Teller, move: Move) -> str:
    together = f", all {teller.job.size} members together" if teller.job.size > 1 else ""
    attempt = teller.attempts.get(move.attempt_number)
    length = teller.ran(move.attempt_number)
    runs = f", and runs {length}" if length and attempt and attempt.ended_at else ""
    return f"Attempt {move.attempt_number} starts{together}{runs}."


def _ended(words: str) -> Sentence:
    def sentence(teller: Teller, move: Move) -> str:
        length = teller.ran(move.attempt_number)
        after = f" after {length}" if length else ""
        detail = str(move.detail.get("detail") or "")
        return f"Attempt {move.attempt_number} {words}{after}" + (f": {detail}." if detail else ".")

    return sentence


def _retried(teller: Teller, move: Move) -> str:
    job = teller.job
    return (
        f"{_ended('failed')(teller, move)} It is tried again: "
        f"{job.retries_used} of {show.counted(job.retry_limit, 'retry', 'retries')} used."
    )


def _lost(teller: Teller, move: Move) -> str:
    return (
        f"{_ended('lost a node under it and ended')(teller, move)} "
        "Pending again, ahead of fresh work of equal priority; its retry budget is untouched."
    )


def _forgotten(teller: Teller, move: Move) -> str:
    return "The cluster lists it no more: how it ended is not known."


def _mended(teller: Teller, move: Move) -> str:
    outcome = str(move.detail.get("outcome", "")).replace("_", " ")
    return f"The cluster's accounting told later how it ended: {outcome}."


def _cancelled(teller: Teller, move: Move) -> str:
    return f"Cancelled{_by(move)}{_why(move)}"


def _cancel_requested(teller: Teller, move: Move) -> str:
    return f"Asked to end{_by(move)}{_why(move)}"


def _held(teller: Teller, move: Move) -> str:
    return f"Put on hold{_by(move)}{_why(move)}"


def _released(teller: Teller, move: Move) -> str:
    return f"Released{_by(move)}{_why(move)}"


def _asked_to_leave(teller: Teller, move: Move) -> str:
    told = teller.evicted(move)
    if told is None:
        return "Asked to leave."
    return format_html('{} <a href="{}">eviction</a>', mark_safe(told.asked), told.url)  # noqa: S308  escaped where it was made


def _after_eviction(otherwise: str, then: str = "") -> Sentence:
    def sentence(teller: Teller, move: Move) -> str:
        told = teller.evicted(move)
        if told is None:
            return f"{otherwise}{then}"
        return format_html("<b>{}</b>{}", mark_safe(told.cost), then)  # noqa: S308  escaped where it was made

    return sentence


def _evicted(teller: Teller, move: Move) -> str:
    number = move.attempt_number + 1
    again = f" Pending again as attempt {number}; its retry budget is untouched."
    return _after_eviction(f"Attempt {move.attempt_number} was evicted.", again)(teller, move)


def _confirmed(teller: Teller, move: Move) -> str:
    return f"Its checkpoint is confirmed{_by(move)}."


def _unknown(teller: Teller, move: Move) -> str:
    return f"{show.spoken(move.what.replace('_', ' ')).capitalize()}{_by(move)}."


SENTENCES: Mapping[str, tuple[Sentence, str, str]] = {
    "submitted": (_submitted, "dot", "ink3"),
    "reserved": (_reserved, "reserving", "gang_wait"),
    "unreserved": (_unreserved, "pending", "ink3"),
    "admitted": (_admitted, "admitted", "busy"),
    "started": (_started, "running", "busy"),
    "succeeded": (_ended("succeeded"), "check", "ok"),
    "failed": (_ended("failed"), "cross", "bad"),
    "timed_out": (_ended("reached its limit and was stopped"), "cross", "bad"),
    "stopped": (_ended("was stopped"), "slash", "ink2"),
    "refused": (_ended("was refused by the cluster"), "cross", "bad"),
    "lost": (_lost, "cross", "bad"),
    "forgotten": (_forgotten, "cross", "ink3"),
    "mended": (_mended, "check", "ink3"),
    "retried": (_retried, "cross", "bad"),
    "cancelled": (_cancelled, "slash", "ink2"),
    "cancel_requested": (_cancel_requested, "slash", "ink2"),
    "held": (_held, "bars", "ink3"),
    "released": (_released, "pending", "ink3"),
    "asked_to_leave": (_asked_to_leave, "evicted", "ink2"),
    "checkpoint_confirmed": (_confirmed, "check", "ok"),
    "evicted": (_evicted, "evicted", "ink2"),
    "demoted": (_after_eviction("Demoted, still running."), "running", "busy"),
    "shrunk": (_after_eviction("Gave up its last members and runs on."), "running", "busy"),
    "stayed": (_after_eviction("Stays: nobody needs its room any more."), "running", "busy"),
}


def newest_first_attempts(attempts: Iterable[Attempt]) -> dict[int, Attempt]:
    """Return attempts by number, the newest first."""
    return {a.number: a for a in sorted(attempts, key=lambda a: -a.number)}
