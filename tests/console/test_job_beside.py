"""The page of a job that waits on a cluster with a scheduler of its own: both sides' terms."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.backends.models import LineLook
from apps.common.time import to_us
from apps.jobs.models import Attempt
from tests.console.ledgered import amount, table_of, text_of

REF = "lab:7:100"
THEIRS = {"fair_share": 2700, "age": 61, "size": 125, "queue": 1000, "site": 4, "priority": 3890}


@pytest.fixture
def waiting(world, make_job):
    """A job that was submitted to the cluster itself."""
    job = make_job("sft", "nlp/alignment", place=0, foreign_ref=REF)
    job.workload = {"kind": "foreign", "user": "ada", "account": "cv", "reason": "Priority"}
    job.save()
    return job


@pytest.fixture
def look(world, waiting, now):
    """What the cluster told a moment ago."""
    planned = {"starts_us": to_us(now + timedelta(hours=1)), "nodes": "gpu[1-4]"}
    return LineLook.objects.create(
        cluster=world.cluster, tried_at=now, read_at=now, places={REF: {"terms": THEIRS, **planned}}
    )


def page(as_user, job, who="alice"):
    return as_user(who).get(f"/jobs/{job.pk}/")


def test_both_sides_stand_beside_each_other_with_the_difference(look, waiting, as_user):
    told = page(as_user, waiting)
    rows = {row[0].split(" ")[0]: row[1:] for row in table_of(told, "beside")[1:]}

    assert rows["Fair"] == ["2,727", "2,700", "+27"]
    assert rows["Age"] == ["60", "61", "−1"]
    assert rows["Size"] == ["125", "125", "0"]
    assert rows["Site"] == ["– not counted here", "4", "– nothing to compare"]
    assert rows["Priority"] == ["3,912", "3,890", "+22"]
    assert "Boost" not in rows
    assert "Rollcall less the cluster: +22. They differ in fair share, age." in text_of(told)
    for row in table_of(told, "beside")[1:]:
        if amount(row[1]):
            assert amount(row[1]) - amount(row[2]) == amount(row[3])


def test_where_all_is_the_same_it_says_so(look, waiting, as_user):
    same = {"fair_share": 2727, "age": 60, "size": 125, "queue": 1000, "priority": 3912}
    LineLook.objects.update(places={REF: {"terms": same}})

    assert "Both sides count the same." in text_of(page(as_user, waiting))


@pytest.mark.parametrize(
    ("job", "look", "words"),
    [
        ({}, {}, "told no priority of it then."),
        ({"held_at": 1}, {}, "gives it no priority while it is on hold there."),
        ({"submitted_at": 1}, {}, "It was submitted after that; the next look is within a minute."),
        ({}, {"no_terms": "sprio says: no."}, "sprio says: no."),
        ({}, {"trouble": "Slurm does not answer."}, "Slurm does not answer."),
        ({}, {"read_at": None}, "It is read within a minute."),
        (
            {},
            {"read_at": None, "trouble": "slurmrestd does not tell."},
            "slurmrestd does not tell.",
        ),
    ],
)
def test_what_is_not_told_is_said_in_words(waiting, world, as_user, now, job, look, words):
    for name in job:
        setattr(waiting, name, now)
    waiting.save()
    values = {"read_at": now - timedelta(seconds=20)} | look
    LineLook.objects.create(cluster=world.cluster, tried_at=now, **values)

    told = page(as_user, waiting)

    assert words in text_of(told)
    assert 'class="beside"' not in told.content.decode()


def test_a_job_that_no_tick_saw_has_the_clusters_terms_alone(look, waiting, as_user):
    waiting.verdict.delete()

    rows = table_of(page(as_user, waiting), "beside")[1:]

    assert rows[-1] == ["Priority PRIORITY", "– not counted here", "3,890", "– nothing to compare"]


def test_a_job_of_ours_that_waits_there_has_its_own(look, waiting, as_user, now):
    waiting.foreign_ref, waiting.state = "", "ADMITTED"
    waiting.save()
    Attempt.objects.create(job=waiting, number=1, created_at=now, cluster_ref=REF)

    assert table_of(page(as_user, waiting), "beside")[-1][2] == "3,890"


@pytest.mark.parametrize("change", [{"state": "RUNNING"}, {"foreign_ref": ""}])
def test_a_job_that_does_not_wait_there_has_none_of_it(look, waiting, as_user, change):
    for name, value in change.items():
        setattr(waiting, name, value)
    waiting.save()

    assert "own priority" not in text_of(page(as_user, waiting))


def test_strangers_see_none_of_it(look, waiting, as_user):
    assert page(as_user, waiting, "carol").status_code == 404
    assert page(as_user, waiting, "bob").status_code == 200
