"""Jobs over the API: who sees them, and who may cancel, hold and release them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from apps.accounts.models import User
from apps.backends.models import Pool
from apps.jobs.models import Job, Move
from apps.jobs.services import hold_job, move_job
from apps.jobs.states import JobState
from apps.queues.models import PriorityClass
from apps.tenants.models import Tenant
from tests.api.conftest import JOBS, Caller, refusal
from tests.factories import NOW, join, make_job, make_tenant, make_user


@pytest.fixture
def job(vision: Tenant, pool: Pool, bob: User) -> Job:
    """A waiting job of bob's."""
    return make_job(vision, pool, by=bob, name="bob's")


class TestWhoSees:
    """alice leads vision, bob is a member, carol a stranger."""

    def test_its_team_sees_a_job(self, call: Caller, alice: User, bob: User, job: Job) -> None:
        for user in (alice, bob):
            assert call(user).get(f"{JOBS}/{job.pk}").json()["name"] == "bob's"
            assert call(user).get(JOBS).json()["count"] == 1

    def test_a_stranger_cannot_tell_it_from_none(self, call: Caller, carol: User, job: Job) -> None:
        client = call(carol)

        hers = refusal(client.get(f"{JOBS}/{job.pk}"), 404)
        nobodys = refusal(client.get(f"{JOBS}/{job.pk + 1}"), 404)

        assert hers["message"].replace(str(job.pk), "") == nobodys["message"].replace(
            str(job.pk + 1), ""
        )
        assert client.get(JOBS).json() == {
            "count": 0,
            "count_capped": False,
            "next": None,
            "previous": None,
            "results": [],
        }

    @pytest.mark.parametrize("deed", ["cancel", "hold", "release"])
    def test_a_stranger_does_nothing_to_it(
        self, deed: str, call: Caller, carol: User, job: Job
    ) -> None:
        refusal(call(carol).post(f"{JOBS}/{job.pk}/{deed}"), 404)

        job.refresh_from_db()
        assert (job.state, job.held_at) == ("PENDING", None)

    def test_a_team_below_is_seen_and_one_above_is_not(
        self, call: Caller, alice: User, vision: Tenant, pool: Pool, job: Job
    ) -> None:
        below = make_tenant("vision/perception")
        dave = join(make_user("dave"), below)
        make_job(below, pool, name="dave's")

        assert {j["name"] for j in call(alice).get(JOBS).json()["results"]} == {"bob's", "dave's"}
        assert [j["name"] for j in call(dave).get(JOBS).json()["results"]] == ["dave's"]
        refusal(call(dave).get(f"{JOBS}/{job.pk}"), 404)

    def test_a_team_whose_name_begins_alike_is_another_one(
        self, call: Caller, pool: Pool, job: Job
    ) -> None:
        other = make_tenant("vision-2")
        erin = join(make_user("erin"), other, "lead")

        assert call(erin).get(JOBS).json()["results"] == []

    def test_an_admin_sees_all(self, call: Caller, root: User, job: Job, nlp: Tenant) -> None:
        make_job(nlp, job.pool)

        assert call(root).get(JOBS).json()["count"] == 2

    def test_nobody_without_a_place_sees_anything(self, call: Caller, job: Job, db: None) -> None:
        assert call(make_user("frank")).get(JOBS).json()["count"] == 0


