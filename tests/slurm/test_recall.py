"""What ended while Rollcall was away, and that squeue lists no more: sacct tells how."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db.models import F, Sum

from apps.backends.models import Cluster
from apps.common.time import MICROSECOND
from apps.jobs.models import Attempt, Job
from apps.ledger.models import Interval
from apps.ledger.usage import rebuild_usage
from apps.tenants.models import Tenant
from tests.labs.slurm.lab import Lab
from tests.slurm.play import Play
from tests.slurm.test_history import TREE_OF_ME

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


def gpu_seconds(cluster: Cluster, job: Job) -> int:
    """Return what the ledger has of a job."""
    rows = Interval.objects.filter(cluster=cluster, job=job, kind="member", end_us__isnull=False)
    total = rows.aggregate(total=Sum(F("gpus") * (F("end_us") - F("start_us"))))["total"] or 0
    return round(total / MICROSECOND)


def told_by_sacct(lab: Lab, number: str) -> int:
    """Return the GPU-seconds of a job as sacct has them."""
    out = lab.run("sacct", "-X", "-n", "-P", "-j", number, "-o", "AllocTRES,ElapsedRaw")
    tres, seconds = out.split("|")
    gpus = dict(part.split("=") for part in tres.split(","))["gres/gpu"]
    return int(gpus) * int(seconds)


def test_what_ended_while_nobody_looked_has_its_own_end(forgetful_lab: Lab, vision: Tenant) -> None:
    lab = forgetful_lab
    play = Play(lab, account="vision")
    good = play.submit(vision, 2, workload={"script": "#!/bin/bash\nsleep 6\n"})
    bad = play.submit(vision, 1, workload={"script": "#!/bin/bash\nsleep 6\nexit 3\n"})
    theirs = lab.submit("sleep 7", "--account=vision", "--gres=gpu:4")
    play.until(lambda: Attempt.objects.filter(started_at__isnull=False).count() == 3, "running")
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
