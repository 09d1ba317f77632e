"""Why a gang was not whole: which members had no room, and who left late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, F, Q, When

from apps.common import show
from apps.common.time import from_us
from apps.console.people import Told, Viewer
from apps.jobs.models import TopologyChoice
from apps.jobs.states import ReservationOutcome
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.waits import WAITING, GangWait
from apps.scheduling.selectors import forecast_of, verdict_of

NAMED = 2
"""More members than these are counted, not named."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One sentence; ``told`` is the job named in the middle of it, if one is."""

    before: str
    told: Told | None = None
    after: str = ""


def cause_of(
    wait: GangWait, places: Mapping[int, str], viewer: Viewer, *, now: datetime
) -> Cause | None:
    """Return why a gang waited; ``places`` are the nodes of its ranks once it started.

    None: it never waited, all members had their room at once.
    """
    if wait.outcome == WAITING:
        return _still(wait, now=now)
    if wait.outcome == ReservationOutcome.STARTED:
        return _whole_at_last(wait, places, viewer, now=now)
    late = _members(_late(wait), wait)
    at = show.instant(from_us(wait.until_us), now=now)
    if not late:
        return None
    return Cause(
        {
            ReservationOutcome.TIMED_OUT: f"No room came free for {late} in that time.",
            ReservationOutcome.RELEASED: f"There was no room for {late} yet, and the plan of {at} "
            "keeps none of the rest for it.",
            ReservationOutcome.CANCELLED: f"There was no room for {late} yet.",
        }[ReservationOutcome(wait.outcome)]
    )


def _still(wait: GangWait, *, now: datetime) -> Cause | None:
    """Say who still has no room, and when it likely comes."""
    late = _members(wait.pending_ranks, wait)
    if not late:
        return Cause("All members hold their GPUs: it starts at the next tick.")
    gpus = show.counted(len(wait.pending_ranks) * wait.job.gpus_per_member, wait.job.pool.unit)
    where = {TopologyChoice.RACK: " in its rack", TopologyChoice.NVLINK: " in its NVLink domain"}
    place = where.get(TopologyChoice(wait.job.topology), "")
    sentence = f"{_capital(late)} {_wait(wait.pending_ranks)} for {gpus}{place} to come free"
    verdict = verdict_of(wait.job)
    likely = forecast_of(verdict) if verdict is not None else None
    if likely is None:
        return Cause(f"{sentence}.")
    at = show.instant(likely, now=now)
    return Cause(f"{sentence}: likely by {at}, if what runs there uses all of its limit.")


def _whole_at_last(
    wait: GangWait, places: Mapping[int, str], viewer: Viewer, *, now: datetime
) -> Cause | None:
    """Say which members came last, and whose leaving made room for them."""
    ranks, at_us = _late(wait), wait.until_us
    nodes = {places[rank] for rank in ranks if rank in places}
    if not ranks:
        at_us = max(hold.start_us for hold in wait.holds)
        last = [hold for hold in wait.holds if hold.start_us == at_us]
        ranks = tuple(sorted({hold.rank for hold in last}))
        nodes = {hold.node for hold in last}
        if at_us == wait.since_us:
            return None
    count, unit = len(ranks) * wait.job.gpus_per_member, wait.job.pool.unit
    gpus = f"a {unit}" if count == 1 else show.counted(count, unit)
    on = f" on {next(iter(nodes))}" if len(nodes) == 1 else f" on {len(nodes)} nodes"
    before = f"{_capital(_members(ranks, wait))} waited for {gpus}{on if nodes else ''}"
    left = _left_last(wait, nodes, at_us)
    if left is None:
        at = show.instant(from_us(at_us), now=now, style="seconds")
        return Cause(f"{before}, which came free at {at}.")
    rack = left.node.rack if left.node is not None and len(nodes) == 1 else ""
    if rack and wait.job.topology == TopologyChoice.RACK:
        before += f" in rack {rack.removeprefix('rack-')}"
    return _named(before, left, viewer, now=now, several=len(nodes) > 1)


def _named(before: str, left: Interval, viewer: Viewer, *, now: datetime, several: bool) -> Cause:
    """Finish the sentence with what happened on the node that was free last."""
    end_us = left.start_us if left.kind == IntervalKind.NODE else left.end_us or 0
    at = show.instant(from_us(end_us), now=now, style="seconds")
    if left.kind == IntervalKind.NODE or left.job is None:
        name = left.node.name if left.node is not None else "the node"
        back = f"{name} was the last to come back, at" if several else "which came back at"
        return Cause(f"{before}{':' if several else ','} {back} {at}.")
    last = "the last of which " if several else "that "
    if left.kind == IntervalKind.HOLD:
        return Cause(f"{before}, {last}", viewer.told(left.job), f" gave back at {at}.")
    asked = left.attempt.stop_requested_at if left.attempt is not None else None
    after = f" left at {at}"
    if asked is not None:
        after += f", {show.duration(from_us(end_us) - asked)} after it was asked to stop"
    comma = "," if several else ""
    return Cause(f"{before}{comma} {last}", viewer.told(left.job), f"{after}.")


def _left_last(wait: GangWait, nodes: Iterable[str], at_us: int) -> Interval | None:
    """Return the last end of another job's members or holds on some nodes, or a node's return.

    Only what happened while the gang waited; one query.
    """
    names = sorted(nodes)
    if not names:
        return None
    since = wait.since_us
    ended = Q(end_us__gt=since, end_us__lte=at_us) & ~Q(job=wait.job)
    # A drain cuts an interval in two while its attempt goes on: that is no leaving.
    gone = Q(kind=IntervalKind.MEMBER, attempt__ended_at__lte=from_us(at_us))
    back = Q(kind=IntervalKind.NODE, start_us__gt=since, start_us__lte=at_us)
    return (
        Interval.objects.filter(
            (ended & (gone | Q(kind=IntervalKind.HOLD))) | back,
            cluster_id=wait.job.cluster_id,
            node__name__in=names,
        )
        .annotate(
            freed_us=Case(When(kind=IntervalKind.NODE, then=F("start_us")), default=F("end_us"))
        )
        .select_related("job__tenant", "node", "attempt")
        .order_by("-freed_us", "kind", "-gpus", "id")
        .first()
    )


def _late(wait: GangWait) -> tuple[int, ...]:
    """Return the members there was no room for: not those whose room was lent for a while."""
    held = {hold.rank for hold in wait.holds}
    return tuple(rank for rank in wait.pending_ranks if rank not in held) or wait.pending_ranks


def _members(ranks: Sequence[int], wait: GangWait) -> str:
    """Name members, or count those that are too many to name."""
    if len(ranks) > NAMED:
        unit = "rank" if wait.job.gpus_per_member == 1 else "member"
        return f"the last {len(ranks)} of {show.counted(wait.job.size, unit)}"
    return " and ".join(f"r{rank}" for rank in ranks)


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:] if text.startswith("the ") else text
