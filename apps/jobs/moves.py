"""The one writer of a job's state: compare-and-set against the table, and a Move for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.accounts.models import User
from apps.jobs.models import Job, Move
from apps.jobs.states import MOVES, TERMINAL, JobState

BATCH = 1_000


class ForbiddenMove(Exception):
    """A move the table of states does not know: a mistake of the caller, never of a person."""


def _check(before: str, after: str) -> None:
    if after not in MOVES[JobState(before)]:
        raise ForbiddenMove(f"{before} is never followed by {after}")


def _columns(after: JobState, at: datetime, fields: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {"state": after, "state_since": at, **fields}
    if after in TERMINAL:
        columns.setdefault("ended_at", at)
    return columns


def _chunks(keys: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(keys), BATCH):
        yield keys[start : start + BATCH]


@transaction.atomic
def move_job(
    job: Job,
    after: JobState,
    *,
    at: datetime,
    what: str,
    detail: Mapping[str, Any] | None = None,
    tick_id: int | None = None,
    by: User | None = None,
    **fields: Any,
) -> bool:
    """Move a job from the state it was read in to ``after``; False when somebody was faster.

    ``fields`` are further columns written with it, as ``outcome``; a terminal state sets
    ``ended_at`` to ``at`` unless given. The object is brought up to date when the move was made.

    :raises ForbiddenMove: if the table of states does not know the move.
    """
    before = job.state
    _check(before, after)
    columns = _columns(after, at, fields)
    if Job.objects.filter(pk=job.pk, state=before).update(**columns) != 1:
        return False
    Move.objects.create(
        job=job,
        at=at,
        before=before,
        after=after,
        attempt_number=job.attempt_number,
        what=what,
        detail=dict(detail or {}),
        tick_id=tick_id,
        by=by,
    )
    for name, value in columns.items():
        setattr(job, name, value)
    return True


@dataclass(frozen=True, slots=True)
class Change:
    """One job's move to come: as the arguments of ``move_job``."""

    job: Job
    after: JobState
    at: datetime
    what: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


def _still_as_read(changes: Sequence[Change]) -> list[Change]:
    now_in: dict[int, str] = {}
    # Locked in the order of their ids, so that two of these never wait for each other.
    for keys in _chunks(sorted(change.job.pk for change in changes)):
        rows = Job.objects.select_for_update().filter(pk__in=keys).order_by("pk")
        now_in.update(rows.values_list("pk", "state"))
    return [change for change in changes if now_in.get(change.job.pk) == change.job.state]


@transaction.atomic
def move_each(changes: Sequence[Change], *, tick_id: int | None = None) -> list[Job]:
    """Move many jobs, each its own way, as ``move_job``; return those that moved, in order.

    Jobs that change alike share one UPDATE. The Move rows tell the attempt each was in before.
    """
    for change in changes:
        _check(change.job.state, change.after)
    moved = _still_as_read(changes)
    alike: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for change in moved:
        columns = _columns(change.after, change.at, change.fields)
        alike.setdefault(tuple(sorted(columns.items())), []).append(change.job.pk)
    for columns_of, jobs in alike.items():
        for keys in _chunks(jobs):
            Job.objects.filter(pk__in=keys).update(**dict(columns_of))
    Move.objects.bulk_create(
        [
            Move(
                job=change.job,
                at=change.at,
                before=change.job.state,
                after=change.after,
                attempt_number=change.job.attempt_number,
                what=change.what,
                detail=dict(change.detail),
                tick_id=tick_id,
            )
            for change in moved
        ],
        batch_size=BATCH,
    )
    for change in moved:
        for name, value in _columns(change.after, change.at, change.fields).items():
            setattr(change.job, name, value)
    return [change.job for change in moved]


def move_jobs(
    jobs: Sequence[Job],
    after: JobState,
    *,
    at: datetime,
    what: str,
    details: Mapping[int, Mapping[str, Any]] | None = None,
    tick_id: int | None = None,
    **fields: Any,
) -> list[Job]:
    """Move many jobs to one state at one instant, as ``move_each``; ``details`` is by job id."""
    told = details or {}
    return move_each(
        [Change(job, after, at, what, told.get(job.pk, {}), fields) for job in jobs],
        tick_id=tick_id,
    )


def note(
    job: Job,
    what: str,
    *,
    at: datetime,
    detail: Mapping[str, Any] | None = None,
    tick_id: int | None = None,
    by: User | None = None,
) -> Move:
    """Append something that happened to a job without a change of state, as a hold."""
    return Move.objects.create(
        job=job,
        at=at,
        before=job.state,
        after=job.state,
        attempt_number=job.attempt_number,
        what=what,
        detail=dict(detail or {}),
        tick_id=tick_id,
        by=by,
    )
