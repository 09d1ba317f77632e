"""A job that its cluster refuses is tried again, but ever more seldom."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from apps.backends.adapters.simulator import SimulatorBackend
from apps.backends.port import LaunchResult
from apps.jobs.models import Attempt, Job
from apps.jobs.states import JobState
from tests.factories import make_job


def test_a_job_that_is_refused_again_and_again_is_tried_ever_more_seldom(
    play, vision, monkeypatch: pytest.MonkeyPatch
):
    real = SimulatorBackend.launch

    def refuses(self: SimulatorBackend, *args: Any, **kwargs: Any) -> LaunchResult:
        return LaunchResult("refused", detail="Invalid account")

    monkeypatch.setattr(SimulatorBackend, "launch", refuses)
    job = make_job(vision, play.pool)
    for second in range(0, 600, 10):
        play.tick(second)

    tried = list(Attempt.objects.filter(job=job).order_by("number"))
    apart = [later.created_at - one.created_at for one, later in pairwise(tried)]
    assert {attempt.outcome for attempt in tried} == {"refused"}
    assert apart == [timedelta(seconds=s) for s in (10, 30, 60, 120, 240)]
    assert play.state(job) == JobState.PENDING

    monkeypatch.setattr(SimulatorBackend, "launch", real)
    begin_at = Job.objects.get(pk=job.pk).begin_at
    assert begin_at is not None
    play.tick((begin_at - play.at(0)).total_seconds())
    assert play.state(job) == JobState.RUNNING
