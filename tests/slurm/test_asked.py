"""Work that asks Slurm for its GPUs in every way there is, as it is seen, counted and booked."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from apps.backends.models import Node
from apps.jobs.models import Job
from apps.jobs.states import HOLDING
from apps.ledger.models import Interval
from tests.labs.slurm.lab import Lab
from tests.slurm.play import Play

USED = re.compile(r"NodeName=(\S+) .*GresUsed=gpu:[a-z0-9]+:(\d+)")


@pytest.fixture(params=["commands", "rest"])
def slurm(request: pytest.FixtureRequest, db: None) -> Play:
    """The lab as a cluster that is only observed, by each way."""
    if request.param == "commands":
        return Play(request.getfixturevalue("lab"), grade="observe")
    lab: Lab = request.getfixturevalue("rest_lab")
    return Play(lab, grade="observe", **lab.rest.options())


def used(lab: Lab) -> dict[str, int]:
    """The GPUs that Slurm says are in use, by node."""
    told = USED.findall(lab.run("scontrol", "-d", "-o", "show", "node"))
    return {name: int(gpus) for name, gpus in told if int(gpus)}


def submit(lab: Lab, *options: str, runs: bool = True) -> str:
    account = ["--account=research"] if lab.shape.accounting else []
    # An id that is given out again may have an output of somebody else.
    plain = "--time=60", "--output=/dev/null", *account
    job = lab.submit("sleep 600", *plain, *options, user="nobody")
    if runs:
        lab.wait(lambda: lab.state(job) == "RUNNING", f"{job} to run")
    return job


def job_of(number: str) -> Job:
    return Job.objects.get(foreign_ref__contains=f":{number}:")


def layout(job: Job) -> Counter[str]:
    """The GPUs of a running job, by node."""
    found: Counter[str] = Counter()
    for name in job.attempts.get().members.values_list("node__name", flat=True):
        found[name] += job.gpus_per_member
    return found


def shown(lab: Lab, number: str) -> dict[str, int]:
    """The same as Slurm says it of the job itself."""
    told = lab.run("scontrol", "-d", "show", "job", number)
    found: dict[str, int] = {}
    for names, gpus in re.findall(r"Nodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=gpu:\w+:(\d+)", told):
        for name in lab.run("scontrol", "show", "hostnames", names).split():
            found[name] = int(gpus)
    return found


def test_every_way_to_ask_for_gpus_is_a_job_with_its_gpus_where_they_are(slurm: Play) -> None:
    lab = slurm.lab
    asked: dict[str, tuple[str, ...]] = {
        "some of one node": ("--gpus=3", "-w", "gpu1"),
        "of a type": ("--gpus=h100:2", "-w", "gpu1"),
        "with its nodes": ("--gres=gpu:1", "--exclusive", "-N2", "-w", "gpu2,gpu3"),
        "by task": ("--ntasks=2", "--gpus-per-task=1", "-w", "gpu1", "-N1"),
        "by node": ("--gpus-per-node=1", "-N2", "-w", "gpu4,gpu5"),
        "unevenly": ("--gpus=11", "-N2", "-w", "gpu4,gpu5"),
    }
    numbers = {what: submit(lab, *options) for what, options in asked.items()}
    line = submit(lab, "--gpus=20", "--qos=normal" if lab.shape.accounting else "-N3", runs=False)

    slurm.until(lambda: slurm.foreign() == used(lab), "seen")

    for what, number in numbers.items():
        assert layout(job_of(number)) == shown(lab, number), what
    waits = job_of(line)
    assert (waits.state, waits.size, waits.gpus_per_member) == ("PENDING", 20, 1)
    assert waits.workload["qos"] == ("normal" if lab.shape.accounting else "")

    slurm.tick()
    assert {job_of(number).state for number in numbers.values()} == {"RUNNING"}
    for number in (*numbers.values(), line):
        lab.run("scancel", number)
    slurm.until(lambda: not Job.objects.filter(state__in=HOLDING).exists(), "over")
    for what, number in numbers.items():
        assert job_of(number).state == "CANCELLED", what
    booked = Interval.objects.filter(kind="member", job__in=[job_of(n) for n in numbers.values()])
    assert sum(row.gpus for row in booked) == 3 + 2 + 16 + 2 + 11 + 2
    assert not Node.objects.filter(cluster=slurm.cluster, foreign_gpus__gt=0).exists()


def test_where_no_sum_tells_how_two_jobs_share_their_nodes_slurm_is_asked(slurm: Play) -> None:
    lab = slurm.lab
    by_task = "--gpus-per-task=1", "-N2", "-w", "gpu1,gpu2"
    block = submit(lab, "--gres=gpu:7", "-w", "gpu1")
    first = submit(lab, "--ntasks=6", *by_task)
    lab.run("scancel", block)
    second = submit(lab, "--ntasks=4", *by_task)
    assert shown(lab, first) == {"gpu1": 1, "gpu2": 5}
    assert set(shown(lab, second).values()) == {1, 3}

    slurm.until(lambda: slurm.foreign() == used(lab), "seen")

    for number in (first, second):
        assert layout(job_of(number)) == shown(lab, number)
