"""A waiting job's own page: what its cluster counts and plans for it, beside what Rollcall does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from apps.common import show
from apps.common.money import round_half_up
from apps.scheduling.own_lines import OnCluster, TermBeside

LABELS = {
    "fair_share": ("Fair share", "FAIRSHARE"),
    "age": ("Age", "AGE"),
    "size": ("Size", "TRES"),
    "queue": ("Queue", "PARTITION"),
    "class": ("Class", "QOS"),
    "boost": ("Boost", ""),
    "nice": ("Nice", "NICE"),
    "job_size": ("Size in nodes and CPUs", "JOBSIZE"),
    "association": ("Association", "ASSOC"),
    "site": ("Site", "SITE"),
    "priority": ("Priority", "PRIORITY"),
}
ONLY_IF_ANY = frozenset({"class", "boost", "nice"})


@dataclass(frozen=True, slots=True)
class BesideRow:
    """A term as shown: ours, theirs, ours less theirs; ``ours`` empty: not counted here."""

    label: str
    theirs_called: str
    ours: str
    theirs: str
    difference: str
    off: bool


@dataclass(frozen=True, slots=True)
class Beside:
    """The whole of it; ``rows`` empty: the cluster tells no terms, and ``why_none`` says why."""

    read_at: datetime | None
    trouble: str
    why_none: str
    rows: tuple[BesideRow, ...]
    total: BesideRow | None
    answer: str
    plan: str


def beside_of(told: OnCluster, ours: Mapping[str, int], plan: str) -> Beside:
    """Return what a cluster says of a job.

    ``ours``: our terms as whole as the page shows them; ``plan``: when it is to start, in words.
    """
    rows = [
        _row(term, ours)
        for term in told.terms
        if term.name not in ONLY_IF_ANY or term.theirs or ours.get(term.name)
    ]
    total = None if told.priority is None else _row(told.priority, ours)
    why = told.no_terms
    if told.read_at is None and not told.trouble:
        why = "It is read within a minute."
    answer = _answer(rows, total)
    return Beside(told.read_at, told.trouble, why, tuple(rows), total, answer, plan)


def _row(term: TermBeside, ours: Mapping[str, int]) -> BesideRow:
    label, called = LABELS[term.name]
    theirs = round_half_up(Fraction(term.theirs))
    mine = ours.get(term.name)
    less = None if mine is None else mine - theirs
    return BesideRow(
        label=label,
        theirs_called=called,
        ours="" if mine is None else show.whole(mine),
        theirs=show.whole(theirs) if called else "",
        difference="" if less is None else signed(less),
        off=bool(less),
    )


def signed(number: int) -> str:
    """Write a difference with its sign."""
    return f"+{show.whole(number)}" if number > 0 else show.whole(number)


def _answer(rows: list[BesideRow], total: BesideRow | None) -> str:
    """Say in a sentence whether both sides agree."""
    if total is None or not total.ours:
        return ""
    off = [row.label.lower() for row in rows if row.off]
    if not off and not total.off:
        return "Both sides count the same."
    differ = f" They differ in {', '.join(off)}." if off else ""
    return f"Rollcall less the cluster: {total.difference}.{differ}"
