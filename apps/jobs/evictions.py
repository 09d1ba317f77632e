"""What people and automations do to an eviction: confirm that the victim has saved its work."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q

from apps.accounts.models import User
from apps.common.errors import Conflict
from apps.jobs.models import Attempt, Eviction, Job
from apps.jobs.moves import note
from apps.jobs.states import ASKED


def _open(job: Job) -> Eviction | None:
    """Return the eviction of a job that goes on and waits for the victim."""
    rows = Eviction.objects.filter(job=job, ended_at__isnull=True, mode__in=sorted(ASKED))
    return rows.select_related("attempt").order_by("-id").first()


def _refusal(job: Job, attempt_number: int, leaving: Eviction | None) -> Conflict:
    """Return why there is nothing to confirm."""
    if leaving is not None:
        return Conflict(
            f"Attempt {leaving.attempt.number} of job {job.pk} was asked to leave,"
            f" not attempt {attempt_number}.",
            field="attempt",
            code="other_attempt",
        )
    attempt = Attempt.objects.filter(job=job, number=attempt_number).first()
    if attempt is not None and attempt.ended_at is not None:
        return Conflict(
            f"Attempt {attempt_number} of job {job.pk} has left already.",
            field="attempt",
            code="already_left",
        )
    if attempt_number != job.attempt_number:
        return Conflict(
            f"Job {job.pk} is in its attempt {job.attempt_number}, not {attempt_number}.",
            field="attempt",
            code="other_attempt",
        )
    return Conflict(
        f"Nobody waits for a checkpoint of attempt {attempt_number} of job {job.pk}.",
        field="attempt",
        code="not_leaving",
    )


@transaction.atomic
def confirm_checkpoint(
    job: Job, *, attempt_number: int, by: User | None, now: datetime
) -> Eviction:
    """Take in that an attempt that was asked to leave has saved its work; safe to repeat.

    The first confirmation counts: a later one changes nothing and answers the same, even when the
    attempt has left meanwhile.

    :raises Conflict: ``other_attempt``, ``already_left`` or ``not_leaving``.
    """
    # The job's row first, as the tick does: so neither waits for what the other holds.
    job = Job.objects.select_for_update().get(pk=job.pk)
    leaving = _open(job)
    if leaving is None or leaving.attempt.number != attempt_number:
        confirmed = Eviction.objects.filter(
            job=job, attempt__number=attempt_number, confirmed_at__isnull=False
        )
        known = confirmed.select_related("attempt").order_by("-id").first()
        if known is None:
            raise _refusal(job, attempt_number, leaving)
        return known
    claimed = Eviction.objects.filter(pk=leaving.pk, confirmed_at__isnull=True)
    if claimed.update(confirmed_at=now, confirmed_by=by) == 1:
        earlier = Q(last_checkpoint_at__isnull=True) | Q(last_checkpoint_at__lt=now)
        Attempt.objects.filter(earlier, pk=leaving.attempt_id).update(last_checkpoint_at=now)
        detail = {"eviction": leaving.pk, "attempt": attempt_number}
        note(job, "checkpoint_confirmed", at=now, detail=detail, by=by)
    leaving.refresh_from_db(fields=["confirmed_at", "confirmed_by"])
    return leaving
