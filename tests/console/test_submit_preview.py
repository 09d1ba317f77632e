"""The preview beside the form: whom it would evict, after whom it waits, as each reader may know it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.backends.models import Cluster
from apps.jobs.models import Eviction, Job
from apps.jobs.services import cancel_job
from apps.ledger.prices import set_price
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.tenants.models import Tenant
from tests.factories import NOW, make_job
from tests.scheduling.playground import Playground

AsUser = Callable[[str], Client]


@pytest.fixture
def contested(play: Playground, world: SimpleNamespace) -> Playground:
    """Eight GPUs on two nodes, all of them nlp's for ten minutes."""
    PriorityClass.objects.create(name="urgent", priority=100)
    set_price(play.pool, per_gpu_hour=Decimal("3.00"), from_at=NOW, by=None, now=NOW, reason="test")
    make_job(
        world.tenants["nlp"], play.pool, by=world.people["alice"], name="secret", size=8,
        limit_seconds=36_000,
    )  # fmt: skip
    play.tick(0)
    play.tick(600)
    return play


def asks(play: Playground, client: Client, tenant: str, **more: Any) -> str:
    """Preview a gang of 8 of a tenant, and return the page."""
    typed = {
        "name": "try", "tenant": Tenant.objects.get(path=tenant).pk, "pool": play.pool.pk,
        "size": "8", "gpus_per_member": "1", "topology": "none", "limit": "1h", "nice": "",
        "priority_class": "", "runtime": "", "outcome": "", "checkpoint_every": "",
        "utilisation": "", "key": "k" * 32, "preview": "1",
    }  # fmt: skip
    answer = client.post("/jobs/new/", typed | more)
    assert answer.status_code == 200
    return answer.content.decode()


def urgent() -> str:
    return str(PriorityClass.objects.get(name="urgent").pk)


@pytest.mark.parametrize(
    ("mode", "said", "how"),
    [
        ("kill", "It would evict 1 job, and likely start by", "stopped at once"),
        ("checkpoint", "It would evict 1 job, and likely start by", "saves its work and leaves by"),
        ("demote", "It would demote 1 job, and wait for it.", "runs on; asked to leave from"),
    ],
)
def test_whom_it_would_evict_is_said_with_what_is_lost_at_most(
    mode: str, said: str, how: str, contested: Playground, as_user: AsUser
) -> None:
    ClusterPolicy.objects.create(cluster=contested.cluster, preemption="priority", mode=mode)

    hers = asks(contested, as_user("alice"), "nlp", priority_class=urgent())
    others = asks(contested, as_user("vera"), "vision", priority_class=urgent())

    for html in (hers, others):
        assert said in html
        assert how in html
        # Eight GPUs for ten minutes since it started.
        assert "1.33 GPUh" in html
    assert "secret" in hers
    assert "$4.00" in hers
    assert "secret" not in others
    assert "a job of nlp" in others
    assert "$4.00" not in others
    assert not Eviction.objects.exists()


SAVED = "Work that is saved before its job leaves is not lost."


@pytest.mark.parametrize(("mode", "saves"), [("kill", False), ("checkpoint", True)])
def test_work_is_said_to_be_saved_only_where_it_can_be(
    mode: str, saves: bool, contested: Playground, as_user: AsUser
) -> None:
    ClusterPolicy.objects.create(cluster=contested.cluster, preemption="priority", mode=mode)

    html = asks(contested, as_user("vera"), "vision", priority_class=urgent())

    assert "Together 1.33 GPUh of work since their last checkpoints." in html
    assert (SAVED in html) is saves


@pytest.mark.parametrize(
    ("size", "said"), [("2", "It would shrink 1 job,"), ("8", "It would evict 1 job,")]
)
def test_a_gang_that_only_shrinks_is_not_said_to_be_evicted(
    size: str, said: str, contested: Playground, as_user: AsUser
) -> None:
    ClusterPolicy.objects.create(
        cluster=contested.cluster, preemption="priority", mode="checkpoint"
    )
    Job.objects.update(min_size=4)

    html = asks(contested, as_user("vera"), "vision", priority_class=urgent(), size=size)

    assert f"{said} and likely start by" in html


def test_who_waits_is_told_after_whom_and_until_when(
    contested: Playground, as_user: AsUser
) -> None:
    alice, nlp = Job.objects.get().submitted_by, Tenant.objects.get(path="nlp")
    for number in range(7):
        make_job(
            nlp,
            contested.pool,
            by=alice,
            name=f"first-{number}",
            size=8,
            minutes=10,
            limit_seconds=60,
        )

    html = asks(contested, as_user("alice"), "nlp")
    others = asks(contested, as_user("vera"), "vision", nice="1000000")

    assert "It would wait, likely until" in html
    assert "if all that runs or waits before it uses all of its limit" in html
    assert "8 of 8 jobs in line" in html
    assert html.index("first-0") < html.index("first-4")
    assert "first-5" not in html
    assert "and 2 jobs more" in html
    # DOMAIN 22: of another team's job its size is told, and that is all.
    assert others.count('<span class="meta">· 8 GPUs</span>') == 5
    assert "first-" not in others


def test_what_would_start_on_a_cluster_that_is_silent_is_not_said_to_start_now(
    world: SimpleNamespace, now: datetime, as_user: AsUser
) -> None:
    asked = {"pool": world.pool.pk, "size": "2", "gpus_per_member": "8"}
    there = SimpleNamespace(pool=world.pool)

    fresh = asks(there, as_user("alice"), "nlp", **asked)
    Cluster.objects.filter(pk=world.cluster.pk).update(observed_at=now - timedelta(hours=1))
    silent = asks(there, as_user("alice"), "nlp", **asked)

    assert "It would start now, on 2 nodes." in fresh
    assert "has not reported" not in fresh
    assert "It would start once atlas reports again, on 2 nodes." in silent
    assert "atlas has not reported for 1 h" in silent
    assert "no instant is in sight" in silent


def test_on_hold_and_too_large_is_said_to_be_too_large(
    contested: Playground, as_user: AsUser
) -> None:
    html = asks(contested, as_user("vera"), "vision", size="9", held="on")

    assert "It would never start." in html
    assert "Never fits: needs <b>9 GPUs</b>; gpu can give 8." in html
    assert "Release it and it can run" not in html


def test_more_victims_and_more_ahead_cost_no_more_queries(
    contested: Playground, world: SimpleNamespace, as_user: AsUser
) -> None:
    ClusterPolicy.objects.create(cluster=contested.cluster, preemption="priority", mode="kill")
    client = as_user("alice")

    def queries(said: str) -> int:
        for _ in range(2):  # what is known once a look is read by the first
            with CaptureQueriesContext(connection) as asked:
                assert said in asks(contested, client, "nlp", priority_class=urgent())
        return len(asked)

    one = queries("It would evict 1 job,")
    cancel_job(Job.objects.get(), by=None, now=contested.at(600))
    contested.tick(610)
    contested.tick(620)
    for number in range(8):
        make_job(world.tenants["nlp"], contested.pool, name=f"low-{number}", limit_seconds=36_000)
    contested.tick(630)
    contested.tick(660)

    assert queries("It would evict 8 jobs,") == one