class TestCancel:
    def test_its_submitter_cancels_it(self, call: Caller, bob: User, job: Job) -> None:
        answer = call(bob).post(f"{JOBS}/{job.pk}/cancel", {"reason": "wrong data"})

        assert answer.json()["state"] == "CANCELLED"
        assert answer.json()["outcome"] == "cancelled"
        assert Move.objects.get(what="cancelled").detail == {"reason": "wrong data"}

    def test_twice_is_once(self, call: Caller, bob: User, job: Job) -> None:
        client = call(bob)
        for _ in range(2):
            assert client.post(f"{JOBS}/{job.pk}/cancel").status_code == 200

        assert Move.objects.filter(what="cancelled").count() == 1

    def test_another_member_may_not(self, call: Caller, vision: Tenant, job: Job) -> None:
        dave = join(make_user("dave"), vision)

        assert refusal(call(dave).post(f"{JOBS}/{job.pk}/cancel"), 403)["code"] == "forbidden"
        job.refresh_from_db()
        assert job.state == "PENDING"

    def test_a_lead_cancels_any_of_its_team(self, call: Caller, alice: User, job: Job) -> None:
        assert call(alice).post(f"{JOBS}/{job.pk}/cancel").json()["state"] == "CANCELLED"

    def test_one_that_runs_is_asked_to_end(self, call: Caller, bob: User, job: Job) -> None:
        move_job(job, JobState.ADMITTED, at=NOW, what="admitted")
        move_job(job, JobState.RUNNING, at=NOW, what="started")

        shown = call(bob).post(f"{JOBS}/{job.pk}/cancel").json()

        assert shown["state"] == "RUNNING"
        assert shown["cancel_requested_at"] == "2026-01-05T12:00:00Z"

    def test_one_that_has_ended_is_a_conflict(self, call: Caller, bob: User, job: Job) -> None:
        move_job(job, JobState.ADMITTED, at=NOW, what="admitted")
        move_job(job, JobState.SUCCEEDED, at=NOW, what="succeeded")

        assert refusal(call(bob).post(f"{JOBS}/{job.pk}/cancel"), 409)["code"] == "already_ended"

    def test_an_unknown_field_is_refused(self, call: Caller, bob: User, job: Job) -> None:
        told = refusal(call(bob).post(f"{JOBS}/{job.pk}/cancel", {"force": True}), 400)

        assert told["field"] == "force"
        job.refresh_from_db()
        assert job.state == "PENDING"


class TestHold:
    def test_a_lead_holds_and_releases(self, call: Caller, alice: User, job: Job) -> None:
        client = call(alice)

        held = client.post(f"{JOBS}/{job.pk}/hold", {"reason": "מחכים לנתונים"}).json()["held"]
        again = client.post(f"{JOBS}/{job.pk}/hold", {"reason": "other"}).json()["held"]
        released = client.post(f"{JOBS}/{job.pk}/release").json()["held"]

        assert held == again
        assert held == {
            "at": "2026-01-05T12:00:00Z",
            "by": "alice",
            "reason": "מחכים לנתונים",
        }
        assert released is None
        assert list(Move.objects.values_list("what", flat=True)) == [
            "submitted",
            "held",
            "released",
        ]

    @pytest.mark.parametrize("deed", ["hold", "release"])
    def test_a_member_may_not(self, deed: str, call: Caller, bob: User, job: Job) -> None:
        refusal(call(bob).post(f"{JOBS}/{job.pk}/{deed}"), 403)


