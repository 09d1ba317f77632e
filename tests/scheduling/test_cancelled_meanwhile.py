"""A job that was cancelled while it ran never goes back in line, however its attempt ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.backends.models import Pool
from apps.jobs.models import Attempt
from apps.jobs.services import cancel_job, move_job
from apps.jobs.states import JobState, Outcome
from apps.scheduling.observe import mark_ended
from apps.tenants.models import Tenant
from tests.factories import NOW, make_job


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.STOPPED, "CANCELLED"),
        (Outcome.LOST, "CANCELLED"),
        (Outcome.REFUSED, "CANCELLED"),
        (Outcome.FAILED, "CANCELLED"),  # it has a retry left
        (Outcome.SUCCEEDED, "SUCCEEDED"),  # it was faster
    ],
)
def test_a_cancelled_job_is_over_when_its_attempt_is(
    outcome: Outcome, state: str, vision: Tenant, pool: Pool
) -> None:
    job = make_job(vision, pool, retry_limit=1)
    move_job(job, JobState.ADMITTED, at=NOW, what="admitted")
    attempt = Attempt.objects.create(job=job, number=1, created_at=NOW)
    cancel_job(job, by=None, now=NOW)

    mark_ended([(attempt, outcome, NOW + timedelta(seconds=5))])

    job.refresh_from_db()
    assert job.state == state
    assert job.ended_at == NOW + timedelta(seconds=5)
    assert job.attempt_number == 1
