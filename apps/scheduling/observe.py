"""What the cluster says becomes moves of jobs and intervals of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile
from uuid import UUID

from django.db.models import Prefetch, prefetch_related_objects

from apps.backends.models import Cluster, Node
from apps.backends.pace import unhurried
from apps.backends.port import Backend, Observation
from apps.backends.services import sync_nodes
from apps.common.prepared import Prepared
from apps.common.rows import set_columns
from apps.common.time import to_us
from apps.jobs.models import Attempt, Member, Reservation
from apps.jobs.moves import Change, move_each
from apps.jobs.states import (
    LEFT,
    TERMINAL,
    WAITING,
    EvictionMode,
    JobState,
    Outcome,
    ReservationOutcome,
)
from apps.ledger.intervals import (
    close_holds,
    close_members,
    mark_gap,
    node_seen,
    open_members,
)
from apps.scheduling import steps
from apps.scheduling.adopt import Adoption
from apps.scheduling.alive import Alive, alive_on
from apps.scheduling.evict import close_ended, close_shrunk, open_on, outcome_of
from apps.scheduling.frame import Frames
from apps.scheduling.leases import Lease, fenced
from apps.scheduling.leavers import OPEN
from apps.scheduling.recall import FORGOTTEN, recall_vanished

FINAL = {
    Outcome.SUCCEEDED: JobState.SUCCEEDED,
    Outcome.FAILED: JobState.FAILED,
    Outcome.TIMED_OUT: JobState.FAILED,
    Outcome.CANCELLED: JobState.CANCELLED,
}


def mark_started(attempts: Sequence[tuple[Attempt, datetime]], *, first_look: datetime) -> None:
    """Book the starts of attempts: intervals, and jobs that are RUNNING from then on."""
    changes = []
    for attempt, at in attempts:
        attempt.started_at = at
        if attempt.job.state == JobState.PREEMPTING:  # asked to leave before it was seen to run
            continue
        changes.append(
            Change(
                attempt.job,
                JobState.RUNNING,
                at=at,
                what="started",
                detail={"number": attempt.number},
            )
        )
    set_columns([a for a, _ in attempts], ["started_at"])
    open_members([a for a, _ in attempts], first_look_us=to_us(first_look))
    move_each(changes)


# A cluster that refused a job twice is not asked again at once.
FIRST_BACK_OFF, LONGEST_BACK_OFF = timedelta(seconds=30), timedelta(hours=1)
MOST_REFUSALS = 10


def _refused_before(attempt: Attempt) -> int:
    """Return how many attempts right before this one were refused too, at most MOST_REFUSALS."""
    rows = Attempt.objects.filter(job=attempt.job_id, number__lt=attempt.number)
    outcomes = rows.order_by("-number").values_list("outcome", flat=True)[:MOST_REFUSALS]
    return sum(1 for _ in takewhile(lambda outcome: outcome == Outcome.REFUSED, outcomes))


def _after(attempt: Attempt, outcome: str, at: datetime, eviction: int | None) -> Change:
    """Return what becomes of a job whose attempt ended, by an eviction or not."""
    job = attempt.job
    detail: dict[str, object] = {"number": attempt.number, "outcome": outcome}
    if eviction is not None:
        detail["eviction"] = eviction
    if attempt.detail:
        detail["detail"] = attempt.detail
    retry = outcome == Outcome.FAILED and job.retries_used < job.retry_limit
    if job.cancel_requested_at is not None and (retry or outcome not in FINAL):
        # However its attempt ended, a job that was cancelled does not go back in line.
        outcome, retry = Outcome.CANCELLED, False
    if job.foreign_ref and outcome == Outcome.LOST:  # nothing of ours could run it again
        return Change(
            job, JobState.FAILED, at=at, what="forgotten", detail=detail,
            fields={"ended_at": at, "outcome": outcome},
        )  # fmt: skip
    if outcome in FINAL and not retry:
        return Change(
            job, FINAL[Outcome(outcome)], at=at, what=outcome, detail=detail,
            fields={"ended_at": at, "outcome": outcome},
        )  # fmt: skip
    again: dict[str, object] = {"attempt_number": job.attempt_number + 1}
    if retry:
        again["retries_used"] = job.retries_used + 1
    if outcome == Outcome.LOST:
        again["broken"] = True
    if outcome == Outcome.REFUSED and (often := _refused_before(attempt)):
        wait = min(FIRST_BACK_OFF * 2 ** (often - 1), LONGEST_BACK_OFF)
        again["begin_at"] = max(job.begin_at or at, at + wait)
    return Change(
        job, JobState.PENDING, at=at, what="retried" if retry else outcome, detail=detail,
        fields=again,
    )  # fmt: skip


def mark_ended(ends: Sequence[tuple[Attempt, str, datetime]]) -> None:
    """Book the ends of attempts at their exact instants, and what becomes of their jobs."""
    evictions = open_on([attempt.pk for attempt, _, _ in ends])
    changes = []
    for attempt, reported, at in ends:
        row, outcome = evictions.get(attempt.pk), reported
        if row is not None:
            how = outcome_of(row, attempt, reported)
            outcome = Outcome.EVICTED if how in LEFT else reported
            close_ended(attempt, row, how, at)
        attempt.ended_at, attempt.outcome = at, outcome
        changes.append(_after(attempt, outcome, at, None if row is None else row.pk))
    if evictions:
        steps.reached("left")
    set_columns([a for a, _, _ in ends], ["ended_at", "outcome", "detail"])
    close_members({a.pk: to_us(at) for a, _, at in ends})
    move_each(changes)


# The reservations that stand for jobs that wait no more.
STALE = Prepared(
    lambda cluster_id: (
        Reservation.objects.filter(job__cluster=cluster_id, ended_at__isnull=True)
        .exclude(job__state__in=sorted(WAITING))
        .values_list("id")
    )
)


def tidy_reservations(cluster: Cluster, *, now: datetime) -> None:
    """Give back what is held for jobs that wait no more, or may not: cancelled, held, paused."""
    stale = [pk for (pk,) in STALE.rows(cluster.pk)]
    if not stale:
        return
    for reservation in Reservation.objects.filter(pk__in=stale).select_related("job"):
        job = reservation.job
        at = job.ended_at or now
        cancelled = job.state in TERMINAL
        reservation.ended_at = at
        reservation.outcome = (
            ReservationOutcome.CANCELLED if cancelled else ReservationOutcome.RELEASED
        )
        reservation.save(update_fields=["ended_at", "outcome"])
        close_holds(reservation, at_us=to_us(at))


def _end_of_unknown(alive: Alive, as_of: datetime) -> tuple[str, datetime, str] | None:
    """Return how an attempt ended that the cluster does not know; None: it may yet come."""
    if alive.launched_at is not None:
        return Outcome.LOST, as_of, FORGOTTEN
    if alive.cancel_requested_at is not None:
        return Outcome.STOPPED, alive.cancel_requested_at, ""
    return None


@dataclass(slots=True)
class News:
    """What a look showed that Rollcall did not know, by attempt id."""

    starts: dict[int, datetime] = field(default_factory=dict)
    ends: dict[int, tuple[str, datetime, str]] = field(default_factory=dict)
    checkpoints: dict[int, datetime] = field(default_factory=dict)
    places: dict[int, Sequence[str]] = field(default_factory=dict)


PLACED = Prefetch("members", Member.objects.select_related("node"))


def _load(news: News) -> dict[int, Attempt]:
    """Return the attempts there is news of, by id: with their jobs, and members where they start."""
    rows = Attempt.objects.filter(pk__in=[*news.starts, *news.ends])
    found = {row.pk: row for row in rows.select_related("job__priority_class").order_by()}
    prefetch_related_objects([found[pk] for pk in news.starts], PLACED)
    return found


def news_in(seen: Observation, alive: Iterable[Alive]) -> News:
    """Return what is new; reports of attempts that ended before are ignored."""
    known = {UUID(report.uid): report for report in seen.attempts}
    news = News()
    for row in alive:
        report = known.get(row.uid)
        if report is None:
            end = _end_of_unknown(row, seen.as_of)
            if end is not None:
                news.ends[row.pk] = end
            continue
        if report.started_at is not None and row.started_at is None:
            news.starts[row.pk] = report.started_at
            news.places[row.pk] = report.nodes
        saved, before = report.checkpoint_at, row.last_checkpoint_at
        # A later one that was confirmed to us alone stands: the cluster need not know of it.
        if saved is not None and (before is None or saved > before):
            news.checkpoints[row.pk] = saved
        if report.ended_at is not None:
            news.ends[row.pk] = (report.outcome, report.ended_at, report.detail[:300])
    return news


def _book_nodes(cluster: Cluster, seen: Observation) -> None:
    nodes = sync_nodes(cluster, seen.nodes, at=seen.as_of)
    if cluster.first_look_at is None:
        nodes = list(Node.objects.filter(cluster=cluster).select_related("pool"))
    node_seen(nodes, at_us=to_us(seen.as_of))


def _book_news(cluster: Cluster, news: News, as_of: datetime, frames: Frames) -> None:
    """Write what is new of attempts, and what becomes of their jobs."""
    if news.checkpoints:
        set_columns(
            [Attempt(pk=pk, last_checkpoint_at=at) for pk, at in news.checkpoints.items()],
            ["last_checkpoint_at"],
        )
    if news.starts or news.ends:
        attempts = _load(news)
        for pk, places in news.places.items():
            _lie_as_seen(cluster, attempts[pk], places, frames)
        starts = [(attempts[pk], at) for pk, at in news.starts.items()]
        if starts:
            mark_started(starts, first_look=cluster.first_look_at or as_of)
        for pk, (_, _, detail) in news.ends.items():
            attempts[pk].detail = detail
        if news.ends:
            mark_ended([(attempts[pk], how, at) for pk, (how, at, _) in news.ends.items()])


def _lie_as_seen(cluster: Cluster, attempt: Attempt, places: Sequence[str], frames: Frames) -> None:
    """Put the members of an attempt that starts where the cluster has them, if that differs.

    A cluster may lay a gang out otherwise on its planned nodes.
    """
    members = sorted(attempt.members.all(), key=lambda member: member.rank)
    planned = [member.node.name for member in members]
    if len(places) != len(members) or sorted(places) == sorted(planned):
        return
    nodes = {member.node.name: member.node for member in members}
    pool = attempt.job.pool_id
    others = Node.objects.filter(cluster=cluster, pool=pool, gone_at__isnull=True)
    nodes |= {node.name: node for node in others.filter(name__in=set(places) - nodes.keys())}
    if not nodes.keys() >= set(places):
        return
    for member, name in zip(members, places, strict=True):
        member.node = nodes[name]
    set_columns(members, ["node"])
    frames.members.pop(attempt.pk, None)


def _book_shrinks(
    cluster: Cluster, seen: Observation, alive: Sequence[Alive], frames: Frames
) -> None:
    """Book the members that left the gangs that were asked to shrink."""
    asked = {row[0] for row in OPEN.rows(cluster.pk) if row[1] == EvictionMode.SHRINK}
    if not asked:
        return
    reports = {UUID(report.uid): report for report in seen.attempts}
    rows = open_on([row.pk for row in alive if row.pk in asked])
    for one in alive:
        row, report = rows.get(one.pk), reports.get(one.uid)
        at = None if report is None else report.shrunk_at
        if row is not None and at is not None and at >= row.at:
            close_shrunk(row, at=at)
            frames.members.pop(one.pk, None)


def apply_observation(cluster: Cluster, foreign: Adoption, frames: Frames) -> list[Alive]:
    """Write what a look showed; return what holds GPUs then. To be called in a transaction."""
    seen = foreign.taken_from_nodes()
    if frames.show(seen.nodes) or cluster.first_look_at is None:
        _book_nodes(cluster, seen)
    seen = foreign.write()
    alive = alive_on(cluster, frames.alive)
    news = news_in(seen, alive)
    _book_shrinks(cluster, seen, alive, frames)
    _book_news(cluster, news, seen.as_of, frames)
    tidy_reservations(cluster, now=seen.as_of)
    for row in alive:
        row.started_at = news.starts.get(row.pk, row.started_at)
        row.last_checkpoint_at = news.checkpoints.get(row.pk, row.last_checkpoint_at)
    return [row for row in alive if row.pk not in news.ends]


def _longest_look_apart(cluster: Cluster) -> timedelta:
    """Return how far apart two looks may lie before what was between them is only assumed."""
    period = cluster.clock_step if cluster.clock_now is not None else unhurried(cluster)
    return max(timedelta(seconds=10 * period), timedelta(minutes=5))


def observe(
    cluster: Cluster, backend: Backend, lease: Lease, frames: Frames, *, now: datetime
) -> list[Alive]:
    """Look at the cluster and write what is new; return the attempts that hold GPUs then."""
    seen = backend.observe(cluster.cursor, now=now)
    # Read before the transaction: nobody but this tick writes what is foreign.
    foreign = Adoption(cluster, seen)
    recall_vanished(cluster, backend, foreign)
    first_look = cluster.first_look_at or seen.as_of
    took = seen.cost_ms / 1_000
    with fenced(
        lease, cursor=seen.cursor, observed_at=seen.as_of, first_look_at=first_look, trouble="",
        look_seconds=took, failed_looks=0,
    ):  # fmt: skip
        before = cluster.observed_at
        if before is not None and seen.as_of - before > _longest_look_apart(cluster):
            mark_gap(cluster, since_us=to_us(before), until_us=to_us(seen.as_of))
        alive = apply_observation(cluster, foreign, frames)
    cluster.cursor, cluster.observed_at, cluster.first_look_at = seen.cursor, seen.as_of, first_look
    cluster.look_seconds, cluster.failed_looks = took, 0
    return alive
