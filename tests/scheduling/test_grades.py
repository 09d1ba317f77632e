"""A cluster that is not Rollcall's to drive is looked at and planned for; nothing is done to it."""

from __future__ import annotations

from typing import Any

import pytest

from apps.backends.adapters.simulator import SimulatorBackend
from apps.backends.models import Cluster, Grade
from apps.engine import codec, reasons
from apps.jobs.models import Attempt, Eviction, Job, Reservation
from apps.jobs.services import cancel_job
from apps.jobs.states import JobState
from apps.queues.models import ClusterPolicy
from apps.scheduling.models import Verdict
from tests.factories import make_job
from tests.scheduling.playground import Playground

CHANGES = ("launch", "stop", "ask_to_leave", "shrink", "stay", "demote")
WATCHED = [Grade.OBSERVE, Grade.ADVISE]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that change a cluster, as they are made."""
    made: list[str] = []

    def listened(name: str) -> Any:
        real = getattr(SimulatorBackend, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            return real(*args, **kwargs)

        return call

    for name in CHANGES:
        monkeypatch.setattr(SimulatorBackend, name, listened(name))
    return made


def grade(play: Playground, to: str) -> None:
    Cluster.objects.filter(pk=play.cluster.pk).update(grade=to)
    play.cluster.refresh_from_db()


def reclaims(play: Playground) -> None:
    policy = {"preemption": "reclaim", "mode": "kill", "min_runtime_seconds": 0}
    ClusterPolicy.objects.update_or_create(cluster=play.cluster, defaults=policy)


@pytest.mark.parametrize("to", WATCHED)
def test_nothing_is_started_but_the_plan_says_what_would_be(play, vision, calls, to):
    grade(play, to)
    job = make_job(vision, play.pool, size=2, gpus_per_member=4)

    tick = play.tick()

    assert calls == []
    assert play.state(job) == JobState.PENDING
    assert not Attempt.objects.exists()
    assert tick.starts == 0
    assert codec.decode_plan(bytes(tick.plan)).starts.job.tolist() == [0]
    said = reasons.sentence({"code": Verdict.objects.get(job=job).code})
    assert "only watches" in said


@pytest.mark.parametrize("to", WATCHED)
def test_what_is_to_drive_later_starts_at_the_next_tick(play, vision, calls, to):
    grade(play, to)
    job = make_job(vision, play.pool, size=2, gpus_per_member=4)
    play.tick()

    grade(play, Grade.DRIVE)
    play.tick(2)

    assert calls == ["launch"]
    assert play.state(job) == JobState.RUNNING
    assert not Verdict.objects.filter(job=job).exists()


@pytest.mark.parametrize("to", WATCHED)
def test_nobody_is_evicted_and_nothing_held(play, vision, nlp, calls, to):
    reclaims(play)
    victim, _ = (make_job(vision, play.pool, size=1, gpus_per_member=4) for _ in range(2))
    play.tick()
    assert play.state(victim) == JobState.RUNNING
    grade(play, to)
    waits = make_job(nlp, play.pool, size=1, gpus_per_member=4)
    calls.clear()

    for second in (2, 4, 600):
        play.tick(second)

    assert calls == []
    assert not Eviction.objects.exists()
    assert not Reservation.objects.filter(ended_at__isnull=True).exists()
    assert (play.state(victim), play.state(waits)) == (JobState.RUNNING, JobState.PENDING)


def test_the_same_under_drive_evicts(play, vision, nlp, calls):
    """The twin of the above: it is the grade that kept the victim."""
    reclaims(play)
    for _ in range(2):
        make_job(vision, play.pool, size=1, gpus_per_member=4)
    play.tick()
    make_job(nlp, play.pool, size=1, gpus_per_member=4)

    for second in (2, 4, 600):
        play.tick(second)

    assert Eviction.objects.count() == 1
    assert "stop" in calls


def test_a_grade_that_is_lowered_stops_the_stopping(play, vision, bob, calls):
    job = make_job(vision, play.pool, by=bob, size=1, gpus_per_member=4)
    play.tick()
    grade(play, Grade.OBSERVE)
    cancel_job(Job.objects.get(pk=job.pk), by=bob, now=play.at(5))
    calls.clear()

    play.tick(6)
    assert calls == []
    assert play.state(job) == JobState.RUNNING

    grade(play, Grade.DRIVE)
    play.tick(8)
    play.tick(10)
    assert "stop" in calls
    assert play.state(job) == JobState.CANCELLED


@pytest.mark.parametrize("to", WATCHED)
def test_a_gang_that_would_hold_some_gpus_says_what_it_needs(play, vision, calls, to):
    make_job(vision, play.pool, size=1, gpus_per_member=4, limit_seconds=600)
    play.tick()
    gang = make_job(vision, play.pool, size=2, gpus_per_member=4)
    grade(play, to)

    tick = play.tick()

    assert codec.decode_plan(bytes(tick.plan)).holds.job.tolist() == [0]
    assert Verdict.objects.get(job=gang).detail.get("held") is None