class TestList:
    def test_pages_join_without_gap_or_overlap_while_jobs_come(
        self, call: Caller, root: User, vision: Tenant, pool: Pool
    ) -> None:
        made = [make_job(vision, pool).pk for _ in range(7)]
        client = call(root)

        seen, address = [], f"{JOBS}?page_size=3"
        while address:
            page = client.get(address).json()
            seen += [job["id"] for job in page["results"]]
            make_job(vision, pool)  # newer than all pages to come
            address = page["next"]

        assert seen == sorted(made, reverse=True)

    def test_one_can_go_back(self, call: Caller, root: User, vision: Tenant, pool: Pool) -> None:
        for _ in range(7):
            make_job(vision, pool)
        client = call(root)

        first = client.get(f"{JOBS}?page_size=3").json()
        second = client.get(first["next"]).json()
        back = client.get(second["previous"]).json()

        assert back["results"] == first["results"]
        assert back["previous"] is None
        assert client.get(back["next"]).json()["results"] == second["results"]

    @pytest.mark.parametrize(
        ("query", "names"),
        [
            ("state=CANCELLED", {"gone"}),
            ("held=true", {"held"}),
            ("held=false", {"gone", "plain", "below"}),
            ("name=plain", {"plain"}),
            ("tenant=vision/perception", {"below"}),
            ("tenant=vision", {"gone", "held", "plain", "below"}),
            ("cluster=atlas&pool=h100", {"gone", "held", "plain", "below"}),
            ("pool=a100", set()),
        ],
    )
    def test_a_filter_narrows(
        self,
        query: str,
        names: set[str],
        call: Caller,
        alice: User,
        vision: Tenant,
        pool: Pool,
    ) -> None:
        move_job(make_job(vision, pool, name="gone"), JobState.CANCELLED, at=NOW, what="cancelled")
        hold_job(make_job(vision, pool, name="held"), by=alice, now=NOW)
        make_job(vision, pool, name="plain")
        make_job(make_tenant("vision/perception"), pool, name="below")

        page = call(alice).get(f"{JOBS}?{query}").json()

        assert {job["name"] for job in page["results"]} == names
        assert page["count"] == len(names)

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("stat=PENDING", "stat"),
            ("state=pending", "state"),
            ("page_size=0", "page_size"),
            ("page_size=201", "page_size"),
            ("page_size=x", "page_size"),
            ("after=x", "after"),
            ("after=-1", "after"),
            ("after=9999999999999999999", "after"),
            ("after=1&before=2", "before"),
            ("state=PENDING&state=RUNNING", "state"),
            ("held=perhaps", "held"),
            ("name=%00", "name"),
            ("format=csv", "format"),
        ],
    )
    def test_a_bad_parameter_is_named(
        self, query: str, field: str, call: Caller, bob: User
    ) -> None:
        assert refusal(call(bob).get(f"{JOBS}?{query}"), 400)["field"] == field

    def test_a_tenant_nobody_may_know_of_is_not_found(
        self, call: Caller, carol: User, vision: Tenant
    ) -> None:
        assert refusal(call(carol).get(f"{JOBS}?tenant=vision"), 404)["field"] == "tenant"

    def test_its_queries_do_not_grow_with_its_rows(
        self, call: Caller, alice: User, vision: Tenant, pool: Pool, bob: User
    ) -> None:
        client = call(alice)
        client.get(JOBS)  # writes down that the token was used
        counts = []
        for _ in range(2):
            for _ in range(5):
                hold_job(make_job(vision, pool, by=bob), by=alice, now=NOW)
            with CaptureQueriesContext(connection) as queries:
                assert client.get(JOBS).status_code == 200
            counts.append(len(queries))

        assert counts[0] == counts[1] <= 5

    def test_its_count_stops_at_the_cap(
        self, call: Caller, root: User, vision: Tenant, pool: Pool, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("apps.common.paging.capped_count.__kwdefaults__", {"most": 2})
        for _ in range(3):
            make_job(vision, pool)

        page = call(root).get(JOBS).json()

        assert (page["count"], page["count_capped"]) == (2, True)
        assert len(page["results"]) == 3


def test_a_job_shows_its_attempts(call: Caller, bob: User, job: Job, pool: Pool) -> None:
    attempt = job.attempts.create(number=1, created_at=NOW, started_at=NOW)
    for rank, node in enumerate(pool.nodes.order_by("name")[:2]):
        attempt.members.create(rank=rank, node=node)

    (shown,) = call(bob).get(f"{JOBS}/{job.pk}").json()["attempts"]

    assert shown["nodes"] == ["h100-n00", "h100-n01"]
    assert shown["started_at"] == "2026-01-05T12:00:00Z"


def test_the_class_of_a_job_is_the_one_it_names(
    call: Caller, bob: User, body: dict[str, Any]
) -> None:
    PriorityClass.objects.create(name="urgent", priority=10)

    shown = call(bob).post(JOBS, body | {"priority_class": "urgent"}).json()

    assert shown["priority_class"] == "urgent"


def test_an_unforeseen_failure_has_the_shape_too(
    bob: User, body: dict[str, Any], monkeypatch: Any, call: Caller
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("apps.api.jobs.services.submit_job", fail)
    client: APIClient = call(bob)
    client.raise_request_exception = False

    told = refusal(client.post(JOBS, body), 500)

    assert told["code"] == "server_error"
    assert "a bug" not in told["message"]
