"""A small installation for the pages: who reads, one cluster, a line of judged jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.accounts.models import User
from apps.backends.models import Cluster, Node, NodeState, Pool
from apps.jobs.models import Job
from apps.queues.models import PriorityClass
from apps.scheduling.models import Tick, Verdict
from apps.tenants.models import Membership, Tenant


@pytest.fixture
def now() -> datetime:
    return timezone.now().replace(microsecond=0)


def _tenant(path: str, now: datetime, parent: Tenant | None = None) -> Tenant:
    return Tenant.objects.create(
        parent=parent, name=path.rpartition("/")[2], path=path, created_at=now
    )


@pytest.fixture
def world(db: None, now: datetime) -> SimpleNamespace:
    """Tenants, people, and one cluster that was looked at just now."""
    nlp, vision = _tenant("nlp", now), _tenant("vision", now)
    tenants = {
        "nlp": nlp,
        "vision": vision,
        "nlp/alignment": _tenant("nlp/alignment", now, nlp),
        "vision/generative": _tenant("vision/generative", now, vision),
    }
    people = {
        name: User.objects.create(
            username=name,
            is_admin=name == "admin",
            is_staff=name == "admin",
            is_superuser=name == "admin",
        )
        for name in ("admin", "alice", "bob", "carol", "vera")
    }
    for name, path, role in (
        ("alice", "nlp", "lead"),
        ("bob", "nlp/alignment", "member"),
        ("vera", "vision", "lead"),
    ):
        Membership.objects.create(user=people[name], tenant=tenants[path], role=role)
    cluster = Cluster.objects.create(
        name="atlas",
        kind="simulator",
        grade="drive",
        created_at=now,
        first_look_at=now - timedelta(days=1),
        observed_at=now,
    )
    pool = Pool.objects.create(cluster=cluster, name="h100")
    for number in range(4):
        Node.objects.create(
            cluster=cluster,
            pool=pool,
            name=f"gpu-n{number:02}",
            gpus=8,
            state=NodeState.UP,
            state_since=now,
        )
    return SimpleNamespace(
        tenants=tenants, people=people, cluster=cluster, pool=pool,
        tick=Tick.objects.create(cluster=cluster, at=now, fence=1, keep_until=now + timedelta(days=1)),
        usual=PriorityClass.objects.create(name="normal"),
    )  # fmt: skip


@pytest.fixture
def make_job(world: SimpleNamespace, now: datetime) -> Callable[..., Job]:
    """Make a job of a tenant; with ``place`` it is judged by the newest tick."""

    # Far from any other number of a page.
    numbers = count(48_101)

    def make(
        name: str = "train", tenant: str = "nlp", *, place: int | None = None, **more: Any
    ) -> Job:
        verdict = more.pop("verdict", {})
        values: dict[str, Any] = {
            "id": next(numbers),
            "name": name,
            "tenant": world.tenants[tenant],
            "cluster": world.cluster,
            "pool": world.pool,
            "priority_class": world.usual,
            "submitted_at": now - timedelta(hours=1),
            "state_since": now - timedelta(hours=1),
            "size": 4,
            "min_size": 4,
            "gpus_per_member": 8,
        }
        job = Job.objects.create(**(values | more))
        if place is not None:
            columns: dict[str, Any] = {
                "code": "capacity", "needed": 32, "available": 0, "priority": 3912.0,
                "term_fair_share": 2727.0, "term_age": 60.0, "term_size": 125.0,
                "term_queue": 1000.0, "term_class": 0.0, "term_boost": 0.0, "term_nice": 0.0,
            }  # fmt: skip
            Verdict.objects.create(
                job=job,
                cluster=world.cluster,
                tick_id=world.tick.pk,
                position=place,
                **(columns | verdict),
            )
        return job

    return make


@pytest.fixture
def as_user(world: SimpleNamespace) -> Callable[[str], Client]:
    """Log somebody in."""

    def client_of(name: str) -> Client:
        client = Client()
        client.force_login(world.people[name])
        return client

    return client_of
