"""POST /jobs?dry_run=1: what would come of a submission, and nothing is made."""

from __future__ import annotations

from typing import Any

import pytest

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.jobs.models import Attempt, Job, Member, Move
from apps.jobs.moves import move_job
from apps.jobs.states import JobState
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.tenants.models import Tenant
from tests.api.conftest import JOBS, Caller, refusal
from tests.factories import NOW, make_job
from tests.scheduling.playground import Playground

DRY = f"{JOBS}?dry_run=1"


def test_a_dry_run_says_that_it_would_start_and_makes_no_job(
    call: Caller, bob: User, body: dict[str, Any], cluster: Cluster
) -> None:
    answer = call(bob).post(DRY, body | {"size": 2, "gpus_per_member": 8})

    told = answer.json()
    assert answer.status_code == 200
    assert (told["dry_run"], told["would_start"], told["code"]) == (True, True, "starts")
    assert told["nodes"] == ["h100-n00", "h100-n01"]
    assert (told["likely_start"], told["basis"]) == ("2026-01-05T12:00:00Z", "now")
    assert (told["position"], told["waiting"], told["ahead"], told["evicts"]) == (1, 1, [], [])
    assert not Job.objects.exists()
    assert not Move.objects.exists()
    cluster.refresh_from_db()
    assert cluster.tick_requested_at is None


def test_a_dry_run_with_a_key_does_not_use_it_up(
    call: Caller, bob: User, body: dict[str, Any]
) -> None:
    client = call(bob)
    client.post(DRY, body, HTTP_IDEMPOTENCY_KEY="k1")

    made = client.post(f"{JOBS}?dry_run=0", body | {"size": 2}, HTTP_IDEMPOTENCY_KEY="k1")

    assert made.status_code == 201
    assert Job.objects.get().size == 2


@pytest.mark.parametrize("value", ["maybe", "", "1&dry_run=0"])
def test_a_dry_run_that_is_neither_yes_nor_no_is_refused(
    value: str, call: Caller, bob: User, body: dict[str, Any]
) -> None:
    told = refusal(call(bob).post(f"{JOBS}?dry_run={value}", body), 400)

    assert told["field"] == "dry_run"
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("field", "value"), [("size", 0), ("pool", "moon"), ("tenant", "moon"), ("limit_seconds", -1)]
)
def test_what_a_submission_is_refused_for_a_dry_run_is(
    field: str, value: object, call: Caller, bob: User, body: dict[str, Any]
) -> None:
    client = call(bob)

    tried = client.post(DRY, body | {field: value})
    meant = client.post(JOBS, body | {field: value})

    assert tried.status_code == meant.status_code
    assert tried.json() == meant.json()
    assert tried.json()["error"]["field"] == field


def test_a_stranger_may_try_nothing_for_another_team(
    call: Caller, carol: User, body: dict[str, Any]
) -> None:
    assert refusal(call(carol).post(DRY, body), 404)["field"] == "tenant"


def test_one_that_never_fits_is_warned_of(call: Caller, bob: User, body: dict[str, Any]) -> None:
    told = call(bob).post(DRY, body | {"size": 5, "gpus_per_member": 8}).json()

    assert (told["code"], told["likely_start"], told["basis"]) == ("never_fits", None, "unknown")
    assert [(one["code"], one["needed"], one["most"]) for one in told["warnings"]] == [
        ("never_fits", 40, 32)
    ]


def test_whom_it_would_evict_is_told_as_the_caller_may_know_them(
    call: Caller, alice: User, carol: User, nlp: Tenant, play: Playground
) -> None:
    ClusterPolicy.objects.create(cluster=play.cluster, preemption="priority", mode="checkpoint")
    PriorityClass.objects.create(name="urgent", priority=100)
    low = make_job(nlp, play.pool, by=carol, name="secret", size=8, limit_seconds=36_000)
    play.tick(0)
    play.tick(600)
    body = {
        "name": "try", "tenant": "vision", "cluster": "play", "pool": "gpu", "size": 8,
        "priority_class": "urgent",
    }  # fmt: skip

    told = call(alice).post(DRY, body).json()
    hers = call(carol).post(DRY, body | {"tenant": "nlp"}).json()

    (victim,), (own,) = told["evicts"], hers["evicts"]
    assert told["at"] == told["observed_at"] == "2026-01-05T12:10:00Z"
    assert (told["would_start"], told["code"], told["basis"]) == (False, "leaving", "victims")
    assert told["sentence"] == "Waits for a job of nlp to leave, by 2026-01-05T12:11:00Z."
    assert (victim["job"], victim["name"], victim["tenant"]) == (None, "a job of nlp", "nlp")
    assert victim["lost_money"] is None
    assert (own["job"], own["name"]) == (low.pk, "secret")
    assert (victim["mode"], victim["members"], victim["gpus"]) == ("checkpoint", 8, 8)
    assert victim["leave_by"] == told["likely_start"] == "2026-01-05T12:11:00Z"
    assert victim["lost_gpu_hours"] == "1.333333333"
    assert "secret" not in str(told)


def test_who_is_ahead_is_told_in_order(
    call: Caller, alice: User, carol: User, body: dict[str, Any], vision: Tenant, nlp: Tenant,
    pool: Pool,
) -> None:  # fmt: skip
    running = make_job(nlp, pool, by=carol, size=4, gpus_per_member=8, limit_seconds=600)
    first = make_job(vision, pool, by=alice, name="first", size=4, gpus_per_member=8)
    _run(running, pool)

    told = call(alice).post(DRY, body).json()

    assert told["code"] in ("capacity", "reserved")
    assert [(one["place"], one["id"], one["name"]) for one in told["ahead"]] == [
        (1, first.pk, "first")
    ]
    assert (told["ahead_count"], told["position"], told["waiting"]) == (1, 2, 2)


def _run(job: Job, pool: Pool) -> None:
    """Let a job run on the nodes of its pool, a member each, since NOW."""
    attempt = Attempt.objects.create(
        job=job, number=1, created_at=NOW, launched_at=NOW, started_at=NOW
    )
    Member.objects.bulk_create(
        Member(attempt=attempt, rank=rank, node=node)
        for rank, node in enumerate(pool.nodes.order_by("id")[: job.size])
    )
    for state in (JobState.ADMITTED, JobState.RUNNING):
        move_job(job, state, at=NOW, what="test")
