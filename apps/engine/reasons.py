"""The one place where a reason's code and numbers become a sentence (DESIGN §7).

A reason is a plain mapping: ``code`` and what SCENARIO.md says it carries (``needed``,
``available``, ``tenant``, ``for``, ``until``, ``most``, ``who``, ``since``, ``what``), the job's
``pool``, ``size``, ``gpus_per_member`` and ``topology``, and ``ahead_count`` where it is known.
Names are given as they may be shown; times are datetimes, printed by ``when``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Facts = Mapping[str, Any]
When = Callable[[datetime], str]
PLACES = {"node": "node", "rack": "rack", "nvlink": "NVLink domain"}


def counted(count: int, word: str) -> str:
    """Return ``1 GPU`` or ``2 GPUs``, thousands apart."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def iso(at: datetime) -> str:
    """Return an instant with its zone, to the second."""
    return at.isoformat(sep=" ", timespec="seconds")


def _gang(facts: Facts) -> str:
    """Return what a gang asks for: ``8 GPUs``, or ``4 × 8 GPUs``."""
    size, gpus = int(facts.get("size") or 1), int(facts.get("gpus_per_member") or 1)
    if size == 1 or gpus == 1:
        return counted(size * gpus, "GPU")
    return f"{size:,} × {counted(gpus, 'GPU')}"


def _ahead(facts: Facts) -> str:
    count = facts.get("ahead_count")
    if not count:
        return ""
    return f" {counted(int(count), 'job')} {'is' if count == 1 else 'are'} ahead."


def _are(available: Any) -> str:
    count = int(available or 0)
    return f"{count:,} {'is' if count == 1 else 'are'}"


def _capacity(facts: Facts, when: When) -> str:
    return f"Needs {_gang(facts)}; {_are(facts.get('available'))} free for it.{_ahead(facts)}"


def _placement(facts: Facts, when: When) -> str:
    domain = str(facts.get("domain") or "node")
    place = PLACES.get(domain, domain)
    free = f"{_are(facts.get('available'))} free"
    if domain != "node":
        return f"Needs {_gang(facts)} in one {place}; {free}, but no {place} has them all."
    gpus = int(facts.get("gpus_per_member") or 1)
    whole = counted(gpus, "GPU")
    return f"Needs {_gang(facts)}, {whole} of a member on one node; {free}, but not so placed."


def _reserved(facts: Facts, when: When) -> str:
    until = facts.get("until")
    likely = f", likely until {when(until)}" if isinstance(until, datetime) else ""
    holder = facts.get("for") or "an earlier gang"
    return (
        f"Needs {_gang(facts)}; the free ones are held for {holder}{likely}. "
        f"It would delay that gang.{_ahead(facts)}"
    )


def _ceiling(facts: Facts, when: When) -> str:
    needed, left = int(facts.get("needed") or 0), int(facts.get("available") or 0)
    tenant = facts.get("tenant") or "its tenant"
    if left == 0:
        return f"{tenant} is at its ceiling on {facts.get('pool')}: none of {needed:,} GPUs is left to it."
    return (
        f"Needs {counted(needed, 'GPU')}; the ceiling of {tenant} on {facts.get('pool')} leaves "
        f"{left:,}. {tenant} must release {needed - left:,} first."
    )


def _never_fits(facts: Facts, when: When) -> str:
    most = counted(int(facts.get("most") or 0), "GPU")
    tenant = facts.get("tenant")
    if tenant:
        why = f"the ceiling of {tenant} is {most}"
    elif facts.get("topology") in ("rack", "nvlink"):
        place = PLACES[str(facts["topology"])]
        why = f"no {place} of {facts.get('pool')} could give more than {most}"
    else:
        why = f"{facts.get('pool')} could give {most} at most"
    return f"Never fits: needs {_gang(facts)}; {why}. Lower the size or ask for another pool."


def _no_nodes(facts: Facts, when: When) -> str:
    return f"{facts.get('pool')} has no usable node now: all are down or drained."


def _weightless(facts: Facts, when: When) -> str:
    tenant = facts.get("tenant") or "Its tenant"
    return f"{tenant} has weight 0: it runs only when nobody else asks."


def _guarantee(facts: Facts, when: When) -> str:
    return f"Needs {_gang(facts)}; what runs there stays within the guarantee of {facts.get('tenant')}."


def _leaving(facts: Facts, when: When) -> str:
    until = facts.get("until")
    by = f" by {when(until)}" if isinstance(until, datetime) else ""
    return f"Jobs were asked to leave for it and will have left{by}."


def _deferred(facts: Facts, when: When) -> str:
    until = facts.get("until")
    return f"It may evict, but not before {when(until)}." if until else "It may evict, but not yet."


def _held(facts: Facts, when: When) -> str:
    since = facts.get("since")
    start = f" since {when(since)}" if isinstance(since, datetime) else ""
    what = f" ({facts['what']})" if facts.get("what") else ""
    return (
        f"On hold by {facts.get('who') or 'an automation'}{start}{what}. Release it and it can run."
    )


def _dependency(facts: Facts, when: When) -> str:
    what = facts.get("what") or []
    names = ", ".join(what[:3]) + (f" and {len(what) - 3} more" if len(what) > 3 else "")
    return f"Waits until {names or 'another job'} has succeeded."


def _begin_time(facts: Facts, when: When) -> str:
    what = facts.get("what")
    return f"Does not begin before {when(what)}." if what else "Its begin time has not come."


def _paused(facts: Facts, when: When) -> str:
    who = f" by {facts['who']}" if facts.get("who") else ""
    since = facts.get("since")
    start = f" since {when(since)}" if isinstance(since, datetime) else ""
    return f"{facts.get('what') or 'Its tenant'} is paused{who}{start}. Resume it and its jobs can run."


SENTENCES: dict[str, Callable[[Facts, When], str]] = {
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
    "starts": lambda facts, when: "Starts at the next tick.",
}


def sentence(facts: Facts, when: When = iso) -> str:
    """Return why a job waits as a sentence or two; ``when`` prints an instant."""
    text = SENTENCES[str(facts["code"])](facts, when)
    if facts.get("reserves") and facts.get("held"):
        size = int(facts.get("size") or 1) * int(facts.get("gpus_per_member") or 1)
        text = f"Holds {int(facts['held']):,} of {counted(size, 'GPU')}. {text}"
    # A sentence that opens with a name keeps it as it is spelled.
    return f"I{text[1:]}" if text.startswith("its tenant") else text
