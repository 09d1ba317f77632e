"""What ended while Rollcall was away, and squeue lists no more: sacct tells how, then or later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db.models import F, Sum
from django.utils import timezone

from apps.backends.models import Cluster
from apps.common.time import MICROSECOND
from apps.jobs.models import Attempt, Job
from apps.ledger.models import Interval
from apps.ledger.usage import rebuild_usage
from apps.scheduling.missed import EVERY, read_on
from apps.scheduling.models import HistoryReading
from apps.tenants.models import Tenant
from tests.labs.slurm.lab import Lab
from tests.slurm.play import Play
from tests.slurm.test_history import TREE_OF_ME, written

pytestmark = pytest.mark.django_db

FORGETFUL = "MinJobAge=2"


@pytest.fixture
def forgetful_lab(running_accounting_lab: Lab) -> Iterator[Lab]:
    """The lab with accounts, in which slurmctld forgets a job soon after it ended."""
    lab = running_accounting_lab
    lab.clear()
    lab.accounting.load(TREE_OF_ME)
    lab.accounting.forget_jobs()
    lab.configure(FORGETFUL)
    lab.stop_controller()  # it need not have heard of the accounts
    lab.start_controller()
    yield lab
    lab.clear()
    lab.accounting.forget_jobs()


def away(lab: Lab) -> None:
    """Let all end and be forgotten, with nobody looking."""
    lab.wait(lambda: not lab.run("squeue", "-h", "-t", "all"), "all to be forgotten", patience=90)


def running() -> int:
    """Return how many attempts were seen to run."""
    return Attempt.objects.filter(started_at__isnull=False, ended_at__isnull=True).count()


def gpu_seconds(cluster: Cluster, job: Job) -> int:
    """Return what the ledger has of a job."""
    rows = Interval.objects.filter(cluster=cluster, job=job, kind="member", end_us__isnull=False)
    total = rows.aggregate(total=Sum(F("gpus") * (F("end_us") - F("start_us"))))["total"] or 0
    return round(total / MICROSECOND)


def told_by_sacct(lab: Lab, number: str) -> int:
    """Return the GPU-seconds of a job as sacct has them."""
    # Its clock may be ahead of ours: nothing is after tomorrow.
    span = ("-S", "2000-01-01", "-E", "now+1day")
    out = lab.run("sacct", "-X", "-n", "-P", "-j", number, *span, "-o", "AllocTRES,ElapsedRaw")
    tres, seconds = out.split("|")
    gpus = dict(part.split("=") for part in tres.split(","))["gres/gpu"]
    return int(gpus) * int(seconds)


def test_what_ended_while_nobody_looked_has_its_own_end(forgetful_lab: Lab, vision: Tenant) -> None:
    lab = forgetful_lab
    play = Play(lab, account="vision")
    theirs = lab.submit("sleep 15", "--account=vision", "--gres=gpu:4")
    lab.wait(lambda: lab.state(theirs) == "RUNNING", "it to run")
    play.tick()
    good = play.submit(vision, 2, workload={"script": "#!/bin/bash\nsleep 10\n"})
    bad = play.submit(vision, 1, workload={"script": "#!/bin/bash\nsleep 10\nexit 3\n"})
    play.until(lambda: running() == 3, "running")
    waits = lab.submit("sleep 2", "--account=vision", "--gres=gpu:8", "--nodes=5")
    play.until(lambda: Job.objects.filter(foreign_ref__contains=f":{waits}:").exists(), "seen")

    away(lab)
    play.tick()

    cluster = play.cluster
    assert (play.state(good), play.state(bad)) == ("SUCCEEDED", "FAILED")
    assert [one.detail for one in play.attempts(bad)] == ["exit status 3"]
    assert Attempt.objects.count() == Job.objects.count() == 4
    for number in (theirs, waits):
        job = Job.objects.get(foreign_ref__contains=f":{number}:")
        assert (job.state, job.outcome) == ("SUCCEEDED", "succeeded")
        assert gpu_seconds(cluster, job) == told_by_sacct(lab, number)
    for job in (good, bad):
        (attempt,) = play.attempts(job)
        number = attempt.cluster_ref.split(":")[1]
        # Our start is the instant of the launch, theirs the second in which it was.
        assert abs(gpu_seconds(cluster, job) - told_by_sacct(lab, number)) <= 8 * job.size
    assert max(abs(row.gpu_hours) for row in rebuild_usage(cluster)) == 0
    play.tick()
    assert Attempt.objects.count() == 4


def read_again(cluster: Cluster) -> HistoryReading:
    """Read on, as if it had been read last a while before the first look."""
    cluster.refresh_from_db()
    assert cluster.first_look_at is not None
    before = cluster.first_look_at - EVERY
    HistoryReading.objects.update_or_create(cluster=cluster, defaults={"read_until": before})
    assert read_on(cluster, now=timezone.now())
    return HistoryReading.objects.get(cluster=cluster)


def test_what_no_look_showed_and_what_was_lost_is_in_the_ledger_afterwards(
    forgetful_lab: Lab, vision: Tenant
) -> None:
    lab = forgetful_lab
    play = Play(lab, account="vision")
    theirs = lab.submit("sleep 15", "--account=vision", "--gres=gpu:4")
    lab.wait(lambda: lab.state(theirs) == "RUNNING", "it to run")
    play.tick()
    ours = play.submit(vision, 1, workload={"script": "#!/bin/bash\nsleep 10\n"})
    play.until(lambda: running() == 2, "running")
    unseen = [
        lab.submit("sleep 2", "--account=vision", "--gres=gpu:3", "--nodes=2"),
        lab.submit("exit 1", "--account=vision", "--gpus=2"),
    ]
    away(lab)
    # A job of ours that was lost would be started again.
    Cluster.objects.update(grade="observe")

    with lab.accounting.away():
        play.tick()
        assert (play.trouble, play.state(ours)) == ("", "PENDING")
        reading = read_again(play.cluster)
        assert reading.problem != ""
        assert {one.outcome for one in Attempt.objects.all()} == {"lost"}

    reading = read_again(play.cluster)
    cluster = play.cluster
    assert (reading.problem, reading.runs, reading.mended) == ("", 2, 2)
    assert play.state(ours) == "SUCCEEDED"
    for number in (theirs, *unseen):
        job = Job.objects.get(foreign_ref__contains=f":{number}:")
        assert (job.state, job.outcome) == (
            ("FAILED", "failed") if number == unseen[1] else ("SUCCEEDED", "succeeded")
        )
        assert gpu_seconds(cluster, job) == told_by_sacct(lab, number)
    (attempt,) = play.attempts(ours)
    number = attempt.cluster_ref.split(":")[1]
    assert abs(gpu_seconds(cluster, ours) - told_by_sacct(lab, number)) <= 8
    assert max(abs(row.gpu_hours) for row in rebuild_usage(cluster)) == 0

    before = written(cluster)
    again = read_again(cluster)
    assert (again.runs, again.mended) == (2, 2)
    play.tick()
    after = written(cluster)
    assert after[:5] == before[:5]
    assert [row for row in after[5] if row[0] != "node"] == [
        row for row in before[5] if row[0] != "node"
    ]
