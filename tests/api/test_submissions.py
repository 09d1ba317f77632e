"""Submissions over the API: once by their key, and every refusal in one shape that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.jobs.models import Job, Move
from apps.jobs.services import move_job
from apps.jobs.states import JobState
from apps.queues.models import Queue
from apps.tenants.models import Tenant
from tests.api.conftest import JOBS, Caller, refusal
from tests.factories import NOW, make_cluster, make_job, make_pool

NAMES = ["אימון שפה", "🚀 launch 👩‍🔬", "<script>alert(1)</script>", "a & b \"c\" 'd'", "x" * 200]


def test_a_member_submits_a_gang(call: Caller, bob: User, body: dict[str, Any]) -> None:
    answer = call(bob).post(JOBS, body | {"size": 2, "gpus_per_member": 8})

    assert answer.status_code == 201
    job = Job.objects.get()
    shown = answer.json()
    assert shown["id"] == job.pk
    assert (shown["state"], shown["gpus"], shown["submitted_by"]) == ("PENDING", 16, "bob")
    assert (shown["tenant"], shown["priority_class"]) == ("vision", "normal")
    assert shown["submitted_at"] == "2026-01-05T12:00:00Z"
    assert shown["warnings"] == []
    assert shown["workload"] == job.workload
    assert answer["Location"].endswith(f"/api/v1/jobs/{job.pk}")
    assert list(Move.objects.values_list("what", "after")) == [("submitted", "PENDING")]


def test_a_submission_asks_for_an_early_tick(
    call: Caller, bob: User, body: dict[str, Any], cluster: Cluster
) -> None:
    call(bob).post(JOBS, body)

    cluster.refresh_from_db()
    assert cluster.tick_requested_at is not None


def test_a_stranger_submits_to_no_tenant_but_its_own(
    call: Caller, carol: User, body: dict[str, Any]
) -> None:
    hers = refusal(call(carol).post(JOBS, body), 404)
    nobodys = refusal(call(carol).post(JOBS, body | {"tenant": "visiom"}), 404)

    assert hers["field"] == nobodys["field"] == "tenant"
    assert hers["message"].replace("vision", "visiom") == nobodys["message"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("name", NAMES)
def test_any_name_a_person_may_write_is_kept(
    name: str, call: Caller, bob: User, body: dict[str, Any]
) -> None:
    made = call(bob).post(JOBS, body | {"name": f"  {name} "})

    assert made.json()["name"] == name
    assert call(bob).get(f"{JOBS}/{made.json()['id']}").json()["name"] == name


REFUSED = [
    ("name", "x" * 10_000),
    ("name", "   "),
    ("name", "a\x00b"),
    ("name", "a\nb"),
    ("name", "\ud800"),
    ("name", 7),
    ("name", None),
    ("size", 0),
    ("size", -1),
    ("size", "2"),
    ("size", 2.0),
    ("size", True),
    ("size", 2**63),
    ("size", 10**400),
    ("gpus_per_member", 0),
    ("min_size", 2),
    ("min_size", 0),
    ("topology", "shelf"),
    ("topology", ["rack"]),
    ("limit_seconds", 0),
    ("limit_seconds", -5),
    ("limit_seconds", 10**9),
    ("nice", 10**9 + 1),
    ("begin_at", "tomorrow"),
    ("begin_at", "2026-01-05T12:00:00"),
    ("begin_at", "0001-01-01T00:00:00+14:00"),
    ("begin_at", "9999-12-31T23:59:59Z"),
    ("begin_at", 7),
    ("retry_limit", -1),
    ("retry_limit", 10**6),
    ("held", "yes"),
    ("held", 1),
    ("depends_on", 7),
    ("depends_on", ["7"]),
    ("depends_on", [10**30]),
    ("depends_on", [999]),
    ("workload", []),
    ("workload", "sleep"),
    ("workload", {"\x00": 1}),
    ("workload", {"a": "\ud800"}),
    ("workload", {"no_such_knob": 1}),
    ("cluster", "nowhere"),
    ("pool", "a100"),
    ("priority_class", "urgent"),
    ("tenant", None),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_bad_value_is_refused_by_the_name_of_its_field(
    field: str, value: Any, call: Caller, bob: User, body: dict[str, Any]
) -> None:
    raw = json.dumps(body | {field: value})  # escapes what is no text, as a lone surrogate

    told = refusal(call(bob).post(JOBS, raw, content_type="application/json"), 400)

    assert str(told["field"]).split(".")[0] == field
    assert told["field"] in told["fields"]
    assert not Job.objects.exists()


def test_every_bad_field_is_named_at_once(call: Caller, bob: User, body: dict[str, Any]) -> None:
    told = refusal(call(bob).post(JOBS, body | {"size": 0, "nice": "x", "colour": "red"}), 400)

    assert set(told["fields"]) == {"size", "nice", "colour"}


def test_a_missing_field_is_named(call: Caller, bob: User, body: dict[str, Any]) -> None:
    del body["pool"]

    assert refusal(call(bob).post(JOBS, body), 400)["field"] == "pool"


MALFORMED = [
    b"{",
    b"",
    b'{"name": NaN}',
    b'{"name": Infinity}',
    b'{"size": 1e999}',
    b'{"name": "a", "name": "b"}',
    b'{"workload": {"a": 1, "a": 2}}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"size": ' + b"1" * 5_000 + b"}",
]


@pytest.mark.parametrize("raw", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_not_json_is_refused_whole(
    raw: bytes, call: Caller, bob: User, body: dict[str, Any]
) -> None:
    answer = call(bob).post(JOBS, raw, content_type="application/json")

    refusal(answer, 400)
    assert not Job.objects.exists()


@pytest.mark.parametrize("whole", [[], "text", 7, None, True])
def test_a_body_that_is_no_object_is_refused(
    whole: Any, call: Caller, bob: User, body: dict[str, Any]
) -> None:
    refusal(call(bob).post(JOBS, whole, format="json"), 400)


def test_a_body_of_another_kind_is_refused(call: Caller, bob: User, body: dict[str, Any]) -> None:
    answer = call(bob).post(JOBS, "name=train", content_type="application/x-www-form-urlencoded")

    assert refusal(answer, 415)["code"] == "unsupported_media_type"


def test_a_body_without_end_is_refused(call: Caller, bob: User, body: dict[str, Any]) -> None:
    answer = call(bob).post(JOBS, b" " * 1_048_577, content_type="application/json")

    assert refusal(answer, 413)["code"] == "too_large"


def test_a_deep_workload_is_refused(call: Caller, bob: User, body: dict[str, Any]) -> None:
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"a": deep}

    assert refusal(call(bob).post(JOBS, body | {"workload": deep}), 400)["field"] == "workload"


def test_a_gang_larger_than_its_pool_is_accepted_and_told_at_once(
    call: Caller, bob: User, body: dict[str, Any]
) -> None:
    answer = call(bob).post(JOBS, body | {"size": 5, "gpus_per_member": 8})

    assert answer.status_code == 201
    (warning,) = answer.json()["warnings"]
    assert (warning["code"], warning["needed"], warning["most"]) == ("never_fits", 40, 32)
    assert "h100" in warning["message"]


def test_a_key_makes_one_job(call: Caller, bob: User, body: dict[str, Any]) -> None:
    client = call(bob)
    first = client.post(JOBS, body, HTTP_IDEMPOTENCY_KEY="k1")
    again = client.post(JOBS, body, HTTP_IDEMPOTENCY_KEY="k1")

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert Job.objects.count() == Move.objects.count() == 1


def test_a_key_with_another_body_is_a_conflict(
    call: Caller, bob: User, body: dict[str, Any]
) -> None:
    client = call(bob)
    client.post(JOBS, body, HTTP_IDEMPOTENCY_KEY="k1")

    told = refusal(client.post(JOBS, body | {"size": 2}, HTTP_IDEMPOTENCY_KEY="k1"), 409)

    assert told["code"] == "idempotency_conflict"
    assert Job.objects.count() == 1


def test_a_key_still_answers_after_its_queue_was_closed(
    call: Caller, bob: User, body: dict[str, Any]
) -> None:
    client = call(bob)
    client.post(JOBS, body, HTTP_IDEMPOTENCY_KEY="k1")
    Queue.objects.update(closed_at=NOW)

    assert client.post(JOBS, body, HTTP_IDEMPOTENCY_KEY="k1").status_code == 200
    assert refusal(client.post(JOBS, body, HTTP_IDEMPOTENCY_KEY="k2"), 400)["field"] == "tenant"


@pytest.mark.parametrize("key", ["", "x" * 121, "naïve"])
def test_a_key_that_is_none_is_refused(
    key: str, call: Caller, bob: User, body: dict[str, Any]
) -> None:
    answer = call(bob).post(JOBS, body, HTTP_IDEMPOTENCY_KEY=key)

    assert refusal(answer, 400)["field"] == "Idempotency-Key"


def test_a_submission_costs_few_queries(
    call: Caller, bob: User, body: dict[str, Any], django_assert_max_num_queries: Any
) -> None:
    client = call(bob)
    client.post(JOBS, body)
    body |= {"depends_on": [], "priority_class": "normal"}

    told: list[str] = []

    def listen(execute: Any, sql: str, *more: Any) -> Any:
        told.append(sql)
        return execute(sql, *more)

    # What the server binds is not told by the log of queries.
    with django_assert_max_num_queries(8), connection.execute_wrapper(listen):
        client.post(JOBS, body, HTTP_IDEMPOTENCY_KEY="k")

    assert told
    # No count of a table that grows: what a submission costs does not depend on those before it.
    assert not [sql for sql in told if "COUNT(" in sql and "jobs_job" in sql]


def test_a_full_queue_takes_no_more(call: Caller, bob: User, body: dict[str, Any]) -> None:
    client = call(bob)
    client.post(JOBS, body)
    Queue.objects.update(max_pending=2)

    assert client.post(JOBS, body).status_code == 201
    told = refusal(client.post(JOBS, body), 400)
    assert told["field"] == "tenant"
    assert "2" in told["message"]


def test_an_archived_tenant_takes_no_jobs(call: Caller, root: User, body: dict[str, Any]) -> None:
    Tenant.objects.update(archived_at=NOW)

    assert refusal(call(root).post(JOBS, body), 400)["field"] == "tenant"


def test_a_job_waits_only_for_jobs_its_submitter_sees(
    call: Caller, bob: User, body: dict[str, Any], nlp: Tenant, pool: Pool
) -> None:
    hers = make_job(nlp, pool)
    ours = make_job(Tenant.objects.get(path="vision"), pool)
    client = call(bob)

    assert (
        refusal(client.post(JOBS, body | {"depends_on": [hers.pk]}), 400)["field"] == "depends_on"
    )
    answer = client.post(JOBS, body | {"depends_on": [ours.pk, ours.pk]})
    assert answer.json()["depends_on"] == [ours.pk]
    assert client.get(f"{JOBS}/{answer.json()['id']}").json()["depends_on"] == [ours.pk]


def test_a_dependency_on_another_cluster_is_refused(
    call: Caller, bob: User, body: dict[str, Any], vision: Tenant
) -> None:
    elsewhere = make_job(vision, make_pool(make_cluster("boreas")))

    told = refusal(call(bob).post(JOBS, body | {"depends_on": [elsewhere.pk]}), 400)
    assert told["field"] == "depends_on"


def test_a_job_cannot_wait_for_one_that_failed(
    call: Caller, bob: User, body: dict[str, Any], vision: Tenant, pool: Pool
) -> None:
    gone = make_job(vision, pool)
    move_job(gone, JobState.CANCELLED, at=NOW, what="cancelled")

    told = refusal(call(bob).post(JOBS, body | {"depends_on": [gone.pk]}), 400)
    assert told["field"] == "depends_on"
