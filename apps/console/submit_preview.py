"""What a submission would come to, in words and rows, as one reader may see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.common import show
from apps.console.alarms import silent
from apps.console.eviction_rows import tells_money
from apps.console.marks import Alert
from apps.console.people import Told, Viewer
from apps.console.reasons import linked
from apps.console.stamps import lateness
from apps.jobs.states import EvictionMode
from apps.scheduling.preview import Basis, Preview, Victim

AHEAD_SHOWN = 5
NODES_SHOWN = 6
STANDS_ON = {
    Basis.NOW: "by the decision of this instant",
    Basis.VICTIMS: "all who are asked have left by then",
    Basis.LIMITS: "if all that runs or waits before it uses all of its limit",
}


@dataclass(frozen=True, slots=True)
class VictimRow:
    """Who would give way; ``cost`` is empty where it is not told, or there is no price."""

    told: Told
    team: str
    mode: str
    how: str
    gpus: int
    gpu_hours: str
    cost: str


@dataclass(frozen=True, slots=True)
class AheadRow:
    """Who waits before it, and how large that gang is."""

    told: Told
    size: str


@dataclass(frozen=True, slots=True)
class Panel:
    """The preview beside the form."""

    alerts: tuple[Alert, ...]
    heading: str
    sentence: SafeString
    as_of: str
    likely: str
    stands_on: str
    place: str
    nodes: str
    victims: tuple[VictimRow, ...]
    lost: str
    ahead: tuple[AheadRow, ...]
    ahead_more: int


def panel_of(found: Preview, viewer: Viewer, *, money: bool, wall: datetime) -> Panel:
    """Return the preview as the page shows it; ``wall`` tells whether its cluster still reports."""

    def when(at: datetime) -> str:
        return show.instant(at, now=found.at, style="seconds")

    jobs = found.ahead[:AHEAD_SHOWN]
    late = bool(lateness(found.job.cluster, wall))
    return Panel(
        alerts=tuple(silent([found.job.cluster], wall)),
        heading=_heading(found, when, late=late),
        sentence=_sentence(found, when),
        as_of=when(found.at),
        likely="" if found.likely is None or late else when(found.likely),
        stands_on=STANDS_ON.get(found.basis, ""),
        place=f"{show.whole(found.position)} of {show.counted(found.waiting, 'job')} in line",
        nodes=_nodes(found.nodes),
        victims=tuple(_victim(one, viewer, when, money=money) for one in found.victims),
        lost=_lost(found.victims),
        ahead=tuple(
            AheadRow(viewer.told(job), show.counted(job.gpus, found.job.pool.unit)) for job in jobs
        ),
        ahead_more=found.ahead_count - len(jobs),
    )


def _heading(found: Preview, when: Callable[[datetime], str], *, late: bool) -> str:
    """Return the answer: whether it would start, and if not, after whom or whose leaving.

    ``late``: the cluster does not report, and nothing starts before it does.
    """
    if found.starts:
        then = f"once {found.job.cluster} reports again" if late else "now"
        return f"It would start {then}, on {show.counted(len(set(found.nodes)), 'node')}."
    if found.never_fits is not None:
        return "It would never start."
    if found.victims:
        modes = Counter(one.mode for one in found.victims)
        if demoted := modes[EvictionMode.DEMOTE]:
            them = "it" if demoted == 1 else "them"
            return f"It would demote {show.counted(demoted, 'job')}, and wait for {them}."
        shrunk = modes[EvictionMode.SHRINK]
        asked = {"evict": len(found.victims) - shrunk, "shrink": shrunk}
        told = [f"{verb} {show.counted(many, 'job')}" for verb, many in asked.items() if many]
        start = (
            "" if late or found.likely is None else f", and likely start by {when(found.likely)}"
        )
        return f"It would {' and '.join(told)}{start}."
    likely = "" if late or found.likely is None else f", likely until {when(found.likely)}"
    return f"It would wait{likely}."


def _sentence(found: Preview, when: Callable[[datetime], str]) -> SafeString:
    if found.starts:
        return format_html("{}", "There is room for all its members at once.")
    never = found.never_fits
    if never is None:
        return linked(found.facts, when)
    # Whatever holds it now, it never fits: the heading says so, and this why.
    said = {"code": "never_fits", "needed": never.needed, "most": never.most}
    return linked({**found.facts, **said, "tenant": never.tenant or None}, when)


def _nodes(names: Sequence[str]) -> str:
    """Return the nodes of the members, each once with how many are on it."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    told = [
        name if many == 1 else f"{name} ({show.whole(many)} members)"
        for name, many in list(counts.items())[:NODES_SHOWN]
    ]
    more = len(counts) - len(told)
    return ", ".join(told) + (f" and {show.whole(more)} more" if more else "")


def _victim(
    victim: Victim, viewer: Viewer, when: Callable[[datetime], str], *, money: bool
) -> VictimRow:
    job, price = victim.job, victim.lost.money
    told = price is not None and money and tells_money(viewer, job)
    return VictimRow(
        told=viewer.told(job),
        team=show.cut(job.tenant.path) if viewer.sees(job.tenant) else "",
        mode=victim.mode,
        how=_how(victim, when),
        gpus=victim.gpus,
        gpu_hours=show.gpu_hours(victim.lost.gpu_hours),
        cost=show.money(price) if told and price is not None else "",
    )


def _how(victim: Victim, when: Callable[[datetime], str]) -> str:
    by = when(victim.leave_by)
    return {
        EvictionMode.KILL: "stopped at once",
        EvictionMode.CHECKPOINT: f"saves its work and leaves by {by}",
        EvictionMode.DEMOTE: f"runs on; asked to leave from {by}",
        EvictionMode.SHRINK: f"gives up {show.counted(victim.members, 'member')} by {by}",
    }[EvictionMode(victim.mode)]


def _lost(victims: Sequence[Victim]) -> str:
    """Say what all of them would lose together, were they killed now, and what spares them that."""
    together = show.gpu_hours(sum((one.lost.gpu_hours for one in victims), Fraction(0)))
    said = f"Together {together} of work since their last checkpoints."
    if all(one.mode == EvictionMode.KILL for one in victims):
        return said
    return f"{said} Work that is saved before its job leaves is not lost."
