"""What a submission names, read at once: as far as its submitter sees, and as it stands now."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.jobs.models import Job
from apps.jobs.places import Place, find_place
from apps.jobs.selectors import never_fits
from apps.jobs.services import JobSpec, submit_job
from apps.queues.models import PriorityClass, Queue
from apps.quotas.models import Quota
from apps.tenants.models import Tenant
from apps.tenants.selectors import tenant_covered, tenants_visible_to
from tests.factories import NOW, join, make_cluster, make_job, make_pool, make_tenant, make_user


def place(user: Any, tenant: str = "vision", **named: Any) -> Place | None:
    """What a submission to h100 on atlas finds."""
    named = {"cluster": "atlas", "pool": "h100", "priority_class": None} | named
    return find_place(user, tenant=tenant, **named)


@pytest.fixture
def tree(vision: Tenant, nlp: Tenant) -> list[str]:
    """Tenants whose names begin alike, or match as a pattern would."""
    paths = ["vision/perception", "vision/perception/lidar", "vision-2", "v_sion", "%"]
    for path in paths:
        make_tenant(path)
    return ["vision", "nlp", *paths, "nowhere", "vision/nowhere"]


def test_a_tenant_is_found_by_those_who_see_it(
    tree: list[str], pool: Pool, bob: User, carol: User, root: User
) -> None:
    lidar = join(make_user("dave"), Tenant.objects.get(path="vision/perception/lidar"))
    odd = join(
        join(make_user("erin"), Tenant.objects.get(path="v_sion")), Tenant.objects.get(path="%")
    )
    gone = join(make_user("gone", is_active=False), Tenant.objects.get(path="vision"))
    fired = make_user("fired", is_admin=True, is_active=False)

    for user in (bob, carol, root, lidar, odd, gone, fired, make_user("new"), AnonymousUser()):
        seen = set(tenants_visible_to(user).values_list("path", flat=True))
        for path in tree:
            covered, found = tenant_covered(user, path), place(user, path)
            assert (covered.path if covered else None) == (path if path in seen else None)
            assert (found.tenant if found else None) == covered


def test_it_is_all_there_is(bob: User, pool: Pool, django_assert_num_queries: Any) -> None:
    make_job(Tenant.objects.get(path="vision"), pool)
    PriorityClass.objects.create(name="urgent", priority=5)

    with django_assert_num_queries(1):
        found = place(bob, priority_class="urgent")
        assert found is not None
        assert (found.pool, found.pool.cluster) == (pool, pool.cluster)

    assert found.queue == Queue.objects.get()
    assert found.priority_class == PriorityClass.objects.get(name="urgent")
    usual = place(bob)
    assert usual is not None
    assert usual.priority_class == PriorityClass.objects.get(name="normal")


def test_what_is_not_there_yet_is_none(bob: User, pool: Pool) -> None:
    found = place(bob, priority_class="urgent")

    assert found is not None
    assert (found.queue, found.priority_class, found.ceiling) == (None, None, None)


@pytest.mark.parametrize("named", [{"cluster": "boreas"}, {"cluster": "Atlas"}, {"pool": "a100"}])
def test_a_pool_of_another_cluster_is_not_found(
    named: dict[str, str], bob: User, pool: Pool
) -> None:
    make_pool(make_cluster("caelum"), "a100")

    assert place(bob, **named) is None


def test_an_archived_cluster_is_not_found(bob: User, pool: Pool) -> None:
    Cluster.objects.update(archived_at=NOW)

    assert place(bob) is None


def test_the_lowest_ceiling_above_counts(
    bob: User, pool: Pool, tree: list[str], cluster: Cluster
) -> None:
    other = make_pool(cluster, "a100")
    for path, where, ceiling in (
        ("vision", pool, 20),
        ("vision/perception", pool, None),
        ("vision/perception/lidar", pool, 24),
        ("vision", other, 1),
        ("nlp", pool, 2),
    ):
        Quota.objects.create(tenant=Tenant.objects.get(path=path), pool=where, ceiling=ceiling)

    found = place(bob, "vision/perception/lidar")
    assert found is not None
    assert found.ceiling == 20
    for size in (1, 2, 3, 4, 5):
        asked = {"size": size, "gpus_per_member": 8, "topology": "none"}
        told = never_fits(tenant=found.tenant, pool=pool, ceiling=found.ceiling, **asked)
        assert told == never_fits(tenant=found.tenant, pool=pool, **asked)
        assert (told is None) == (size <= 2)


def test_a_known_place_makes_the_same_job(bob: User, pool: Pool) -> None:
    for _ in range(2):  # the first makes the queue and the class
        found = place(bob)
        assert found is not None
        spec = JobSpec(
            tenant=found.tenant,
            cluster=pool.cluster,
            pool=pool,
            name="a",
            size=2,
            gpus_per_member=8,
        )
        submit_job(spec, by=bob, now=NOW)
        submit_job(spec, by=bob, now=NOW, place=found)

    columns = [field.name for field in Job._meta.fields if field.name != "id"]
    assert Job.objects.count() == 4
    assert len(set(map(str, Job.objects.values(*columns)))) == 1
    assert Queue.objects.count() == PriorityClass.objects.count() == 1
