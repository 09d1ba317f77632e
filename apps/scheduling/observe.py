"""What the cluster says becomes moves of jobs and intervals of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from apps.backends.models import Cluster, Node
from apps.backends.port import Backend, Observation, SeenAttempt
from apps.backends.services import sync_nodes
from apps.common.time import to_us
from apps.jobs.models import Attempt, Reservation
from apps.jobs.moves import Change, move_each
from apps.jobs.states import HOLDING, TERMINAL, WAITING, JobState, Outcome, ReservationOutcome
from apps.ledger.intervals import close_holds, close_members, node_seen, open_members
from apps.scheduling.leases import Lease, fenced

FINAL = {
    Outcome.SUCCEEDED: JobState.SUCCEEDED,
    Outcome.FAILED: JobState.FAILED,
    Outcome.TIMED_OUT: JobState.FAILED,
    Outcome.CANCELLED: JobState.CANCELLED,
}


def alive_attempts(cluster: Cluster) -> list[Attempt]:
    """Return the attempts that hold GPUs, with job and members, by id."""
    rows = Attempt.objects.filter(
        job__cluster=cluster, job__state__in=sorted(HOLDING), ended_at__isnull=True
    )
    return list(
        rows.select_related("job", "job__priority_class")
        .prefetch_related("members__node")
        .order_by("id")
    )


def mark_started(attempts: Sequence[tuple[Attempt, datetime]], *, first_look: datetime) -> int:
    """Book the starts of attempts: intervals, and jobs that are RUNNING from then on."""
    changes = []
    for attempt, at in attempts:
        attempt.started_at = at
        changes.append(
            Change(
                attempt.job,
                JobState.RUNNING,
                at=at,
                what="started",
                detail={"number": attempt.number},
            )
        )
    Attempt.objects.bulk_update([a for a, _ in attempts], ["started_at"])
    open_members([a for a, _ in attempts], first_look_us=to_us(first_look))
    return len(move_each(changes))


def _after(attempt: Attempt, outcome: str, at: datetime) -> Change:
    """Return what becomes of a job whose attempt ended."""
    job = attempt.job
    detail: dict[str, object] = {"number": attempt.number, "outcome": outcome}
    if attempt.detail:
        detail["detail"] = attempt.detail
    if outcome == Outcome.STOPPED and job.cancel_requested_at is not None:
        outcome = Outcome.CANCELLED
    retry = outcome == Outcome.FAILED and job.retries_used < job.retry_limit
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
    return Change(
        job, JobState.PENDING, at=at, what="retried" if retry else outcome, detail=detail,
        fields=again,
    )  # fmt: skip


def mark_ended(ends: Sequence[tuple[Attempt, str, datetime]]) -> int:
    """Book the ends of attempts at their exact instants, and what becomes of their jobs."""
    changes = []
    for attempt, outcome, at in ends:
        attempt.ended_at, attempt.outcome = at, outcome
        changes.append(_after(attempt, outcome, at))
    Attempt.objects.bulk_update(
        [a for a, _, _ in ends], ["ended_at", "outcome", "detail", "last_checkpoint_at"]
    )
    close_members({a.pk: to_us(at) for a, _, at in ends})
    return len(move_each(changes))


def tidy_reservations(cluster: Cluster, *, now: datetime) -> None:
    """Give back what is held for jobs that wait no more, or may not: cancelled, held, paused."""
    stale = Reservation.objects.filter(job__cluster=cluster, ended_at__isnull=True).exclude(
        job__state__in=sorted(WAITING)
    )
    for reservation in stale.select_related("job"):
        job = reservation.job
        at = job.ended_at or now
        cancelled = job.state in TERMINAL
        reservation.ended_at = at
        reservation.outcome = (
            ReservationOutcome.CANCELLED if cancelled else ReservationOutcome.RELEASED
        )
        reservation.save(update_fields=["ended_at", "outcome"])
        close_holds(reservation, at_us=to_us(at))


def _by_uid(attempts: Iterable[SeenAttempt]) -> dict[UUID, SeenAttempt]:
    return {UUID(seen.uid): seen for seen in attempts}


def _gone(attempt: Attempt, seen: Observation) -> tuple[Attempt, str, datetime] | None:
    """Return the end of an attempt that the cluster does not know, or None if it may yet come."""
    if attempt.launched_at is not None:
        attempt.detail = "the cluster knows it no more"
        return attempt, Outcome.LOST, seen.as_of
    if attempt.job.cancel_requested_at is not None:
        return attempt, Outcome.STOPPED, attempt.job.cancel_requested_at
    return None


def apply_observation(cluster: Cluster, seen: Observation) -> int:
    """Write what a look showed; return the number of moves. To be called in a transaction."""
    as_of = seen.as_of
    nodes = sync_nodes(cluster, seen.nodes, at=as_of)
    if cluster.first_look_at is None:
        nodes = list(Node.objects.filter(cluster=cluster).select_related("pool"))
    node_seen(nodes, at_us=to_us(as_of))
    first_look = cluster.first_look_at or as_of
    known = _by_uid(seen.attempts)
    starts: list[tuple[Attempt, datetime]] = []
    ends: list[tuple[Attempt, str, datetime]] = []
    checkpoints: list[Attempt] = []
    for attempt in alive_attempts(cluster):
        report = known.get(attempt.uid)
        if report is None:
            gone = _gone(attempt, seen)
            if gone is not None:
                ends.append(gone)
            continue
        if report.started_at is not None and attempt.started_at is None:
            starts.append((attempt, report.started_at))
        if report.checkpoint_at is not None and report.checkpoint_at != attempt.last_checkpoint_at:
            attempt.last_checkpoint_at = report.checkpoint_at
            checkpoints.append(attempt)
        if report.ended_at is not None:
            attempt.detail = report.detail[:300]
            ends.append((attempt, report.outcome, report.ended_at))
    moves = mark_started(starts, first_look=first_look) if starts else 0
    if checkpoints:
        Attempt.objects.bulk_update(checkpoints, ["last_checkpoint_at"])
    if ends:
        moves += mark_ended(ends)
    tidy_reservations(cluster, now=as_of)
    return moves


def observe(cluster: Cluster, backend: Backend, lease: Lease, *, now: datetime) -> int:
    """Look at the cluster and write what is new; return the number of moves."""
    seen = backend.observe(cluster.cursor, now=now)
    first_look = cluster.first_look_at or seen.as_of
    with fenced(
        lease, cursor=seen.cursor, observed_at=seen.as_of, first_look_at=first_look, trouble=""
    ):
        moves = apply_observation(cluster, seen)
    cluster.cursor, cluster.observed_at, cluster.first_look_at = seen.cursor, seen.as_of, first_look
    return moves
