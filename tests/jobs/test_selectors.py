"""Who sees which jobs, what is told of others', and what can never fit."""

from __future__ import annotations

from typing import Any

import pytest

from apps.accounts.models import User
from apps.backends.models import Cluster, Node, Pool
from apps.jobs.selectors import (
    NeverFits,
    jobs_visible_to,
    may_cancel,
    may_hold,
    name_for,
    names_for,
    never_fits,
)
from apps.quotas.models import Quota
from apps.tenants.models import Tenant
from tests.factories import join, make_job, make_pool, make_tenant, make_user


def test_a_job_is_seen_from_its_team_and_from_above(
    vision: Tenant, pool: Pool, alice: User, bob: User, carol: User, root: User
) -> None:
    below = make_tenant("vision/perception")
    job = make_job(below, pool)
    dave = join(make_user("dave"), below)

    for user in (alice, bob, dave, root):
        assert list(jobs_visible_to(user)) == [job]
    for user in (carol, make_user("frank"), join(make_user("gone", is_active=False), below)):
        assert not jobs_visible_to(user).exists()


def test_who_may_cancel_and_hold(
    vision: Tenant, pool: Pool, alice: User, bob: User, carol: User, root: User
) -> None:
    job = make_job(vision, pool, by=bob)
    dave = join(make_user("dave"), vision)

    assert [may_cancel(user, job) for user in (root, alice, bob, dave, carol)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [may_hold(user, job) for user in (root, alice, bob, dave, carol)] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("named", "secret-project"),
        ("size", "a job of vision"),
        ("hidden", "a job of another tenant"),
    ],
)
def test_what_a_stranger_is_told(
    setting: str,
    told: str,
    settings: Any,
    pool: Pool,
    vision: Tenant,
    alice: User,
    carol: User,
) -> None:
    settings.OTHER_TENANTS = setting
    job = make_job(make_tenant("vision/perception"), pool, name="secret-project")

    assert name_for(carol, job) == told
    assert names_for(carol, [job]) == {job.pk: told}
    assert name_for(alice, job) == "secret-project"


def test_names_of_many_cost_one_query(
    vision: Tenant, pool: Pool, carol: User, django_assert_num_queries: Any
) -> None:
    jobs = [make_job(vision, pool) for _ in range(3)]

    with django_assert_num_queries(1):
        names_for(carol, jobs)


class TestNeverFits:
    def ask(self, tenant: Tenant, pool: Pool, **asked: Any) -> NeverFits | None:
        shape = {"size": 1, "gpus_per_member": 1, "topology": "none"} | asked
        return never_fits(tenant=tenant, pool=pool, **shape)

    def test_a_gang_of_the_whole_pool_fits(self, vision: Tenant, pool: Pool) -> None:
        assert self.ask(vision, pool, size=4, gpus_per_member=8) is None
        assert self.ask(vision, pool, size=32) is None

    def test_one_member_more_does_not(self, vision: Tenant, pool: Pool) -> None:
        assert self.ask(vision, pool, size=33) == NeverFits(needed=33, most=32)

    def test_a_member_lies_on_one_node(self, vision: Tenant, pool: Pool) -> None:
        assert self.ask(vision, pool, gpus_per_member=9) == NeverFits(needed=9, most=0)
        assert self.ask(vision, pool, size=5, gpus_per_member=5) == NeverFits(needed=25, most=20)

    def test_a_node_that_is_down_comes_back_and_one_that_is_gone_does_not(
        self, vision: Tenant, pool: Pool
    ) -> None:
        Node.objects.update(state="down")
        assert self.ask(vision, pool, size=32) is None

        Node.objects.filter(name="h100-n00").update(gone_at="2026-01-01T00:00:00Z")
        assert self.ask(vision, pool, size=32) == NeverFits(needed=32, most=24)

    def test_a_ceiling_above_it_counts(self, vision: Tenant, pool: Pool) -> None:
        below = make_tenant("vision/perception")
        Quota.objects.create(tenant=vision, pool=pool, ceiling=16)
        Quota.objects.create(tenant=below, pool=pool, ceiling=20)

        assert self.ask(below, pool, size=16) is None
        assert self.ask(below, pool, size=17) == NeverFits(needed=17, most=16, tenant="vision")

    def test_a_rack_must_take_all(self, vision: Tenant, cluster: Cluster) -> None:
        pool = make_pool(cluster, "a100", nodes=2, rack="r1")
        Node.objects.create(
            cluster=cluster, pool=pool, name="alone", gpus=12, state_since="2026-01-01T00:00:00Z"
        )

        assert self.ask(vision, pool, size=16, topology="rack") is None
        assert self.ask(vision, pool, size=17, topology="rack") == NeverFits(needed=17, most=16)
        assert self.ask(vision, pool, size=12, topology="nvlink") is None
        assert self.ask(vision, pool, size=13, topology="nvlink") == NeverFits(needed=13, most=12)

    def test_before_the_first_look_nothing_is_said(self, vision: Tenant, pool: Pool) -> None:
        pool.cluster.first_look_at = None

        assert self.ask(vision, pool, size=10_000) is None
