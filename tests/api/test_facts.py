"""Clusters, queues and usage over the API."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.accounts.models import User
from apps.backends.models import Cluster, NodeState, Pool
from apps.common.time import HOUR_US, to_us
from apps.jobs.models import Job
from apps.jobs.services import hold_job, move_job
from apps.jobs.states import JobState
from apps.ledger.models import Interval, Price
from apps.scheduling.models import Advice, Nice, NiceState, Standing, Tick, Verdict
from apps.tenants.models import Tenant
from tests.api.conftest import Caller
from tests.api.test_jobs import refusal
from tests.factories import NOW, make_cluster, make_job, make_tenant


def test_whoever_is_logged_in_knows_the_clusters(
    call: Caller, alice: User, bob: User, carol: User, pool: Pool
) -> None:
    make_cluster("old", archived_at=NOW)

    for user in (alice, bob, carol):
        page = call(user).get("/api/v1/clusters").json()
        assert [cluster["name"] for cluster in page["results"]] == ["atlas"]
        refusal(call(user).get("/api/v1/clusters/old"), 404)


def test_a_cluster_shows_its_pools_and_its_policy(
    call: Caller, bob: User, cluster: Cluster, pool: Pool, vision: Tenant
) -> None:
    first, second = pool.nodes.order_by("name")[:2]
    type(first).objects.filter(pk=first.pk).update(state=NodeState.DOWN)
    type(first).objects.filter(pk=second.pk).update(gone_at=NOW)
    job = make_job(vision, pool, size=2, gpus_per_member=3)
    move_job(job, JobState.ADMITTED, at=NOW, what="admitted")

    shown = call(bob).get("/api/v1/clusters/atlas").json()

    (h100,) = shown["pools"]
    assert {k: h100[k] for k in ("nodes", "gpus", "up", "down", "drained", "used")} == {
        "nodes": 3,
        "gpus": 24,
        "up": 16,
        "down": 8,
        "drained": 0,
        "used": 6,
    }
    assert shown["now"] == "2026-01-05T12:00:00Z"
    assert shown["virtual"] is True
    assert shown["policy"]["fair_share"] == "fair_tree"
    assert shown["policy"]["half_life_seconds"] == 604_800
    assert shown["policy"]["window_seconds"] is None


def test_what_went_wrong_inside_is_not_told(call: Caller, bob: User, cluster: Cluster) -> None:
    Cluster.objects.update(trouble="password of the database refused")

    text = call(bob).get("/api/v1/clusters/atlas").content.decode()

    assert "password" not in text
    assert '"in_trouble":true' in text


class TestQueues:
    def test_a_team_sees_its_queue_with_its_numbers(
        self, call: Caller, alice: User, bob: User, vision: Tenant, pool: Pool
    ) -> None:
        make_job(vision, pool)
        hold_job(make_job(vision, pool), by=None, now=NOW)
        move_job(make_job(vision, pool), JobState.ADMITTED, at=NOW, what="admitted")

        for user in (alice, bob):
            (queue,) = call(user).get("/api/v1/queues").json()["results"]
            assert (queue["tenant"], queue["cluster"]) == ("vision", "atlas")
            assert (queue["waiting"], queue["holding"]) == (2, 1)
            assert call(user).get(f"/api/v1/queues/{queue['id']}").json() == queue

    def test_a_stranger_does_not(
        self, call: Caller, carol: User, vision: Tenant, pool: Pool
    ) -> None:
        make_job(vision, pool)
        queue = vision.queues.get()

        assert call(carol).get("/api/v1/queues").json()["count"] == 0
        refusal(call(carol).get(f"/api/v1/queues/{queue.pk}"), 404)
        refusal(call(carol).get("/api/v1/queues?tenant=vision"), 404)

    def test_its_queries_do_not_grow_with_its_rows(
        self, call: Caller, root: User, vision: Tenant, pool: Pool
    ) -> None:
        client = call(root)
        client.get("/api/v1/queues")
        counts = []
        for batch in range(2):
            for number in range(4):
                make_job(make_tenant(f"t{batch}{number}"), pool)
            with CaptureQueriesContext(connection) as queries:
                client.get("/api/v1/queues")
            counts.append(len(queries))

        assert counts[0] == counts[1] <= 4


@pytest.fixture
def standings(cluster: Cluster, vision: Tenant, nlp: Tenant) -> None:
    """Where both teams stood at one tick."""
    tick = Tick.objects.create(cluster=cluster, at=NOW, fence=1, keep_until=NOW)
    for tenant, level in ((vision, 1.5), (nlp, None)):
        Standing.objects.create(
            cluster=cluster,
            tenant=tenant,
            tick_id=tick.pk,
            usage=100.0 if level else 0.0,
            share=0.5,
            usage_share=1 / 3 if level else 0.0,
            level=level,
            level_state="" if level else "no_usage",
            factor=0.5,
            rank=1,
        )


class TestUsage:
    def test_a_team_sees_where_it_stands(
        self, call: Caller, alice: User, bob: User, standings: None
    ) -> None:
        for user in (alice, bob):
            (mine,) = call(user).get("/api/v1/usage").json()["standings"]
            assert (mine["tenant"], mine["usage"], mine["level"]) == ("vision", 100.0, 1.5)

    def test_a_stranger_sees_its_own(self, call: Caller, carol: User, standings: None) -> None:
        (hers,) = call(carol).get("/api/v1/usage").json()["standings"]

        assert hers["tenant"] == "nlp"
        assert (hers["level"], hers["level_state"]) == (None, "no_usage")
        refusal(call(carol).get("/api/v1/usage?tenant=vision"), 404)

    def test_an_admin_sees_all(self, call: Caller, root: User, standings: None) -> None:
        told = call(root).get("/api/v1/usage").json()["standings"]

        assert [standing["tenant"] for standing in told] == ["nlp", "vision"]

    @pytest.mark.parametrize(
        ("query", "status", "field"),
        [
            ("cluster=nowhere", 400, "cluster"),
            ("tenant=nobody", 404, "tenant"),
            ("month=1", 400, "month"),
        ],
    )
    def test_a_bad_parameter_is_named(
        self, query: str, status: int, field: str, call: Caller, root: User, standings: Any
    ) -> None:
        assert refusal(call(root).get(f"/api/v1/usage?{query}"), status)["field"] == field

    def test_the_parts_are_whole_and_others_rows_are_one(
        self, call: Caller, alice: User, cluster: Cluster, pool: Pool, vision: Tenant, nlp: Tenant
    ) -> None:
        # 32 GPUs for an hour at $2.50: vision used 8, nlp 16; nobody the rest.
        start = to_us(NOW)
        Price.objects.create(pool=pool, from_us=0, micros_per_gpu_hour=2_500_000)
        Cluster.objects.filter(pk=cluster.pk).update(observed_at=NOW + timedelta(hours=1))
        common = {"cluster": cluster, "pool": pool, "start_us": start, "end_us": start + HOUR_US}
        for node in pool.nodes.all():
            Interval.objects.create(kind="node", state="up", node=node, gpus=8, **common)
        for tenant, gpus in ((vision, 8), (nlp, 16)):
            job = make_job(tenant, pool)
            Interval.objects.create(
                kind="member",
                tenant=tenant,
                job=job,
                rank=0,
                node=pool.nodes.first(),
                gpus=gpus,
                **common,
            )

        query = "since=2026-01-05T12:00:00Z&until=2026-01-05T13:00:00Z"
        ledger = call(alice).get(f"/api/v1/usage?{query}").json()["ledger"]

        assert ledger["capacity"] == {"gpu_hours": "32.00", "money": "80.00"}
        parts = {name: part["money"] for name, part in ledger["parts"].items()}
        assert parts["busy"] == "60.00"
        assert parts["unallocated"] == "20.00"
        five = ("busy", "held_idle", "gang_wait", "unallocated", "unavailable")
        assert sum(Decimal(parts[name]) for name in five) == Decimal("80.00")
        rows = {row["tenant"]: row["total"]["money"] for row in ledger["tenants"]}
        assert rows == {"vision": "20.00", None: "40.00"}

    def test_a_member_is_told_no_money_unless_the_settings_say_so(
        self, call: Caller, bob: User, pool: Pool, settings: Any
    ) -> None:
        client = call(bob)
        assert client.get("/api/v1/usage").json()["ledger"]["capacity"]["money"] is None

        settings.MEMBERS_SEE_MONEY = True
        assert client.get("/api/v1/usage").json()["ledger"]["capacity"]["money"] == "0.00"


class TestExplain:
    @pytest.fixture
    def job(self, vision: Tenant, nlp: Tenant, pool: Pool, bob: User) -> Job:
        """A job of bob's that waits for room behind one of nlp's."""
        ahead = make_job(make_tenant("nlp/secret"), pool, name="nlp's own", size=4)
        job = make_job(vision, pool, by=bob, size=4, gpus_per_member=8)
        tick = Tick.objects.create(cluster=pool.cluster, at=NOW, fence=1, keep_until=NOW)
        terms = dict.fromkeys(("age", "size", "queue", "class", "boost", "nice"), 0.0)
        for position, one in enumerate((ahead, job)):
            Verdict.objects.create(
                job=one,
                cluster=pool.cluster,
                tick_id=tick.pk,
                position=position,
                code="capacity",
                needed=one.gpus,
                available=3,
                priority=5_000.0,
                term_fair_share=5_000.0,
                **{f"term_{name}": value for name, value in terms.items()},
            )
        return job

    def test_its_team_is_told_why_and_who_is_ahead(
        self, call: Caller, job: Job, alice: User, bob: User
    ) -> None:
        for user in (alice, bob):
            told = call(user).get(f"/api/v1/jobs/{job.pk}/explain").json()
            why = told["why"]
            assert (why["code"], why["needed"], why["available"]) == ("capacity", 32, 3)
            assert sum(term["value"] for term in why["terms"]) == why["priority"]
            assert why["ahead_count"] == 1
            assert why["ahead"] == [
                {"place": 1, "id": None, "name": "a job of nlp", "gpus": 4, "note": ""}
            ]
            assert why["sentence"]
            assert "secret" not in str(told)

    def test_the_list_carries_the_code(self, call: Caller, job: Job, bob: User) -> None:
        (shown,) = call(bob).get("/api/v1/jobs").json()["results"]

        assert (shown["waits"]["code"], shown["waits"]["position"]) == ("capacity", 1)

    def test_a_stranger_is_told_nothing(self, call: Caller, job: Job, carol: User) -> None:
        refusal(call(carol).get(f"/api/v1/jobs/{job.pk}/explain"), 404)

    def test_one_that_runs_has_no_reason(self, call: Caller, job: Job, bob: User) -> None:
        move_job(job, JobState.ADMITTED, at=NOW, what="admitted")

        told = call(bob).get(f"/api/v1/jobs/{job.pk}/explain").json()

        assert told == {"job": job.pk, "state": "ADMITTED", "why": None, "on_cluster": None}


def test_a_cluster_and_a_job_tell_what_was_asked_of_its_line(
    call: Caller, alice: User, bob: User, cluster: Cluster, pool: Pool, vision: Tenant
) -> None:
    job = make_job(vision, pool)
    Job.objects.filter(pk=job.pk).update(foreign_ref="lab:7:100")
    assert call(bob).get("/api/v1/clusters/atlas").json()["advice"] is None
    assert call(bob).get(f"/api/v1/jobs/{job.pk}").json()["advised"] is None

    Cluster.objects.filter(pk=cluster.pk).update(grade="advise")
    Nice.objects.create(
        job=job, cluster=cluster, original=7, before=7, asked=-340, asked_at=NOW,
        state=NiceState.SET,
    )  # fmt: skip
    Advice.objects.create(cluster=cluster, given_at=NOW, trouble="Slurm does not let nobody.")

    assert call(bob).get("/api/v1/clusters/atlas").json()["advice"] == {
        "jobs": 1, "by_hand": 0, "given_at": "2026-01-05T12:00:00Z", "trouble": "",
    }  # fmt: skip
    User.objects.filter(pk=alice.pk).update(is_admin=True)
    told = call(User.objects.get(pk=alice.pk)).get("/api/v1/clusters/atlas").json()["advice"]
    assert told["trouble"] == "Slurm does not let nobody."
    assert call(bob).get(f"/api/v1/jobs/{job.pk}").json()["advised"] == {
        "nice": -340, "original": 7, "at": "2026-01-05T12:00:00Z", "by_hand_at": None,
    }  # fmt: skip
