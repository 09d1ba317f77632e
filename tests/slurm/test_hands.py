"""What somebody else does by hand, and a Slurm that is slow or strange: nothing twice, nothing lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apps.backends.adapters.slurm import SlurmBackend
from apps.backends.models import Cluster
from apps.backends.pace import pace_words
from apps.jobs.models import Job
from apps.jobs.services import cancel_job
from apps.scheduling.models import Verdict
from apps.scheduling.services import tick
from apps.tenants.models import Tenant
from tests.factories import make_cluster
from tests.slurm.play import Play
from tests.slurm.stage import now

SHORT = {"script": "#!/bin/bash\nsleep 8\n"}


@pytest.fixture
def by_hand(slurm: Play) -> Callable[..., str]:
    """Do something with scontrol to the only job there is, as an admin of the site would."""

    def do(*words: str) -> str:
        (number,) = slurm.lab.jobs()
        slurm.lab.run("scontrol", *(word.format(number) for word in words))
        return number

    return do


@pytest.mark.parametrize(
    "words",
    [("hold", "{}"), ("update", "JobId={}", "Nice=500")],
    ids=["hold", "nice"],
)
def test_a_running_job_that_is_held_or_reniced_runs_to_its_end(
    slurm: Play, vision: Tenant, by_hand: Callable[..., str], words: tuple[str, ...]
) -> None:
    job = slurm.submit(vision, 2, workload=SHORT)
    slurm.until_state(job, "RUNNING")

    by_hand(*words)
    slurm.until_state(job, "SUCCEEDED")

    assert [attempt.outcome for attempt in slurm.attempts(job)] == ["succeeded"]


def test_a_job_whose_comment_is_overwritten_is_still_the_same_job(
    slurm: Play, vision: Tenant, by_hand: Callable[..., str]
) -> None:
    job = slurm.submit(vision, 2, workload=SHORT)
    slurm.until_state(job, "RUNNING")

    by_hand("update", "JobId={}", "Comment=mine now")
    slurm.tick()
    foreign = slurm.foreign()
    slurm.until_state(job, "SUCCEEDED")

    assert foreign == {}
    assert [attempt.outcome for attempt in slurm.attempts(job)] == ["succeeded"]


def test_one_that_is_to_go_goes_though_its_comment_is_overwritten(
    slurm: Play, vision: Tenant, by_hand: Callable[..., str]
) -> None:
    job = slurm.submit(vision, 2)
    slurm.until_state(job, "RUNNING")
    by_hand("update", "JobId={}", "Comment=")

    cancel_job(job, by=None, now=now())
    slurm.until_state(job, "CANCELLED")

    assert slurm.lab.jobs() == []


@pytest.mark.parametrize("how", ["requeue", "requeuehold"])
def test_a_job_that_is_requeued_is_rollcalls_to_start_again(
    slurm: Play, vision: Tenant, by_hand: Callable[..., str], how: str
) -> None:
    job = slurm.submit(vision, 2)
    slurm.until_state(job, "RUNNING")

    # Its submission has --no-requeue, so that takes two commands.
    by_hand("update", "JobId={}", "Requeue=1")
    number = by_hand(how, "{}")
    slurm.until(lambda: len(slurm.attempts(job)) == 2, "planned anew")
    slurm.until_state(job, "RUNNING")

    first, second = slurm.attempts(job)
    assert first.ended_at is not None
    assert first.outcome != "succeeded"
    # Slurm's own second try is gone; the new attempt is the only job.
    (running,) = slurm.lab.jobs()
    assert running != number
    assert len(slurm.in_slurm(second)) == 1


def test_a_job_that_somebody_suspends_and_resumes_is_neither_lost_nor_doubled(
    slurm: Play, vision: Tenant, by_hand: Callable[..., str]
) -> None:
    job = slurm.submit(vision, 2, workload=SHORT)
    slurm.until_state(job, "RUNNING")

    by_hand("suspend", "{}")
    for _ in range(3):
        slurm.tick()
    assert (slurm.state(job), len(slurm.attempts(job))) == ("RUNNING", 1)
    by_hand("resume", "{}")
    slurm.until_state(job, "SUCCEEDED")

    assert len(slurm.attempts(job)) == 1


def test_a_slurm_that_is_slow_is_trouble_for_its_own_cluster_and_loses_nothing(
    slurm: Play, vision: Tenant
) -> None:
    Play.tick(slurm)
    slurm.cluster.options = {**slurm.cluster.options, "timeout_seconds": 1}
    slurm.cluster.save(update_fields=["options"])
    job = slurm.submit(vision, 2)
    slurm.until_state(job, "RUNNING")

    with slurm.lab.frozen_controller():
        slurm.tick()
        slurm.tick()
        assert "within 1 s" in slurm.trouble
        assert (slurm.state(job), len(slurm.attempts(job))) == ("RUNNING", 1)
    slurm.tick()

    assert slurm.trouble == ""
    assert (slurm.state(job), len(slurm.attempts(job))) == ("RUNNING", 1)
    assert len(slurm.lab.jobs()) == 1


def test_a_slurm_that_freezes_as_it_is_handed_a_job_starts_it_once(
    slurm: Play, vision: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.cluster.options = {**slurm.cluster.options, "timeout_seconds": 2}
    slurm.cluster.save(update_fields=["options"])
    launch = SlurmBackend.launch
    frozen = []

    def freeze(self: SlurmBackend, request: object, **more: object) -> object:
        if frozen:
            return launch(self, request, **more)  # type: ignore[arg-type]  # as called
        frozen.append(request)
        with slurm.lab.frozen_controller():
            return launch(self, request, **more)  # type: ignore[arg-type]  # as called

    monkeypatch.setattr(SlurmBackend, "launch", freeze)
    job = slurm.submit(vision, 4)

    slurm.until_state(job, "RUNNING")
    for _ in range(3):
        slurm.tick()

    assert frozen
    assert len(slurm.lab.jobs()) == 1
    assert slurm.state(job) == "RUNNING"


def test_a_slurm_that_freezes_is_asked_ever_less_until_it_answers(
    slurm: Play, vision: Tenant
) -> None:
    slurm.cluster.options = {**slurm.cluster.options, "timeout_seconds": 1}
    slurm.cluster.save(update_fields=["options"])
    other = make_cluster("boreas", clock_now=None, options={"world": "memory"})
    waits = []
    # A slow look before it would space them out too: machines are noisy.
    slurm.until(lambda: slurm.seconds_to_the_next() == 1, "asked as often as ever")

    with slurm.lab.frozen_controller():
        for _ in range(4):
            slurm.tick()
            waits.append(slurm.seconds_to_the_next())
        words = pace_words(Cluster.objects.get(pk=slurm.cluster.pk))
        # A job that is submitted here asks for a tick: that is no reason to ask more.
        job = slurm.submit(vision, 1)
        assert not tick(slurm.cluster)
        assert tick(other)

    assert waits == [1, 2, 4, 8]
    assert words == "4 looks in a row failed; Rollcall asks every 8 s until it answers."
    slurm.tick()
    # The look in which it came to itself may have been slow.
    slurm.until(lambda: slurm.seconds_to_the_next() == 1, "asked as often as ever")
    slurm.until_state(job, "RUNNING")
    assert len(slurm.lab.jobs()) == 1


def test_a_gang_larger_than_the_partition_never_fits_and_says_so(
    slurm: Play, vision: Tenant
) -> None:
    job = slurm.submit(vision, 6)
    slurm.tick()

    verdict = Verdict.objects.get(job=job)
    assert (verdict.code, verdict.needed, verdict.detail["most"]) == ("never_fits", 48, 40)
    assert Job.objects.get(pk=job.pk).state == "PENDING"
    assert slurm.lab.jobs() == []


def test_the_workers_own_language_and_zone_change_nothing(
    slurm: Play, vision: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LC_ALL", "de_DE.UTF-8"), ("LANG", "tr_TR"), ("TZ", "Asia/Kathmandu"),
                        ("SLURM_TIME_FORMAT", "relative"), ("SQUEUE_FORMAT", "%i")):  # fmt: skip
        monkeypatch.setenv(name, value)
    job = slurm.submit(vision, 2, workload=SHORT)
    slurm.until_state(job, "SUCCEEDED")

    (attempt,) = slurm.attempts(job)
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert attempt.launched_at is not None
    assert -1 <= (attempt.started_at - attempt.launched_at).total_seconds() <= 20
    assert 7 <= (attempt.ended_at - attempt.started_at).total_seconds() <= 20
