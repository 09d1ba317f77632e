"""Arrivals become jobs at their own instant, each exactly once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.jobs import arrivals
from apps.jobs.arrivals import submit_due
from apps.jobs.models import Arrival, Job
from apps.jobs.states import JobState
from apps.tenants.services import archive_tenant
from tests.factories import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def arrive(cluster, pool, vision):
    def make(seconds: float = 0, *, tenant=vision, **spec) -> Arrival:
        asked = {"name": "train", "pool": pool.name, "size": 1, "gpus_per_member": 1} | spec
        at = NOW + timedelta(seconds=seconds)
        return Arrival.objects.create(cluster=cluster, at=at, tenant=tenant, spec=asked)

    return make


def test_what_is_due_is_submitted_at_its_own_instant(cluster, arrive):
    early, on_time, late = arrive(-90.5), arrive(0), arrive(1)

    made = submit_due(cluster, now=NOW)

    assert made == 2
    for arrival in (early, on_time):
        arrival.refresh_from_db()
        assert arrival.job.submitted_at == arrival.at
        assert arrival.job.state == JobState.PENDING
        assert arrival.job.moves.get().at == arrival.at
    late.refresh_from_db()
    assert late.job is None


def test_submitting_again_makes_nothing_new(cluster, arrive):
    arrive(-1)

    assert [submit_due(cluster, now=NOW) for _ in range(3)] == [1, 0, 0]
    assert Job.objects.count() == 1


def test_everything_asked_arrives(cluster, arrive):
    arrive(
        name="gang",
        size=4,
        gpus_per_member=8,
        min_size=2,
        topology="rack",
        limit_seconds=3_600,
        nice=5,
        retry_limit=2,
        workload={"kind": "simulated", "runtime": 60},
    )

    submit_due(cluster, now=NOW)

    job = Job.objects.get()
    assert (job.name, job.size, job.gpus_per_member, job.min_size) == ("gang", 4, 8, 2)
    assert (job.topology, job.limit_seconds, job.nice, job.retry_limit) == ("rack", 3_600, 5, 2)
    assert job.workload["runtime"] == 60


def test_many_are_submitted_in_batches_in_order(cluster, arrive, monkeypatch):
    monkeypatch.setattr(arrivals, "BATCH", 4)
    for second in (5, 3, 9, 1, 7, 2, 8, 6, 4, 0):
        arrive(second, name=f"job-{second}")

    assert submit_due(cluster, now=NOW + timedelta(seconds=60)) == 10
    assert list(Job.objects.order_by("id").values_list("name", flat=True)) == [
        f"job-{second}" for second in range(10)
    ]


def test_other_clusters_arrivals_are_left_alone(cluster, arrive, vision):
    from tests.factories import make_cluster

    arrive(-1)

    assert submit_due(make_cluster("other"), now=NOW) == 0


def test_what_no_rule_allows_is_refused_and_said_and_holds_up_nobody(cluster, arrive, nlp):
    fine = [arrive(-n) for n in range(3)]
    archived = arrive(-10, tenant=nlp)
    archive_tenant(nlp, by=None, now=NOW, reason="gone")
    wrong = {
        "no such pool": arrive(-11, pool="tpu"),
        "There is no priority class": arrive(-12, priority_class="vip"),
        "has no colour": arrive(-13, colour="red"),
        "runtime": arrive(-14, workload={"runtime": -5}),
        "archived": archived,
    }

    assert submit_due(cluster, now=NOW) == 3
    assert submit_due(cluster, now=NOW) == 0
    for words, arrival in wrong.items():
        arrival.refresh_from_db()
        assert arrival.job is None
        assert words in arrival.refused
    for arrival in fine:
        arrival.refresh_from_db()
        assert arrival.job is not None
        assert arrival.refused == ""


def test_a_crash_before_the_mark_leaves_no_job(cluster, arrive, monkeypatch):
    arrive(-1)

    def crash(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("apps.jobs.arrivals.set_columns", crash)
        with pytest.raises(KeyboardInterrupt):
            submit_due(cluster, now=NOW)
    assert not Job.objects.exists()

    assert submit_due(cluster, now=NOW) == 1


def test_the_number_of_queries_does_not_grow_with_the_jobs(cluster, arrive):
    def queries(count: int) -> int:
        for number in range(count):
            arrive(-number)
        with CaptureQueriesContext(connection) as seen:
            assert submit_due(cluster, now=NOW) == count
        return len(seen)

    queries(1)
    few, many = queries(5), queries(30)

    assert many == few


def test_nothing_due_costs_one_look(cluster, arrive, django_assert_num_queries):
    arrive(60)

    with django_assert_num_queries(1):
        assert submit_due(cluster, now=NOW) == 0
