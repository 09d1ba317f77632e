"""The lab itself: a gang runs on it as on any cluster, and nothing of it outlives its end."""

from __future__ import annotations

import os
from pathlib import Path

from tests.labs.slurm.conf import Shape
from tests.labs.slurm.lab import Lab


def processes_of(lab: Lab) -> list[int]:
    mark = f"SLURM_CONF={lab.conf}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment:
                found.append(int(entry.name))
    return found


def test_a_gang_sees_its_gpus_on_every_node(lab: Lab) -> None:
    job = lab.submit(
        "srun bash -c 'echo $SLURMD_NODENAME $SLURM_JOB_GPUS'",
        "--nodes=4", "--ntasks-per-node=1", "--gres=gpu:h100:8", "--nodelist=gpu[1-4]",
    )  # fmt: skip
    lab.wait(lambda: lab.state(job) == "COMPLETED", "the gang to end")

    said = (lab.dir / "jobs" / f"{job}.out").read_text().split("\n")

    assert sorted(said)[1:] == [f"gpu{number} 0,1,2,3,4,5,6,7" for number in range(1, 5)]


def test_two_labs_stand_side_by_side_and_leave_nothing(running_lab: Lab) -> None:
    with Lab(Shape(nodes=1, gpus=2)) as second:
        job = second.submit("sleep 600", "--gres=gpu:2")
        second.wait(lambda: second.state(job) == "RUNNING", "the job to run")
        assert len(processes_of(second)) >= 4

    assert processes_of(second) == []
    assert not second.dir.exists()
    assert processes_of(running_lab)
