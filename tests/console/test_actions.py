"""Cancel, hold and release: who may, what is asked first, and what has happened then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client

from apps.jobs.models import Attempt, Job, Move
from apps.jobs.states import JobState

AsUser = Callable[[str], Client]
MakeJob = Callable[..., Job]
REASON = {"reason": "It asks for the wrong data set."}


@pytest.fixture
def job(make_job: MakeJob, world: SimpleNamespace) -> Job:
    return make_job("llama", "nlp/alignment", place=0, submitted_by=world.people["carol"])


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
@pytest.mark.parametrize(
    ("who", "status"), [("admin", 200), ("alice", 200), ("bob", 403), ("vera", 404), ("carol", 404)]
)
def test_only_who_may_is_asked(
    as_user: AsUser, job: Job, now: Any, verb: str, who: str, status: int
) -> None:
    if verb == "release":
        Job.objects.filter(pk=job.pk).update(held_at=now)

    client = as_user(who)
    asked, done = client.get(f"/jobs/{job.pk}/{verb}/"), client.post(f"/jobs/{job.pk}/{verb}/", {})

    assert asked.status_code == status
    if status != 200:
        assert done.status_code == status
        assert Move.objects.count() == 0


def test_another_teams_job_is_the_same_404_as_none(as_user: AsUser, job: Job) -> None:
    client = as_user("vera")

    theirs, none = client.get(f"/jobs/{job.pk}/cancel/"), client.get("/jobs/999999/cancel/")

    assert theirs.status_code == none.status_code == 404
    plain = theirs.content.decode().replace(str(job.pk), "")
    assert "llama" not in plain
    assert client.get(f"/jobs/{2**63}/cancel/").status_code == 404


def test_a_member_cancels_own_jobs(as_user: AsUser, job: Job, world: SimpleNamespace) -> None:
    Job.objects.filter(pk=job.pk).update(submitted_by=world.people["bob"])

    answer = as_user("bob").post(f"/jobs/{job.pk}/cancel/", REASON)

    job.refresh_from_db()
    world.cluster.refresh_from_db()
    assert answer["Location"] == f"/jobs/{job.pk}/"
    assert job.state == JobState.CANCELLED
    assert [str(m) for m in get_messages(answer.wsgi_request)] == ["llama is cancelled."]
    assert world.cluster.tick_requested_at is not None
    assert Move.objects.get(what="cancelled").detail == REASON


@pytest.mark.parametrize("reason", ["", "too short", "x" * 301, "\x00" * 20])
def test_a_reason_of_no_use_is_refused_under_its_field_and_on_top(
    as_user: AsUser, job: Job, reason: str
) -> None:
    answer = as_user("alice").post(f"/jobs/{job.pk}/hold/", {"reason": reason})

    html = answer.content.decode()
    job.refresh_from_db()
    assert answer.status_code == 422
    assert job.held_at is None
    assert 'id="id_reason_error"' in html
    assert 'href="#id_reason"' in html
    assert 'aria-invalid="true"' in html


def test_hold_and_release_are_told_on_the_page_and_in_the_story(as_user: AsUser, job: Job) -> None:
    client = as_user("alice")

    client.post(f"/jobs/{job.pk}/hold/", REASON)
    asked = client.get(f"/jobs/{job.pk}/release/").content.decode()
    client.post(f"/jobs/{job.pk}/release/")

    job.refresh_from_db()
    assert "It was held by alice: “It asks for the wrong data set.”" in asked
    assert job.held_at is None
    assert list(Move.objects.values_list("what", flat=True)) == ["held", "released"]


def test_what_cannot_be_done_any_more_is_said_and_not_asked(
    as_user: AsUser, job: Job, now: Any
) -> None:
    client = as_user("alice")
    release = client.get(f"/jobs/{job.pk}/release/")
    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, ended_at=now)
    ended = client.get(f"/jobs/{job.pk}/cancel/")
    too_late = client.post(f"/jobs/{job.pk}/cancel/", REASON)

    assert release["Location"] == ended["Location"] == too_late["Location"] == f"/jobs/{job.pk}/"
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED


def test_the_page_says_what_a_running_job_loses(
    as_user: AsUser, make_job: MakeJob, world: SimpleNamespace, now: Any
) -> None:
    world.cluster.clock_now = now
    world.cluster.save()
    job = make_job("runs", state=JobState.RUNNING)
    Attempt.objects.create(
        job=job, number=1, created_at=now, started_at=now - timedelta(hours=2),
        last_checkpoint_at=now - timedelta(minutes=30),
    )  # fmt: skip
    client = as_user("alice")

    html = client.get(f"/jobs/{job.pk}/cancel/").content.decode()
    client.post(f"/jobs/{job.pk}/cancel/", REASON)

    assert "This stops runs of nlp and gives back its 32 GPUs." in html
    assert "The work since its last checkpoint, 30 min on 32 GPUs, is lost: 16.00 GPUh." in html
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    assert job.cancel_requested_at is not None


def test_a_get_changes_nothing_and_a_post_without_its_token_is_refused(
    job: Job, world: SimpleNamespace
) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.people["admin"])

    client.get(f"/jobs/{job.pk}/cancel/")
    answer = client.post(f"/jobs/{job.pk}/cancel/", REASON)

    assert answer.status_code == 403
    assert "its protection has expired" in answer.content.decode()
    job.refresh_from_db()
    assert job.state == JobState.PENDING
