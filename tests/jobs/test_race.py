"""One key, many at once: one job; and what would happen without the claim."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from threading import Barrier, Thread
from typing import Any

import pytest
from django.db import connection, connections

from apps.backends.models import Pool
from apps.jobs.models import Job, Move
from apps.jobs.services import JobSpec, cancel_job, move_job, submit_job
from apps.jobs.states import JobState
from apps.tenants.models import Tenant
from tests.factories import NOW, make_cluster, make_job, make_pool, make_tenant

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

AT_ONCE = 8
CONSTRAINT = "one_job_per_idempotency_key"


def at_once(deed: Callable[[int], Any]) -> list[Any]:
    """Do something in many threads that start together; return what each gave."""
    barrier, answers = Barrier(AT_ONCE), [None] * AT_ONCE

    def run(number: int) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(30)
            answers[number] = deed(number)
        except Exception as error:
            answers[number] = error
        finally:
            connections.close_all()

    threads = [Thread(target=run, args=(number,)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    problems = [answer for answer in answers if isinstance(answer, Exception)]
    assert not problems, problems
    return answers


@pytest.fixture
def spec() -> JobSpec:
    """A gang of one."""
    pool = make_pool(make_cluster())
    tenant = make_tenant("vision")
    return JobSpec(
        tenant=tenant, cluster=pool.cluster, pool=pool, name="train", size=1, gpus_per_member=1
    )


def look_then_insert(spec: JobSpec, key: str, barrier: Barrier) -> bool:
    """Submit as one would without the claim: look first, then write."""
    if Job.objects.filter(tenant=spec.tenant, idempotency_key=key).exists():
        return False
    barrier.wait(30)
    submit_job(spec, by=None, now=NOW, idempotency_key=key)
    return True


def test_one_key_makes_one_job_whoever_comes_first(spec: JobSpec) -> None:
    for key in range(10):
        answers = at_once(
            lambda _, key=f"k{key}": submit_job(spec, by=None, now=NOW, idempotency_key=key)
        )

        assert [created for _, created in answers].count(True) == 1
        assert len({job.pk for job, _ in answers}) == 1
    assert Job.objects.count() == Move.objects.count() == 10


def test_without_the_claim_each_makes_a_job_of_its_own(spec: JobSpec) -> None:
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {CONSTRAINT}")
    try:
        barrier = Barrier(AT_ONCE)
        at_once(lambda _: look_then_insert(spec, "k", barrier))

        assert Job.objects.filter(idempotency_key="k").count() == AT_ONCE
    finally:
        Job.objects.all().delete()
        with connection.cursor() as cursor:
            cursor.execute(
                f"ALTER TABLE {table} ADD CONSTRAINT {CONSTRAINT} UNIQUE"
                " (tenant_id, idempotency_key)"
            )


def test_one_of_many_movers_wins(spec: JobSpec) -> None:
    job = make_job(Tenant.objects.get(), Pool.objects.get())

    answers = at_once(lambda _: move_job(copy(job), JobState.ADMITTED, at=NOW, what="admitted"))

    assert answers.count(True) == 1
    assert Move.objects.filter(what="admitted").count() == 1


def test_a_cancellation_and_a_start_never_both_win(spec: JobSpec) -> None:
    for _ in range(5):
        job = make_job(Tenant.objects.get(), Pool.objects.get())

        def deed(number: int, pk: int = job.pk) -> Any:
            mine = Job.objects.get(pk=pk)
            if number % 2:
                return cancel_job(mine, by=None, now=NOW)
            if mine.state != JobState.PENDING:
                return False
            return move_job(mine, JobState.ADMITTED, at=NOW, what="admitted")

        at_once(deed)

        job.refresh_from_db()
        moves = list(job.moves.values_list("what", flat=True))
        if job.state == JobState.CANCELLED:
            assert moves == ["submitted", "cancelled"]
        else:
            assert job.state == JobState.ADMITTED
            assert job.cancel_requested_at == NOW
            assert sorted(moves) == ["admitted", "cancel_requested", "submitted"]
