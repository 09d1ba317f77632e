"""A gang whose members do not lie alike on its nodes: one allocation on the planned ones."""

from __future__ import annotations

import re

import pytest

from apps.backends.models import Node
from apps.jobs.models import Job, Member
from apps.ledger.models import Interval
from apps.tenants.models import Tenant
from tests.labs.slurm.lab import Lab
from tests.slurm.play import Play
from tests.slurm.test_asked import layout, shown, submit, used

# Each member says where it is; the script itself can save its work.
EACH = """\
#!/bin/bash
trap 'exit 75' USR1
srun bash -c 'echo "$SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"' >members.$ROLLCALL_UID
while :; do sleep 600 & wait; done
"""
SAVES = {"script": EACH, "checkpoint_signal": "USR1"}
COMMAND = {
    "command": [
        "bash",
        "-c",
        'echo "$SLURM_PROCID has $CUDA_VISIBLE_DEVICES $GREETING"; sleep 600',
    ],
    "environment": {"GREETING": "hello"},
    "memory_mib_per_member": 300,
    "cpus_per_member": 2,
}


@pytest.fixture(params=["commands", "rest"])
def slurm(request: pytest.FixtureRequest, db: None) -> Play:
    """The lab as a driven cluster, by each way."""
    if request.param == "commands":
        return Play(request.getfixturevalue("lab"))
    lab: Lab = request.getfixturevalue("rest_lab")
    return Play(lab, **lab.rest.options())


def fill(slurm: Play, **free: int) -> None:
    """Leave so many GPUs free on these nodes, and none on the others."""
    running = {}
    for name in slurm.lab.nodes:
        gpus = 8 - free.get(name, 0)
        if gpus:
            submit(slurm.lab, f"--gres=gpu:{gpus}", "-w", name)
            running[name] = gpus
    slurm.until(lambda: slurm.foreign() == running, "full")


def in_slurm(slurm: Play, job: Job) -> str:
    (line,) = slurm.in_slurm(slurm.attempts(job)[0])
    return line.split()[0]


def test_it_starts_whole_saves_its_work_and_starts_again(slurm: Play, vision: Tenant) -> None:
    fill(slurm, gpu1=4, gpu3=2)
    slurm.policy(mode="checkpoint", grace_seconds=30)
    job = slurm.submit(vision, 3, gpus_per_member=2, workload=SAVES)
    slurm.until_state(job, "RUNNING")

    (attempt,) = slurm.attempts(job)
    number = in_slurm(slurm, job)
    assert slurm.planned(attempt) == ["gpu1", "gpu1", "gpu3"]
    assert layout(job) == shown(slurm.lab, number) == {"gpu1": 4, "gpu3": 2}
    assert used(slurm.lab) == dict.fromkeys(slurm.lab.nodes, 8)
    assert not Node.objects.filter(foreign_gpus__gt=0).exists(), "ours are ours"
    said = slurm.lab.dir / "jobs" / f"members.{attempt.uid}"
    slurm.until(lambda: said.exists() and len(said.read_text().split("\n")) == 4, "all told")
    told = sorted(line.split() for line in said.read_text().splitlines())
    assert [line[:2] for line in told] == [["0", "gpu1"], ["1", "gpu1"], ["2", "gpu3"]]
    devices = [line[2].split(",") for line in told]
    assert [len(set(each)) for each in devices] == [2, 2, 2]
    assert not set(devices[0]) & set(devices[1]), "two members of a node share no GPU"

    first = slurm.submit(vision, 1, gpus_per_member=3, priority=10)
    slurm.until_state(first, "RUNNING")
    eviction = slurm.eviction()
    assert (eviction.outcome, eviction.attempt_id) == ("checkpointed", attempt.pk), [
        (one.outcome, one.detail, one.started_at, one.ended_at) for one in slurm.attempts(job)
    ]
    assert slurm.state(job) in ("PENDING", "RESERVING")
    booked = Interval.objects.filter(kind="member", attempt=attempt)
    assert sorted(booked.values_list("node__name", "gpus")) == [
        ("gpu1", 2), ("gpu1", 2), ("gpu3", 2),
    ]  # fmt: skip


def test_what_slurm_lays_out_otherwise_is_booked_as_it_lies(slurm: Play, vision: Tenant) -> None:
    """Slurm fills its nodes in their order, whatever was planned for each."""
    fill(slurm, gpu1=6, gpu2=3)
    slurm.cluster.refresh_from_db()
    job = slurm.submit(vision, 8, gpus_per_member=1, workload=COMMAND)
    slurm.until_state(job, "RUNNING")

    number = in_slurm(slurm, job)
    lies = shown(slurm.lab, number)
    assert layout(job) == lies
    assert sum(lies.values()) == 8
    booked = Interval.objects.filter(kind="member", job=job)
    assert sorted(booked.values_list("rank", "node__name")) == sorted(
        Member.objects.filter(attempt__job=job).values_list("rank", "node__name")
    )
    slurm.tick()
    assert not Node.objects.filter(foreign_gpus__gt=0).exists()
    assert slurm.state(job) == "RUNNING"
    out = slurm.lab.dir / "jobs"
    said = "MinMemoryCPU=150M"
    assert said in slurm.lab.run("scontrol", "show", "job", number)
    uid = slurm.attempts(job)[0].uid
    (told,) = out.glob(f"train.{uid}.out")
    slurm.until(lambda: told.read_text().count("hello") == 8, "told")
    assert all(re.search(rf"^{rank} has \d+ hello$", told.read_text(), re.M) for rank in range(8))


def test_one_whose_comment_is_overwritten_is_known_by_its_name(slurm: Play, vision: Tenant) -> None:
    fill(slurm, gpu1=4, gpu3=2)
    job = slurm.submit(vision, 3, gpus_per_member=2)
    slurm.until_state(job, "RUNNING")
    number = in_slurm(slurm, job)

    slurm.lab.run("scontrol", "update", f"JobId={number}", "Comment=mine")
    for _ in range(3):
        slurm.tick()

    assert slurm.state(job) == "RUNNING"
    assert len(slurm.attempts(job)) == 1
    assert not Node.objects.filter(foreign_gpus__gt=0).exists()
