"""One eviction as tables: both sides, where both teams stood, who was considered, what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from apps.common import show
from apps.common.money import MICROS
from apps.common.time import MICROSECOND, to_us
from apps.console.eviction_rows import side_note, tells_money
from apps.console.marks import Event, ShareMeter, share_meter
from apps.console.people import Told, Viewer
from apps.jobs.eviction_facts import Candidate, Loss, Stood, lost_seconds, stood, team_told
from apps.jobs.eviction_words import LABELS, grace_of, passed_words, took
from apps.jobs.models import Eviction, Job
from apps.jobs.states import EvictionMode, EvictionOutcome
from apps.ledger.selectors import Prices

SIDE_WORDS = {"victim": "Evicted", "beneficiary": "To start"}
ENDINGS = {
    EvictionOutcome.KILLED: ("Has left: it was stopped without grace.", "evicted", "ink2"),
    EvictionOutcome.CHECKPOINTED: ("Has left with its work saved.", "check", "ok"),
    EvictionOutcome.GRACE_EXCEEDED: ("Was stopped: its grace had run out.", "cross", "bad"),
    EvictionOutcome.DEMOTED: ("Runs on below the others.", "running", "busy"),
    EvictionOutcome.SHRUNK: ("Runs on with fewer members.", "running", "busy"),
    EvictionOutcome.STAYED: ("Stays: nobody needs its room any more.", "running", "busy"),
}


@dataclass(frozen=True, slots=True)
class SideRow:
    """One side of an eviction; what may not be told of a job is empty."""

    label: str
    told: Told
    note: str
    attempt: str
    shape: str
    priority_class: str


@dataclass(frozen=True, slots=True)
class StoodRow:
    """Where one side's team stood at the decision; ``label`` says whose side it is."""

    label: str
    team: str
    stood: Stood
    ratio: float | None
    meter: ShareMeter
    changed: bool


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A job that was looked at, in its place, and why it was passed over."""

    place: int
    told: Told
    gpus: int
    lost: str
    passed: str
    why: str
    chosen: bool


def sides_of(eviction: Eviction, viewer: Viewer) -> list[SideRow]:
    """Return who left and who gained, each as its reader may know it."""
    return [
        _side("victim", eviction.job, eviction.attempt.number, eviction.job.gpus, viewer),
        _side(
            "beneficiary", eviction.beneficiary, eviction.beneficiary_attempt,
            eviction.beneficiary.gpus, viewer,
        ),
    ]  # fmt: skip


def _side(side: str, job: Job, attempt: int, gpus: int, viewer: Viewer) -> SideRow:
    told = viewer.told(job)
    shape = f"{show.whole(job.size)} × {show.whole(job.gpus_per_member)}"
    return SideRow(
        SIDE_WORDS[side],
        told,
        side_note(viewer, job, gpus),
        str(attempt) if told.own else "",
        shape if told.own else "",
        job.priority_class.name if told.own else "",
    )


def stood_rows(eviction: Eviction, viewer: Viewer, paths: Mapping[int, str]) -> list[StoodRow]:
    """Return where both teams stood; one row where both are one."""
    found: list[StoodRow] = []
    for side, label in SIDE_WORDS.items():
        here = stood(eviction, side)
        if here is None or here.tenant_id not in paths:
            continue
        if any(row.stood.tenant_id == here.tenant_id for row in found):
            continue
        ratio = (
            here.usage_share / here.share if here.share and here.usage_share is not None else None
        )
        found.append(
            StoodRow(
                label,
                team_told(viewer.sight, paths[here.tenant_id]),
                here,
                ratio,
                share_meter(ratio),
                here.before != here.after,
            )
        )
    return found


def candidate_rows(candidates: Sequence[Candidate], viewer: Viewer) -> list[CandidateRow]:
    """Return who was considered, in order."""
    return [
        CandidateRow(
            one.place,
            Told(one.name) if one.job is None else viewer.told(one.job),
            one.gpus,
            "" if one.lost is None else show.gpu_hours(one.lost, unit=False),
            one.passed,
            passed_words(one.passed),
            one.passed == "chosen",
        )
        for one in candidates
    ]


def candidate_words(candidates: Sequence[Candidate]) -> str:
    """Say how many were looked at, and how many of them were chosen and passed over for what."""
    if not candidates:
        return ""
    counts = Counter(one.passed for one in candidates)
    chosen = counts.pop("chosen", 0)
    parts = [f"{show.whole(chosen)} chosen"]
    parts += [
        f"{show.whole(count)} {code.replace('_', ' ')}" for code, count in counts.most_common()
    ]
    return f"{show.counted(len(candidates), 'candidate')}: {', '.join(parts)}"


# What happened -----------------------------------------------------------------------------------


def events_of(eviction: Eviction, viewer: Viewer) -> list[Event]:
    """Return what happened from the decision on."""
    grace = grace_of(eviction)
    given = f", grace {show.duration(grace)}" if grace else ""
    found = [
        Event(
            eviction.at, "evicted", "ink2",
            f"Decided by tick {show.whole(eviction.tick_id)}: {eviction.mode}{given}.",
        )
    ]  # fmt: skip
    if eviction.asked_at is not None:
        told = {
            EvictionMode.KILL: "to stop it",
            EvictionMode.DEMOTE: "to let it run on below others",
        }
        what = told.get(EvictionMode(eviction.mode), "to ask it to leave")
        found.append(
            Event(eviction.asked_at, "dot", "ink3", f"{eviction.cluster.name} was told {what}.")
        )
    if eviction.confirmed_at is not None:
        found.append(Event(eviction.confirmed_at, "check", "ok", _confirmed(eviction, viewer)))
    if eviction.unneeded_at is not None:
        text = "Nobody needs its room any more: it is told to stay, if it still can."
        found.append(Event(eviction.unneeded_at, "dot", "ink3", text))
    if eviction.ended_at is not None:
        outcome = EvictionOutcome(eviction.outcome)
        text, glyph, tone = ENDINGS.get(
            outcome, (f"Ended before it had to leave: {LABELS[outcome]}.", "dot", "ink2")
        )
        found.append(Event(eviction.ended_at, glyph, tone, text))
    return sorted(found, key=lambda event: event.at)


def _confirmed(eviction: Eviction, viewer: Viewer) -> str:
    # A person is named to the victim's own side alone.
    by = eviction.confirmed_by
    who = f" by {by}" if by is not None and viewer.sees(eviction.job.tenant) else ""
    return f"Checkpoint confirmed{who} in {show.duration(took(eviction))}."


# What it cost ------------------------------------------------------------------------------------


def price_words(eviction: Eviction, loss: Loss | None, viewer: Viewer) -> str:
    """Say at which price the loss was counted; empty where there is none to tell."""
    if loss is None or not loss.gpu_hours or eviction.ended_at is None:
        return ""
    if not tells_money(viewer, eviction.job):
        return "What another team lost is told in GPU-hours, not in money."
    if loss.money is None:
        return "No price was in force."
    end = to_us(eviction.ended_at)
    start = end - lost_seconds(eviction) * MICROSECOND
    prices = [price for price in Prices([eviction.job.pool]).all if price.from_us < end]
    inside = [price for price in prices if price.from_us > start]
    before = [price for price in prices if price.from_us <= start][-1:]
    said = [show.money(Fraction(p.micros_per_gpu_hour, MICROS)) for p in (*before, *inside)]
    at = f" at {' and then '.join(said)} per GPU-hour" if said else ""
    return f"{show.gpu_hours(loss.gpu_hours)}{at}: {show.money(loss.money)}."


def standings_for_machines(
    eviction: Eviction, viewer: Viewer, paths: Mapping[int, str]
) -> dict[str, Any]:
    """Return where both teams stood, exact."""
    standings = {}
    for side in SIDE_WORDS:
        here = stood(eviction, side)
        if here is not None and here.tenant_id in paths:
            figures = {name: getattr(here, name) for name in here.__slots__ if name != "tenant_id"}
            standings[side] = {"tenant": team_told(viewer.sight, paths[here.tenant_id]), **figures}
    return standings
