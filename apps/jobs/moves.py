"""The one writer of a job's state: compare-and-set against the table, and a Move for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.accounts.models import User
from apps.common.prepared import Prepared
from apps.common.rows import add_rows, compare_and_set, set_columns
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
    if not compare_and_set(Job, where={"id": job.pk, "state": before}, values=columns):
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


# Locked in the order of their ids, so that two of these never wait for each other.
STATES = Prepared(
    lambda keys: (
        Job.objects.select_for_update()
        .filter(pk__in=keys)
        .order_by("pk")
        .values_list("pk", "state")
    )
)


def _still_as_read(changes: Sequence[Change]) -> list[Change]:
    now_in: dict[int, str] = {}
    for keys in _chunks(sorted(change.job.pk for change in changes)):
        now_in.update(STATES.rows(keys))
    return [change for change in changes if now_in.get(change.job.pk) == change.job.state]


@transaction.atomic(savepoint=False)
def move_each(
    changes: Sequence[Change], *, tick_id: int | None = None, locked: bool = False
) -> list[Job]:
    """Move many jobs, each its own way, as ``move_job``; return those that moved, in order.

    The Move rows tell the attempt each was in before. ``locked``: the caller's transaction read
    the jobs for update, so none can have moved since.
    """
    if not changes:
        return []
    for change in changes:
        _check(change.job.state, change.after)
    moved = list(changes) if locked else _still_as_read(changes)
    moves = [
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
    ]
    alike: dict[tuple[str, ...], list[Job]] = {}
    for change in moved:
        columns = _columns(change.after, change.at, change.fields)
        for name, value in columns.items():
            setattr(change.job, name, value)
        alike.setdefault(tuple(sorted(columns)), []).append(change.job)
    for names, jobs in alike.items():
        set_columns(jobs, names)
    add_rows(moves)
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


def correct(changes: Sequence[Change]) -> None:
    """Write how jobs stand that were believed to stand otherwise; the Move says so.

    The table of states does not apply: what is put right was no move, but a mistake. Needs the
    cluster's row locked, so that no tick moves them meanwhile.
    """
    for change in changes:
        job, before = change.job, change.job.state
        for name, value in _columns(change.after, change.at, change.fields).items():
            setattr(job, name, value)
        job.save(update_fields=sorted(_columns(change.after, change.at, change.fields)))
        Move.objects.create(
            job=job,
            at=change.at,
            before=before,
            after=change.after,
            attempt_number=job.attempt_number,
            what=change.what,
            detail=dict(change.detail),
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
