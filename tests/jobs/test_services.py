"""Submitting, moving, cancelling, holding: the rules and the one writer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.common.errors import Conflict, Invalid
from apps.jobs.models import Job, Move
from apps.jobs.services import (
    ForbiddenMove,
    JobSpec,
    cancel_job,
    hold_job,
    move_job,
    move_jobs,
    release_job,
    submit_job,
    submit_many,
)
from apps.jobs.states import MOVES, TERMINAL, JobState
from apps.queues.models import PriorityClass, Queue
from apps.queues.services import queue_for
from apps.tenants.models import Tenant
from tests.factories import NOW, make_cluster, make_job, make_pool


@pytest.fixture
def spec(vision: Tenant, pool: Pool) -> JobSpec:
    """Two members of eight GPUs."""
    return JobSpec(
        tenant=vision, cluster=pool.cluster, pool=pool, name="train", size=2, gpus_per_member=8
    )


def test_a_job_waits_from_its_submission_on(spec: JobSpec, bob: User) -> None:
    job, created = submit_job(spec, by=bob, now=NOW)

    job.refresh_from_db()
    assert created
    assert (job.state, job.submitted_at, job.state_since) == ("PENDING", NOW, NOW)
    assert (job.min_size, job.gpus, job.priority_class.name) == (2, 16, "normal")
    assert job.submitted_by == bob


BAD: list[tuple[str, Any]] = [
    ("name", ""),
    ("name", " \t "),
    ("name", "x" * 201),
    ("name", "x" * 10_000),
    ("name", "a\x00b"),
    ("name", "a\x7fb"),
    ("name", "a\u2028b"),
    ("name", "\ud800"),
    ("size", 0),
    ("size", 2**31),
    ("size", True),
    ("size", 1.5),
    ("gpus_per_member", 0),
    ("min_size", 3),
    ("min_size", 0),
    ("topology", "shelf"),
    ("limit_seconds", 0),
    ("limit_seconds", -1),
    ("limit_seconds", 3_652 * 86_400),
    ("limit_seconds", 10**30),
    ("nice", 10**9 + 1),
    ("nice", -(10**9) - 1),
    ("begin_at", NOW.replace(tzinfo=None)),
    ("begin_at", NOW + timedelta(days=4_000)),
    ("retry_limit", -1),
    ("workload", {"a": float("nan")}),
    ("workload", {"a": float("inf")}),
    ("workload", {"a": "\x00"}),
    ("workload", {"a": "\ud800"}),
    ("workload", {"a": "x" * 530_000}),
    ("workload", {"a": object()}),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_what_cannot_be_is_refused_by_name_and_nothing_is_written(
    field: str, value: Any, spec: JobSpec
) -> None:
    for submit in (
        lambda: submit_job(replace(spec, **{field: value}), by=None, now=NOW),
        lambda: submit_many([spec, replace(spec, **{field: value})], at=[NOW, NOW]),
    ):
        with pytest.raises(Invalid) as refusal:
            submit()
        assert refusal.value.field == field
        assert refusal.value.message
    assert not Job.objects.exists()
    assert not Move.objects.exists()


def test_a_backslash_and_a_u_in_a_workload_are_text(spec: JobSpec) -> None:
    from apps.jobs.specs import check_json

    check_json({"script": r"echo \u0000 and \\u0000"})

    with pytest.raises(Invalid):
        check_json({"script": "\x00"})


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_the_largest_and_the_smallest_are_accepted(size: int, spec: JobSpec) -> None:
    edge = replace(spec, size=size, name="x" * 200, nice=-(10**9), limit_seconds=3_652 * 86_400 - 1)

    job, _ = submit_job(edge, by=None, now=NOW)

    job.refresh_from_db()
    assert job.size == size


def test_a_pool_of_another_cluster_is_refused(spec: JobSpec) -> None:
    elsewhere = make_pool(make_cluster("boreas"))

    with pytest.raises(Invalid) as refusal:
        submit_job(replace(spec, pool=elsewhere), by=None, now=NOW)

    assert refusal.value.field == "pool"


def test_a_closed_queue_takes_no_jobs(spec: JobSpec) -> None:
    Queue.objects.create(tenant=spec.tenant, cluster=spec.cluster, closed_at=NOW)

    with pytest.raises(Invalid, match="closed"):
        submit_job(spec, by=None, now=NOW)


def test_a_full_queue_counts_only_what_waits(spec: JobSpec) -> None:
    queue = queue_for(spec.tenant, spec.cluster)
    Queue.objects.filter(pk=queue.pk).update(max_pending=1)
    first, _ = submit_job(spec, by=None, now=NOW)
    with pytest.raises(Invalid):
        submit_job(spec, by=None, now=NOW)

    cancel_job(first, by=None, now=NOW)

    assert submit_job(spec, by=None, now=NOW)[1]


class TestSubmitMany:
    def test_each_is_submitted_at_its_own_instant(self, spec: JobSpec) -> None:
        instants = [NOW + timedelta(seconds=i) for i in range(3)]

        jobs = submit_many([spec] * 3, at=instants)

        assert [job.submitted_at for job in Job.objects.order_by("id")] == instants
        assert [job.pk for job in jobs] == sorted(job.pk for job in jobs)
        assert list(Move.objects.values_list("at", flat=True)) == instants

    def test_a_second_try_makes_no_second_job(self, spec: JobSpec) -> None:
        first = submit_many([spec] * 2, at=[NOW] * 2, keys=["a", "b"])
        again = submit_many([spec] * 3, at=[NOW] * 3, keys=["a", "b", "c"])

        assert [job.pk for job in again[:2]] == [job.pk for job in first]
        assert Job.objects.count() == Move.objects.count() == 3

    def test_its_queries_do_not_grow_with_its_jobs(self, spec: JobSpec) -> None:
        submit_many([spec], at=[NOW])
        counts = []
        for number in (1, 20):
            with CaptureQueriesContext(connection) as queries:
                submit_many(
                    [spec] * number,
                    at=[NOW] * number,
                    keys=[f"{number}-{i}" for i in range(number)],
                )
            counts.append(len(queries))

        assert counts[0] == counts[1]

    def test_it_keeps_dependencies(self, spec: JobSpec) -> None:
        (first,) = submit_many([spec], at=[NOW])
        (second,) = submit_many([replace(spec, depends_on=(first,))], at=[NOW])

        assert list(second.depends_on.all()) == [first]

    def test_none_is_none(self, db: None) -> None:
        assert submit_many([], at=[]) == []


@pytest.fixture
def job(vision: Tenant, pool: Pool) -> Job:
    """A waiting job."""
    return make_job(vision, pool)


class TestMoveJob:
    def test_a_move_is_written_beside_the_state(self, job: Job) -> None:
        at = NOW + timedelta(seconds=5)

        assert move_job(job, JobState.ADMITTED, at=at, what="admitted", detail={"n": 1}, tick_id=7)

        job.refresh_from_db()
        assert (job.state, job.state_since) == ("ADMITTED", at)
        move = Move.objects.latest("id")
        assert (move.before, move.after, move.what, move.detail, move.tick_id) == (
            "PENDING",
            "ADMITTED",
            "admitted",
            {"n": 1},
            7,
        )

    def test_the_loser_writes_nothing(self, job: Job) -> None:
        other = Job.objects.get(pk=job.pk)
        move_job(other, JobState.CANCELLED, at=NOW, what="cancelled")

        assert not move_job(job, JobState.ADMITTED, at=NOW, what="admitted")

        job.refresh_from_db()
        assert job.state == "CANCELLED"
        assert not Move.objects.filter(what="admitted").exists()

    @pytest.mark.parametrize("before", list(JobState))
    def test_only_the_table_of_states_is_followed(self, before: JobState, job: Job) -> None:
        for after in JobState:
            Job.objects.filter(pk=job.pk).update(state=before)
            job.refresh_from_db()
            if after in MOVES[before]:
                assert move_job(job, after, at=NOW, what="x")
                assert (job.ended_at is not None) == (after in TERMINAL)
                Job.objects.filter(pk=job.pk).update(ended_at=None)
            else:
                with pytest.raises(ForbiddenMove):
                    move_job(job, after, at=NOW, what="x")

    def test_many_move_in_few_queries(self, vision: Tenant, pool: Pool) -> None:
        jobs = [make_job(vision, pool) for _ in range(20)]
        Job.objects.filter(pk=jobs[3].pk).update(state=JobState.CANCELLED)

        with CaptureQueriesContext(connection) as queries:
            moved = move_jobs(
                jobs, JobState.ADMITTED, at=NOW, what="admitted", details={jobs[0].pk: {"n": 1}}
            )

        assert [job.pk for job in moved] == [job.pk for job in jobs if job.pk != jobs[3].pk]
        assert len(queries) <= 6
        assert Job.objects.filter(state="ADMITTED").count() == 19
        assert Move.objects.filter(what="admitted").count() == 19
        assert Move.objects.get(job=jobs[0], what="admitted").detail == {"n": 1}


class TestCancel:
    def test_one_that_the_tick_admitted_meanwhile_is_asked_to_end(self, job: Job) -> None:
        stale = Job.objects.get(pk=job.pk)
        move_job(job, JobState.ADMITTED, at=NOW, what="admitted")

        cancel_job(stale, by=None, now=NOW)

        job.refresh_from_db()
        assert (job.state, job.cancel_requested_at) == ("ADMITTED", NOW)
        assert Move.objects.latest("id").what == "cancel_requested"

    def test_asking_twice_is_asking_once(self, job: Job) -> None:
        move_job(job, JobState.ADMITTED, at=NOW, what="admitted")
        for second in range(2):
            cancel_job(job, by=None, now=NOW + timedelta(seconds=second))

        job.refresh_from_db()
        assert job.cancel_requested_at == NOW
        assert Move.objects.filter(what="cancel_requested").count() == 1

    def test_one_that_ended_is_a_conflict(self, job: Job) -> None:
        move_job(job, JobState.ADMITTED, at=NOW, what="admitted")
        move_job(job, JobState.FAILED, at=NOW, what="failed")

        with pytest.raises(Conflict):
            cancel_job(job, by=None, now=NOW)


class TestHold:
    def test_the_first_hold_stands(self, job: Job, alice: User, root: User) -> None:
        hold_job(job, by=alice, now=NOW, reason="data")
        hold_job(job, by=root, now=NOW + timedelta(hours=1), reason="other")

        job.refresh_from_db()
        assert (job.held_at, job.held_by, job.held_reason) == (NOW, alice, "data")

    def test_a_release_lets_it_go(self, job: Job, alice: User) -> None:
        hold_job(job, by=alice, now=NOW)
        release_job(job, by=alice, now=NOW)
        release_job(job, by=alice, now=NOW)

        job.refresh_from_db()
        assert (job.held_at, job.held_by, job.held_reason) == (None, None, "")
        assert Move.objects.filter(what="released").count() == 1

    def test_one_that_ended_is_a_conflict(self, job: Job) -> None:
        cancel_job(job, by=None, now=NOW)

        for deed in (hold_job, release_job):
            with pytest.raises(Conflict):
                deed(job, by=None, now=NOW)


def test_two_clusters_have_queues_of_their_own(
    spec: JobSpec, cluster: Cluster, vision: Tenant
) -> None:
    other = make_pool(make_cluster("boreas"))
    submit_many([spec, replace(spec, cluster=other.cluster, pool=other), spec], at=[NOW, NOW, NOW])

    assert set(Queue.objects.values_list("cluster__name", flat=True)) == {"atlas", "boreas"}
    assert PriorityClass.objects.count() == 1
