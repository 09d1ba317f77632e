"""Why a job waits, in words: the one place that makes a sentence of a code and its numbers.

Words and order are DESIGN §7's: needed before available, cause before consequence, name who.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from apps.engine.types import Reason

Facts = Mapping[str, Any]
"""``code`` and what it carries; names are ready to be shown.

``needed``, ``available``, ``most``, ``ceiling`` are GPUs. ``ahead`` (or ``ahead_count``) is a number
or the jobs themselves. ``tenant``, ``for``, ``pool``, ``who`` are names, ``what`` one or several.
``since``, ``until`` and ``what`` of begin_time are instants, or texts. ``domain`` (or ``topology``)
is node, rack or nvlink. ``unit`` and ``units`` replace GPU and GPUs (slices). All but the code may
be missing or None: the sentence then says less.
"""

When = Callable[[datetime], str]
"""How an instant is written where the sentence will stand."""

CARRIES: Final[dict[str, tuple[str, ...]]] = {
    "starts": (),
    "watched": (),
    "elsewhere": (),
    "held": ("who", "since"),
    "dependency": ("what",),
    "begin_time": ("what",),
    "paused": ("who", "since"),
    "never_fits": ("needed", "most"),
    "no_nodes": ("pool",),
    "weightless": ("tenant",),
    "guarantee": ("tenant", "needed", "available"),
    "leaving": ("jobs", "until"),
    "deferred": ("until",),
    "ceiling": ("tenant", "needed", "available", "ahead"),
    "capacity": ("needed", "available", "ahead"),
    "placement": ("needed", "available", "domain"),
    "reserved": ("for", "until", "ahead"),
}
"""What each reason carries, by code; source: SCENARIO, reason codes."""

DOMAINS: Final = {"rack": "rack", "nvlink": "NVLink domain", "node": "node"}


def code_of(reason: int) -> str:
    """Return the code of a reason, as pages, API and scenarios spell it."""
    return Reason(reason).name.lower()


def iso(at: datetime) -> str:
    """Write an instant where nobody says how."""
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def sentence(facts: Facts, when: When = iso) -> str:
    """Say why a job waits; ``when`` writes its instants.

    :raises KeyError: if the code is none.
    """
    said = {key: when(v) if isinstance(v, datetime) else v for key, v in facts.items()}
    return _SENTENCES[said["code"]](said)


def _gpus(facts: Facts, many: int) -> str:
    unit, units = facts.get("unit", "GPU"), facts.get("units", "GPUs")
    return f"{many:,} {unit if many == 1 else units}"


def _are(many: int) -> str:
    return f"{many:,} {'is' if many == 1 else 'are'}"


def _needs(facts: Facts, otherwise: str) -> str:
    needed = facts.get("needed")
    return otherwise if needed is None else f"Needs {_gpus(facts, needed)}"


def _ahead(facts: Facts) -> str:
    ahead = facts.get("ahead") or facts.get("ahead_count") or 0
    many = len(ahead) if isinstance(ahead, Sequence) else int(ahead)
    if not many:
        return ""
    return f", and {many:,} {'job is' if many == 1 else 'jobs are'} ahead"


def _gathers(facts: Facts) -> str:
    """Say what a gang that gathers holds; empty: it holds nothing."""
    held, needed = facts.get("held"), facts.get("needed")
    if not held or not needed or not facts.get("reserves"):
        return ""
    return f"Holds {held:,} of {_gpus(facts, needed)}; {needed - held:,} to go."


def _capacity(facts: Facts) -> str:
    free = facts.get("available") or 0
    if gathers := _gathers(facts):
        return gathers
    return f"{_needs(facts, 'Needs more')}; {_are(free)} free{_ahead(facts)}."


def _placement(facts: Facts) -> str:
    domain = DOMAINS.get(facts.get("domain") or facts.get("topology") or "node", "node")
    free = facts.get("available") or 0
    if gathers := _gathers(facts):
        return gathers
    if domain == "node":
        each = facts.get("gpus_per_member")
        whole = f" with {_gpus(facts, each)} free for each" if each else ""
        return (
            f"{_needs(facts, 'Needs room')}; {_are(free)} free, "
            f"but not on nodes that take every member{whole}."
        )
    return (
        f"{_needs(facts, 'Needs room')} in one {domain}; {_are(free)} free, "
        f"but no {domain} takes every member."
    )


def _reserved(facts: Facts) -> str:
    until = f" until {facts['until']}" if facts.get("until") else ""
    whom = facts.get("for") or "an earlier gang"
    return (
        f"{_needs(facts, 'Fits')}; the free ones are held for {whom}{until}, "
        f"and this job would delay it{_ahead(facts)}."
    )


def _ceiling(facts: Facts) -> str:
    tenant, needed = facts.get("tenant") or "Its tenant", (facts.get("needed") or 0)
    free, ceiling, on = (facts.get("available") or 0), facts.get("ceiling"), ""
    if facts.get("pool"):
        on = f" on {facts['pool']}"
    if ceiling is not None and not free:
        used = facts.get("used", ceiling)
        return f"{tenant} is at its ceiling: {used:,} of {_gpus(facts, ceiling)}{on}."
    release = f"{tenant} must release {needed - free:,} first."
    if ceiling is not None:
        above = ceiling - free + needed
        return (
            f"Would take {tenant} to {_gpus(facts, above)}{on}, above its ceiling of {ceiling:,}. "
            f"{release}"
        )
    return f"Needs {_gpus(facts, needed)}; {tenant} has {free:,} left to its ceiling. {release}"


def _never_fits(facts: Facts) -> str:
    pool = facts.get("tenant") or facts.get("pool") or "its pool"
    most = facts.get("most")
    gives = "" if most is None else f"; {pool} can give {most:,}"
    needed = _gpus(facts, facts["needed"]) if facts.get("needed") else "more than there is"
    return f"Never fits: needs {needed}{gives}. Lower the size or ask for another pool."


def _no_nodes(facts: Facts) -> str:
    pool = facts.get("pool") or "Its pool"
    return f"{pool} has no usable node: each is down or drained."


def _weightless(facts: Facts) -> str:
    tenant = facts.get("tenant") or "Its tenant"
    return f"{tenant} has weight 0: it runs only when nobody else asks."


def _guarantee(facts: Facts) -> str:
    tenant, free = facts.get("tenant") or "its tenant", (facts.get("available") or 0)
    return (
        f"{_needs(facts, 'Needs room')}; {_are(free)} left of {tenant}'s guarantee, "
        "and work that cannot be preempted stays within it."
    )


def _leaving(facts: Facts) -> str:
    jobs = facts.get("jobs") or ()
    names = f"{len(jobs):,} jobs" if len(jobs) > 3 else " and ".join(jobs) or "evicted jobs"
    until = f", by {facts['until']}" if facts.get("until") else ""
    return f"Waits for {names} to leave{until}."


def _deferred(facts: Facts) -> str:
    until = f", and not before {facts['until']}" if facts.get("until") else ", but later"
    return f"It may evict{until}: a limit, a cool-down or a grace says so."


def _held(facts: Facts) -> str:
    by = f" by {facts['who']}" if facts.get("who") else ""
    since = f" since {facts['since']}" if facts.get("since") else ""
    return f"On hold{by}{since}. Release it and it can run."


def _dependency(facts: Facts) -> str:
    what = facts.get("what") or "another job"
    if isinstance(what, str):
        return f"Waits until {what} has succeeded."
    if len(what) == 1:
        return f"Waits until {what[0]} has succeeded."
    return f"Waits until {', '.join(what[:-1])} and {what[-1]} have succeeded."


def _begin_time(facts: Facts) -> str:
    return f"Not to begin before {facts.get('what') or facts.get('until') or 'its time'}."


def _paused(facts: Facts) -> str:
    what = facts.get("what") or facts.get("tenant") or "Its queue"
    by = f" by {facts['who']}" if facts.get("who") else ""
    since = f" since {facts['since']}" if facts.get("since") else ""
    return f"{what} is paused{by}{since}. Resume it and its jobs can run."


def _starts(facts: Facts) -> str:
    return "Starts at the next tick."


def _watched(facts: Facts) -> str:
    return "Would start now, but Rollcall only watches this cluster and starts nothing on it."


def _elsewhere(facts: Facts) -> str:
    return "Waits in the cluster's own queue: it was not submitted here, and starts by its order."


_SENTENCES: Final[dict[str, Callable[[Facts], str]]] = {
    "starts": _starts,
    "watched": _watched,
    "elsewhere": _elsewhere,
    "held": _held,
    "dependency": _dependency,
    "begin_time": _begin_time,
    "paused": _paused,
    "never_fits": _never_fits,
    "no_nodes": _no_nodes,
    "weightless": _weightless,
    "guarantee": _guarantee,
    "leaving": _leaving,
    "deferred": _deferred,
    "ceiling": _ceiling,
    "capacity": _capacity,
    "placement": _placement,
    "reserved": _reserved,
}
