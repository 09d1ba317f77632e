"""Slurm's own line beside ours: the terms of sprio, and where and when backfill plans a start."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.test import Client
from rest_framework.test import APIClient

from apps.accounts.models import User
from apps.backends.lines import line_look_of, look_at_line, places_of
from apps.backends.models import Cluster, Grade, LineLook
from apps.backends.port import OwnPlace
from apps.backends.services import add_cluster
from apps.common import show
from apps.common.time import to_us
from apps.jobs.models import Job, Reservation
from apps.ledger.models import Interval
from apps.scheduling.services import tick
from tests.factories import secret_of
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import Stage, now, options_of

FULL_NODES = ("--gres=gpu:8", "--time=40")
WEIGHTS = ("PriorityWeightPartition=500", "PriorityWeightTRES=gres/gpu=20000")


@pytest.fixture
def weighed(accounting_lab: Lab) -> Iterator[Lab]:
    """The lab with accounts, in which size and partition count."""
    accounting_lab.configure(*WEIGHTS)
    yield accounting_lab
    accounting_lab.clear()


def line_of(lab: Lab) -> dict[str, OwnPlace]:
    """Return what is told of each job, by its id alone."""
    told = Stage(lab, Grade.OBSERVE).backend.line(now=now())
    assert told.no_terms == ""
    return {place.ref.split(":")[1]: place for place in told.places}


def sprio(lab: Lab, job: str) -> dict[str, float]:
    """Return what ``sprio -l`` prints of a job, by its own heads."""
    heads, row = (line.split() for line in lab.run("sprio", "-l", "-j", job).splitlines())
    cells = zip(heads[3:], row[3:], strict=False)  # of no TRES it prints nothing
    return {head: float(cell.rpartition("=")[2]) for head, cell in cells}


def test_each_waiting_job_has_the_terms_that_sprio_prints(weighed: Lab) -> None:
    lab = weighed
    lab.submit("sleep 600", "--nodes=5", *FULL_NODES)
    lab.wait(lambda: "RUNNING" in lab.run("squeue", "-h", "-o", "%T"), "a job to run")
    gang = lab.submit("true", "--nodes=4", "--nice=7", *FULL_NODES)
    array = lab.submit("true", "--array=1-9", "--nodes=1", "--gres=gpu:2")
    held = lab.submit("true", "--hold", "--gres=gpu:1")

    lab.wait(lambda: len(lab.run("sprio", "-h").splitlines()) == 2, "priorities")
    found = line_of(lab)

    assert set(found) == {gang, f"{array}_[", held}
    for job, label in ((gang, gang), (array, f"{array}_[")):
        told, said = found[label].terms, sprio(lab, job)
        assert (told["size"], told["queue"]) == (said["TRES"], said["PARTITION"])
        assert told["nice"] == -said["NICE"]
        assert told["priority"] == said["PRIORITY"]
    assert found[gang].terms["size"] == 20_000 * 32 / 40
    assert found[gang].terms["nice"] == -7
    assert found[held].terms == {}


def test_a_job_in_two_partitions_goes_by_the_higher_priority(weighed: Lab) -> None:
    lab = weighed
    lab.configure(*WEIGHTS, "PartitionName=fast Nodes=gpu[1-5] PriorityJobFactor=9")
    lab.run("scontrol", "update", "NodeName=gpu[1-5]", "State=DRAIN", "Reason=none starts")
    job = lab.submit("true", "--partition=main,fast", "--gres=gpu:1")
    lab.wait(lambda: len(lab.run("sprio", "-h").splitlines()) == 2, "both")

    assert line_of(lab)[job].terms["queue"] == 500


def test_a_start_that_slurm_plans_is_told_with_its_nodes(lab: Lab) -> None:
    lab.submit("sleep 600", "--nodes=5", *FULL_NODES)
    lab.wait(lambda: "RUNNING" in lab.run("squeue", "-h", "-o", "%T"), "a job to run")
    gang = lab.submit("true", "--nodes=4", *FULL_NODES)
    lab.wait(lambda: "gpu" in lab.run("squeue", "-h", "-j", gang, "-o", "%Y"), "a plan")

    place = line_of(lab)[gang]

    assert place.planned_nodes == "gpu[1-4]"
    said = lab.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-j", gang, "-o", "%S")
    assert place.planned_at is not None
    assert to_us(place.planned_at) == int(said) * 1_000_000
    assert now() + timedelta(minutes=35) < place.planned_at < now() + timedelta(minutes=45)


@pytest.fixture
def boreas(lab: Lab, db: None) -> Cluster:
    """The lab as a cluster that is only watched."""
    return add_cluster("boreas", kind="slurm", now=now(), options=options_of(lab))


def test_the_api_tells_both_sides_of_a_job(boreas: Cluster, lab: Lab, root: User) -> None:
    lab.run("scontrol", "update", "NodeName=gpu[1-5]", "State=DRAIN", "Reason=nothing starts")
    number = lab.submit("true", "--nodes=2", "--nice=3", "--gres=gpu:8")
    lab.wait(lambda: number in lab.run("sprio", "-h"), "a priority")
    assert tick(boreas)
    job = Job.objects.get()
    client = APIClient(HTTP_AUTHORIZATION=f"Bearer {secret_of(root)}")

    def told() -> dict:
        return client.get(f"/api/v1/jobs/{job.pk}/explain").json()

    assert told()["on_cluster"] is None
    assert look_at_line(boreas, now=now())

    answer = told()
    theirs = answer["on_cluster"]
    ours = {term["name"]: term["value"] for term in answer["why"]["terms"]}
    assert (theirs["trouble"], theirs["no_terms"]) == ("", "")
    terms = {term["name"]: term for term in theirs["terms"]}
    assert terms["nice"]["theirs"] == -3
    assert {name: terms[name]["ours"] for name in ours} == ours
    assert all(one["difference"] == one["ours"] - one["theirs"] for one in terms.values())
    assert theirs["priority"]["ours"] == answer["why"]["priority"]
    assert theirs["priority"]["theirs"] == sprio(lab, number)["PRIORITY"]
    assert not look_at_line(boreas, now=now())  # which was a moment ago


def test_a_slurm_that_is_away_or_has_no_priorities_says_so(boreas: Cluster, lab: Lab) -> None:
    number = lab.submit("true", "--nodes=5", "--hold", "--gres=gpu:8")
    gang = lab.submit("true", "--nodes=5", "--gres=gpu:8", "--begin=now+1hour")
    assert tick(boreas)
    assert look_at_line(boreas, now=now())
    refs = {job.foreign_ref.split(":")[1]: job.foreign_ref for job in Job.objects.all()}
    assert set(refs) == {number, gang}
    before = LineLook.objects.get()

    with lab.frozen_controller():
        assert not look_at_line(boreas, now=now() + timedelta(minutes=1))

    look = line_look_of(boreas.pk)
    assert look is not None
    assert look.trouble.startswith("Slurm does not answer: scontrol")
    assert (look.read_at, LineLook.objects.get().places) == (before.read_at, before.places)
    lab.stop_controller()
    stock = lab.conf.read_text()
    try:
        lines = [line for line in stock.splitlines() if not line.startswith("Priority")]
        lab.conf.write_text("\n".join([*lines, "PriorityType=priority/basic", ""]))
        lab.start_controller()
        assert look_at_line(boreas, now=now() + timedelta(minutes=2))
    finally:
        lab.stop_controller()
        lab.conf.write_text(stock)
        lab.start_controller()

    look = line_look_of(boreas.pk)
    assert look is not None
    assert look.trouble == ""
    assert look.no_terms.startswith("sprio says: Only 'priority/multifactor' is supported")
    assert all(not place.terms for place in places_of(look, refs.values()).values())


def test_both_plans_stand_on_the_waterfall_and_nothing_is_held(
    boreas: Cluster, lab: Lab, root: User, client: Client
) -> None:
    lab.submit("sleep 600", "--nodes=5", *FULL_NODES)
    lab.wait(lambda: "RUNNING" in lab.run("squeue", "-h", "-o", "%T"), "a job to run")
    gang = lab.submit("true", "--nodes=4", *FULL_NODES)
    lab.wait(lambda: "gpu" in lab.run("squeue", "-h", "-j", gang, "-o", "%Y"), "a plan")
    assert tick(boreas)
    assert look_at_line(boreas, now=now())
    job = Job.objects.get(state="PENDING")
    client.force_login(root)

    (plans,) = client.get("/waterfall/?cluster=boreas").context["plans"]

    (row,) = plans.rows
    begins = to_us(row.at) // 1_000_000
    said = lab.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-j", gang, "-o", "%S")
    assert abs(begins - int(said)) <= 5  # backfill may have planned anew meanwhile
    assert row.job == job.pk
    assert row.words.startswith(f"Slurm plans it for {show.instant(row.at, now=now())} on gpu[1-4]")
    assert "; Rollcall would start it at " in row.words
    assert not Reservation.objects.exists()
    assert set(Interval.objects.values_list("job__state", flat=True)) <= {None, "RUNNING"}
    assert "Slurm plans it for" in client.get(f"/jobs/{job.pk}/").content.decode()
