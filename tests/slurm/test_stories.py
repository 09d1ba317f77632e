"""What teams live through on a real Slurm, from the submission to the books."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.backends.models import Node
from apps.common.errors import Conflict
from apps.jobs.models import Job
from apps.jobs.services import cancel_job
from apps.ledger.models import Interval
from apps.ledger.usage import rebuild_usage
from apps.scheduling.models import Verdict
from apps.tenants.models import Tenant
from tests.labs.slurm.lab import Lab
from tests.slurm.play import Play
from tests.slurm.stage import SAVES, STUBBORN

QUICK = {
    "script": "#!/bin/bash\ntrap 'exit 0' USR1\nsleep 600 & wait\n",
    "checkpoint_signal": "USR1",
}


@pytest.fixture
def way() -> dict[str, Any]:
    """The options by which the lab is reached: by commands."""
    return {}


@pytest.fixture
def slurm(lab: Lab, way: dict[str, Any], db: None) -> Play:
    return Play(lab, **way)


def test_a_gang_of_four_whole_nodes_starts_where_it_was_planned(
    slurm: Play, vision: Tenant
) -> None:
    job = slurm.submit(vision, 4)

    slurm.until_state(job, "RUNNING")

    (attempt,) = slurm.attempts(job)
    (listed,) = slurm.in_slurm(attempt)
    assert listed.split()[1:] == ["RUNNING", "gpu[1-4]"]
    assert slurm.planned(attempt) == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert attempt.cluster_ref.startswith(f"rollcall-lab:{listed.split()[0]}:")
    assert attempt.started_at is not None
    assert slurm.foreign() == {}


def test_of_two_gangs_that_cannot_both_fit_one_waits(slurm: Play, vision: Tenant) -> None:
    first, second = slurm.submit(vision, 3), slurm.submit(vision, 4)
    slurm.until_state(first, "RUNNING")
    assert slurm.state(second) in ("PENDING", "RESERVING")
    assert len(slurm.lab.jobs()) == 1

    cancel_job(first, by=None, now=slurm.cluster.now())
    slurm.until_state(second, "RUNNING")

    assert slurm.state(first) == "CANCELLED"
    assert [a.outcome for a in slurm.attempts(first)] == ["stopped"]


def test_foreign_work_is_seen_and_its_gpus_are_promised_to_nobody(
    slurm: Play, vision: Tenant
) -> None:
    lab = slurm.lab
    running = {"gpu4": 8, "gpu5": 3}
    lab.submit("sleep 600", "-w", "gpu4", "--gres=gpu:h100:8", user="nobody")
    lab.submit("sleep 600", "--array=1-30%3", "-w", "gpu5", "--gres=gpu:h100:1", user="nobody")
    slurm.until(lambda: slurm.foreign() == running, "seen")

    fits = slurm.submit(vision, 3)
    slurm.until_state(fits, "RUNNING")
    big = slurm.submit(vision, 4)
    for _ in range(3):
        slurm.tick()

    assert slurm.planned(slurm.attempts(fits)[0]) == ["gpu1", "gpu2", "gpu3"]
    assert slurm.attempts(big) == []
    assert slurm.foreign() == running
    rest = Job.objects.get(foreign_ref__contains="[")
    assert (rest.state, rest.workload["tasks"]) == ("PENDING", 27)
    assert Verdict.objects.get(job=rest).code == "elsewhere"
    with pytest.raises(Conflict, match="submitted to lab itself"):
        cancel_job(rest, by=None, now=slurm.cluster.now())


def test_a_cluster_that_is_only_observed_is_left_as_it_is(
    lab: Lab, way: dict[str, Any], vision: Tenant
) -> None:
    lab.submit("sleep 600", "-w", "gpu5", "--gres=gpu:h100:8", user="nobody")
    lab.submit("sleep 600", "--array=1-20", "--gres=gpu:h100:8", user="nobody")
    lab.wait(lambda: len(lab.jobs("-t", "RUNNING")) == 5, "the cluster to be full")
    before = lab.run("squeue", "-h", "-o", "%i %T %N %k")

    slurm = Play(lab, grade="observe", **way)
    job = slurm.submit(vision, 1)
    for _ in range(3):
        slurm.tick()

    assert slurm.foreign() == dict.fromkeys(lab.nodes, 8)
    assert slurm.trouble == ""
    seen = Job.objects.exclude(foreign_ref="")
    assert set(seen.values_list("workload__user", flat=True)) == {"nobody"}
    assert sorted(seen.values_list("state", "workload__tasks")) == [
        ("PENDING", 16), *[("RUNNING", 1)] * 5,
    ]  # fmt: skip
    assert slurm.state(job) == "PENDING"
    assert Verdict.objects.get(job=job).code == "capacity"
    assert lab.run("squeue", "-h", "-o", "%i %T %N %k") == before

    lab.clear()
    slurm.until(lambda: slurm.foreign() == {}, "empty")
    assert Verdict.objects.get(job=job).code == "watched"
    assert set(seen.values_list("state", flat=True)) == {"CANCELLED"}
    ran = Interval.objects.filter(kind="member", job__in=seen)
    assert ran.count() == 5
    assert not ran.filter(end_us=None).exists()
    assert max(abs(row.gpu_hours) for row in rebuild_usage(slurm.cluster)) == 0
    assert lab.jobs() == []


def test_a_victim_is_killed_and_waits_again(slurm: Play, vision: Tenant, nlp: Tenant) -> None:
    slurm.policy(mode="kill")
    victim = slurm.submit(vision, 5)
    slurm.until_state(victim, "RUNNING")

    taker = slurm.submit(nlp, 4, priority=100)
    slurm.until_state(taker, "RUNNING")

    assert slurm.eviction().outcome == "killed"
    assert slurm.state(victim) in ("PENDING", "RESERVING")
    assert [a.outcome for a in slurm.attempts(victim)] == ["evicted"]


@pytest.mark.parametrize("requeues", [False, True], ids=["stock", "RequeueExit=75"])
def test_a_victim_that_exits_75_has_saved_its_work(
    slurm: Play, vision: Tenant, nlp: Tenant, requeues: bool
) -> None:
    if requeues:
        slurm.lab.configure("RequeueExit=75")
    slurm.policy(mode="checkpoint", grace_seconds=60)
    victim = slurm.submit(vision, 5, workload=SAVES)
    slurm.until_state(victim, "RUNNING")

    taker = slurm.submit(nlp, 4, priority=100)
    slurm.until_state(taker, "RUNNING")
    row = slurm.eviction()
    cancel_job(taker, by=None, now=slurm.cluster.now())
    slurm.until(lambda: len(slurm.attempts(victim)) == 2, "started anew")
    slurm.until_state(victim, "RUNNING")

    first, second = slurm.attempts(victim)
    assert row.outcome == "checkpointed"
    assert row.lost_gpu_us == 0
    assert first.outcome == "evicted"
    assert first.last_checkpoint_at == first.ended_at
    assert first.started_at is not None
    assert first.ended_at is not None
    assert second.kept_seconds == int((first.ended_at - first.started_at).total_seconds())
    assert len(slurm.in_slurm(second)) == 1
    # What Slurm laid back in line was taken away: only the new attempt is there.
    assert not [line for line in slurm.in_slurm(first) if line.split()[1] == "PENDING"]
    assert len(slurm.lab.jobs()) == 1


def test_a_victim_that_does_not_save_in_time_is_stopped(
    slurm: Play, vision: Tenant, nlp: Tenant
) -> None:
    slurm.policy(mode="checkpoint", grace_seconds=3)
    victim = slurm.submit(vision, 5, workload=STUBBORN)
    slurm.until_state(victim, "RUNNING")

    taker = slurm.submit(nlp, 4, priority=100)
    slurm.until_state(taker, "RUNNING")

    row = slurm.eviction()
    assert row.outcome == "grace_exceeded"
    assert row.lost_gpu_us > 0
    assert slurm.state(victim) in ("PENDING", "RESERVING")


def test_a_victim_that_ends_by_itself_in_its_grace_has_succeeded(
    slurm: Play, vision: Tenant, nlp: Tenant
) -> None:
    slurm.policy(mode="checkpoint", grace_seconds=60)
    victim = slurm.submit(vision, 5, workload=QUICK)
    slurm.until_state(victim, "RUNNING")

    taker = slurm.submit(nlp, 4, priority=100)
    slurm.until_state(taker, "RUNNING")

    assert slurm.eviction().outcome == "succeeded"
    assert slurm.state(victim) == "SUCCEEDED"


def test_a_victim_is_demoted_and_runs_on_below_the_others(
    slurm: Play, vision: Tenant, nlp: Tenant
) -> None:
    slurm.policy(mode="demote", grace_seconds=600)
    victim = slurm.submit(vision, 5)
    slurm.until_state(victim, "RUNNING")

    slurm.submit(nlp, 4, priority=100)
    row = slurm.eviction()

    (attempt,) = slurm.attempts(victim)
    number = slurm.in_slurm(attempt)[0].split()[0]
    told = slurm.lab.run("squeue", "-h", "-j", number, "-o", "%T %y %Q %r")
    assert row.outcome == "demoted"
    assert told.split()[:3] == ["RUNNING", "100000", "0"]
    assert told.split()[3].startswith("JobHeld")


def test_a_drain_under_a_gang_is_seen_and_the_gang_runs_on(slurm: Play, vision: Tenant) -> None:
    job = slurm.submit(vision, 2)
    slurm.until_state(job, "RUNNING")

    slurm.lab.run("scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=xid 79 [bad]")
    slurm.tick()

    node = Node.objects.get(cluster=slurm.cluster, name="gpu2")
    assert (node.state, node.state_reason) == ("drained", "xid 79 [bad]")
    assert slurm.state(job) == "RUNNING"

    later = slurm.submit(vision, 3)
    slurm.until_state(later, "RUNNING")
    assert "gpu2" not in slurm.planned(slurm.attempts(later)[0])


def test_a_gang_whose_node_dies_goes_back_in_line(slurm: Play, vision: Tenant) -> None:
    job = slurm.submit(vision, 2)
    slurm.until_state(job, "RUNNING")

    slurm.lab.kill_node("gpu2")
    slurm.lab.run("scontrol", "update", "NodeName=gpu2", "State=DOWN", "Reason=dead")
    slurm.until(lambda: len(slurm.attempts(job)) == 2, "started anew")

    first, second = slurm.attempts(job)
    assert first.outcome == "lost"
    assert "node" in first.detail
    slurm.until_state(job, "RUNNING")
    assert "gpu2" not in slurm.planned(second)


def test_a_job_that_fails_says_how(slurm: Play, vision: Tenant) -> None:
    job = slurm.submit(vision, 1, workload={"command": ["bash", "-c", "exit 3"]})

    slurm.until_state(job, "FAILED")

    assert [a.detail for a in slurm.attempts(job)] == ["exit status 3"]


def test_a_job_that_somebody_cancels_in_slurm_is_cancelled(slurm: Play, vision: Tenant) -> None:
    job = slurm.submit(vision, 1)
    slurm.until_state(job, "RUNNING")

    slurm.lab.run("scancel", *slurm.lab.jobs())
    slurm.until_state(job, "CANCELLED")

    assert [a.detail for a in slurm.attempts(job)] == ["somebody cancelled it in Slurm"]


def test_a_gang_that_slurm_does_not_start_is_taken_back_and_planned_anew(
    lab: Lab, way: dict[str, Any], db: None, vision: Tenant
) -> None:
    slurm = Play(lab, start_seconds=5, **way)
    # A partition that is down takes jobs in, and starts none.
    lab.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = slurm.submit(vision, 2)

    slurm.until(lambda: len(slurm.attempts(job)) == 2, "planned anew")
    lab.run("scontrol", "update", "PartitionName=main", "State=UP")
    slurm.until_state(job, "RUNNING")

    first = slurm.attempts(job)[0]
    assert first.outcome == "stopped"
    assert "PartitionDown" in first.detail
    assert len(lab.jobs()) == 1


def test_slurm_that_is_down_is_trouble_and_nobody_is_lost(slurm: Play, vision: Tenant) -> None:
    job = slurm.submit(vision, 4)
    slurm.until_state(job, "RUNNING")
    # What is younger than a second or two, a crash forgets: see the test below.
    slurm.lab.settle()

    slurm.lab.kill_controller()
    slurm.tick()
    assert "does not answer" in slurm.trouble
    assert slurm.state(job) == "RUNNING"

    slurm.lab.start_controller()
    slurm.tick()
    assert slurm.trouble == ""
    assert slurm.state(job) == "RUNNING"
    assert len(slurm.attempts(job)) == 1


def test_a_crash_right_after_a_submission_starts_nothing_twice_and_loses_nothing(
    lab: Lab, way: dict[str, Any], db: None, vision: Tenant
) -> None:
    slurm = Play(lab, settle_seconds=15, **way)
    ran = lab.dir / "jobs" / "ran"
    ran.mkdir(exist_ok=True)
    body = f"#!/bin/bash\ntouch {ran}/$ROLLCALL_UID.$$\nsleep 600\n"
    lab.remember()
    job = slurm.submit(vision, 4, workload={"script": body})
    slurm.until_state(job, "RUNNING")
    lab.wait(lambda: len(list(ran.glob("*"))) == 1, "its script to begin")

    lab.kill_controller(forget=True)
    lab.start_controller()
    slurm.until(lambda: len(slurm.attempts(job)) == 2, "lost, and planned anew")
    slurm.until_state(job, "RUNNING")
    lab.wait(lambda: len(list(ran.glob("*"))) == 2, "its script to begin again")

    first, second = slurm.attempts(job)
    assert first.outcome == "lost"
    assert first.cluster_ref != second.cluster_ref
    # One job holds the gang's nodes, no attempt began twice, and the first one is gone from them.
    assert len(lab.jobs("-t", "RUNNING")) == 1
    began = {path.name.split(".")[0]: path.name.split(".")[1] for path in ran.glob("*")}
    assert set(began) == {str(first.uid), str(second.uid)}
    assert not Path(f"/proc/{began[str(first.uid)]}").exists()
    states = lab.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
    assert not [state for state in states if state.startswith(("drain", "down"))]
