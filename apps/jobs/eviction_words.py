"""Evictions in sentences: what happened, how it left, what it cost; one place for page and API.

Names are put in by the caller, who knows what may be told to whom and may make links of them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from apps.common import show
from apps.common.time import MICROSECOND
from apps.jobs.eviction_facts import Loss, Stood, lost_seconds
from apps.jobs.models import Eviction
from apps.jobs.states import ASKED, EvictionMode, EvictionOutcome

When = Callable[[datetime], str]
"""How an instant is written where the sentence will stand."""

BY_ITSELF = {
    EvictionOutcome.SUCCEEDED: "succeeded",
    EvictionOutcome.FAILED: "failed",
    EvictionOutcome.TIMED_OUT: "reached its limit",
    EvictionOutcome.CANCELLED: "was cancelled",
    EvictionOutcome.LOST: "lost a node",
}
LABELS = {
    EvictionOutcome.KILLED: "killed",
    EvictionOutcome.CHECKPOINTED: "checkpointed",
    EvictionOutcome.GRACE_EXCEEDED: "grace exceeded",
    EvictionOutcome.DEMOTED: "demoted",
    EvictionOutcome.SHRUNK: "shrunk",
    EvictionOutcome.STAYED: "stayed",
    EvictionOutcome.SUCCEEDED: "succeeded by itself",
    EvictionOutcome.FAILED: "failed by itself",
    EvictionOutcome.TIMED_OUT: "reached its limit",
    EvictionOutcome.CANCELLED: "cancelled",
    EvictionOutcome.LOST: "lost a node",
}
PASSED = {
    "chosen": "chosen",
    "given_back": "given back: the gang fits without it",
    "no_help": "its nodes could not take a member of the gang",
    "not_preemptible": "it cannot be preempted",
    "leaving": "it leaves already, or is demoted, for another job",
    "thrash": "it was evicted too often within the hour",
    "min_runtime": "it has not run its minimum runtime yet",
    "cooldown": "it was evicted before, and cools down",
    "class": "its class is not lower",
    "guarantee": "its tenant, or one above it, would go below its guarantee",
    "entitlement": "its tenant, or one above it, would go below its entitlement",
    "taker": "the gang’s own tenant is above its entitlement and its guarantee",
    "share": "its tenant’s share is equal or better",
}


def outcome_label(eviction: Eviction) -> str:
    """Return the outcome as a word or two."""
    if eviction.ended_at is None:
        return "leaving"
    return LABELS[EvictionOutcome(eviction.outcome)]


def passed_words(code: str) -> str:
    """Say why a candidate was passed over, or that it was not."""
    return PASSED.get(code, code.replace("_", " "))


# What happened -----------------------------------------------------------------------------------


def happened(eviction: Eviction, stood: Stood | None) -> str:
    """Return the sentence of an eviction, with {victim}, {beneficiary} and {team} to be filled in.

    ``stood`` is the victim's side; without it nothing is said of what its team held.
    """
    return f"{{victim}} {_verb(eviction)} {_for_whom(eviction, stood)}"


def asked(eviction: Eviction, stood: Stood | None) -> str:
    """Return what a victim was asked, as ``happened`` but whatever came of it."""
    mode = EvictionMode(eviction.mode)
    verb = {
        EvictionMode.KILL: "Stopped",
        EvictionMode.CHECKPOINT: "Asked to leave",
        EvictionMode.DEMOTE: "Demoted",
        EvictionMode.SHRINK: f"Asked to give up {show.counted(eviction.members, 'member')}",
    }[mode]
    grace = grace_of(eviction)
    given = f" Grace {show.duration(grace)}." if grace and mode in ASKED else ""
    return f"{verb} {_for_whom(eviction, stood)}{given}"


def _for_whom(eviction: Eviction, stood: Stood | None) -> str:
    because = ", whose class is higher" if eviction.rule == "priority" else ""
    held = ""
    if stood is not None and stood.before is not None:
        held = f": {{team}} held {show.whole(stood.before)}"
        if stood.entitlement is not None:
            held += f" and was entitled to {show.whole(stood.entitlement)}"
    return f"by {eviction.rule} for {{beneficiary}}{because}{held}."


def _verb(eviction: Eviction) -> str:
    mode, outcome = EvictionMode(eviction.mode), eviction.outcome
    members = show.counted(eviction.members, "member")
    if eviction.ended_at is None:
        return {
            EvictionMode.KILL: "is stopped",
            EvictionMode.CHECKPOINT: "is asked to leave",
            EvictionMode.DEMOTE: "is demoted",
            EvictionMode.SHRINK: f"is asked to give up {members}",
        }[mode]
    if outcome == EvictionOutcome.DEMOTED:
        return "was demoted"
    if mode == EvictionMode.SHRINK:
        return (
            f"gave up {members}, taken"
            if outcome == EvictionOutcome.SHRUNK
            else f"was asked to give up {members}"
        )
    if outcome == EvictionOutcome.STAYED or outcome in BY_ITSELF:
        return "was asked to leave"
    return "was evicted"


# How it left -------------------------------------------------------------------------------------


def grace_of(eviction: Eviction) -> timedelta:
    """Return how long a victim has to leave; a kill has none."""
    return max(timedelta(), eviction.leave_by - eviction.at)


def took(eviction: Eviction) -> timedelta:
    """Return how long it took from the request to the confirmation, or to its end."""
    end = eviction.confirmed_at or eviction.ended_at or eviction.at
    return max(timedelta(), end - (eviction.asked_at or eviction.at))


def how_it_left(eviction: Eviction, when: When) -> str:
    """Return in a few words how a victim left, or by when it does."""
    if eviction.ended_at is None:
        if eviction.mode == EvictionMode.KILL:
            return "being stopped"
        if eviction.mode == EvictionMode.DEMOTE:
            return "being demoted"
        saved = "checkpoint confirmed, leaves" if eviction.confirmed_at else "leaves"
        return f"{saved} by {when(eviction.leave_by)}"
    outcome = EvictionOutcome(eviction.outcome)
    if outcome in BY_ITSELF:
        return f"ended by itself: {BY_ITSELF[outcome]}"
    return {
        EvictionOutcome.KILLED: "stopped",
        EvictionOutcome.CHECKPOINTED: f"confirmed in {show.duration(took(eviction))}",
        EvictionOutcome.GRACE_EXCEEDED: f"grace exceeded at {show.duration(grace_of(eviction))}",
        EvictionOutcome.DEMOTED: "kept running",
        EvictionOutcome.SHRUNK: f"gave up {show.counted(eviction.members, 'member')}",
        EvictionOutcome.STAYED: "stays: no longer needed",
    }[outcome]


# What it cost ------------------------------------------------------------------------------------


def cost_words(loss: Loss, *, money: bool) -> str:
    """Return lost GPU-hours and, where it is told, their price."""
    hours = show.gpu_hours(loss.gpu_hours)
    if not money:
        return hours
    return f"{hours}, {'no price' if loss.money is None else show.money(loss.money)}"


def what_it_cost(eviction: Eviction, loss: Loss | None, when: When, *, money: bool) -> str:
    """Return one or two sentences: how it ended and what was lost, with {team} to be filled in."""
    if eviction.ended_at is None:
        return _so_far(eviction, when)
    outcome = EvictionOutcome(eviction.outcome)
    if outcome == EvictionOutcome.DEMOTED:
        return (
            "Demoted, still running: it is outside {team}’s guarantee now and leaves first next"
            " time."
        )
    if outcome == EvictionOutcome.STAYED:
        return "Nobody needs its room any more: it stays, and nothing is lost."
    lost = "" if loss is None else _lost(eviction, loss, money=money)
    if outcome == EvictionOutcome.CHECKPOINTED:
        cost = "" if loss is None else f" Lost {cost_words(loss, money=money)}."
        return f"Checkpoint confirmed in {show.duration(took(eviction))}.{cost}"
    if outcome == EvictionOutcome.GRACE_EXCEEDED:
        grace = show.duration(grace_of(eviction))
        return f"Grace of {grace} ran out before a checkpoint{lost}."
    if outcome == EvictionOutcome.SHRUNK:
        return f"Its last {_members(eviction)} left and the others run on{lost}."
    if outcome == EvictionOutcome.KILLED:
        return f"Stopped without grace{lost}."
    return f"It {BY_ITSELF[outcome]} by itself before it had to leave{lost}."


def _members(eviction: Eviction) -> str:
    many = eviction.members
    return "member" if many == 1 else f"{show.whole(many)} members"


def _lost(eviction: Eviction, loss: Loss, *, money: bool) -> str:
    if not loss.gpu_hours:
        return "; no work is lost"
    work = show.duration(lost_seconds(eviction))
    gpus = show.counted(eviction.gpus, "GPU")
    return f"; {work} of work on {gpus} is lost: {cost_words(loss, money=money)}"


def _so_far(eviction: Eviction, when: When) -> str:
    if eviction.mode == EvictionMode.KILL:
        return "It has left when the cluster says so; what is lost is known then."
    if eviction.mode == EvictionMode.DEMOTE:
        return f"It runs on; if it is still in the way at {when(eviction.leave_by)} it is asked to leave."
    if eviction.confirmed_at is not None:
        return f"Checkpoint confirmed in {show.duration(took(eviction))}; it is stopped now."
    if eviction.unneeded_at is not None:
        return "Nobody needs its room any more: it is told to stay, if it still can."
    return f"It has until {when(eviction.leave_by)} to save its work; what is lost is known then."


# Where the number comes from ---------------------------------------------------------------------


def where_from(eviction: Eviction, when: When) -> str:
    """Say from which instant to which the lost work was counted; ``attempt`` is loaded."""
    if eviction.ended_at is None or eviction.lost_gpu_us is None:
        return "Work since the last confirmed checkpoint counts as lost once the victim has left."
    seconds = lost_seconds(eviction)
    gpus = show.counted(eviction.gpus, "GPU")
    if not eviction.lost_gpu_us:
        return "No work was lost: it ended by itself, runs on, or had just saved its work."
    start = eviction.ended_at - timedelta(microseconds=seconds * MICROSECOND)
    kept = eviction.attempt.last_checkpoint_at
    # The record counts: a checkpoint that came after it says nothing of it.
    since = (
        "since it started"
        if kept is None or kept > eviction.ended_at
        else ("since its last confirmed checkpoint")
    )
    return f"{gpus} × {show.duration(seconds)} {since}: from {when(start)} to {when(eviction.ended_at)}."
