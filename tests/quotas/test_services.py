"""Promises that can be kept, and the sentence for those that cannot."""

from __future__ import annotations

from typing import Any

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Node, Pool
from apps.common.errors import Invalid
from apps.quotas.models import Quota
from apps.quotas.selectors import quotas_visible_to
from apps.quotas.services import QuotaExceeded, set_quota
from apps.tenants.models import Tenant
from tests.factories import NOW, make_tenant


def promise(tenant: Tenant, pool: Pool, guarantee: Any = 0, **asked: Any) -> Quota:
    """Promise GPUs, in the name of nobody."""
    options: dict[str, Any] = {"ceiling": None, "weight": None, "by": None, "reason": ""}
    return set_quota(tenant, pool, guarantee=guarantee, now=NOW, **(options | asked))


@pytest.fixture
def perception(vision: Tenant) -> Tenant:
    """A team below vision."""
    return make_tenant("vision/perception")


def test_a_promise_is_kept_and_written_down(vision: Tenant, pool: Pool, root: User) -> None:
    promise(vision, pool, 8, ceiling=16, weight=3.0, by=root, reason="paid for")
    promise(vision, pool, 12, ceiling=16, weight=3.0, by=root, reason="more")

    quota = Quota.objects.get()
    assert (quota.guarantee, quota.ceiling, quota.weight) == (12, 16, 3.0)
    entry = Entry.objects.filter(verb="quota changed").first()
    assert entry is not None
    assert (entry.changes, entry.reason, entry.actor) == ({"guarantee": [8, 12]}, "more", root)


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("guarantee", {"guarantee": -1}),
        ("guarantee", {"guarantee": 2**31}),
        ("guarantee", {"guarantee": 1.5}),
        ("guarantee", {"guarantee": True}),
        ("guarantee", {"guarantee": 9, "ceiling": 8}),
        ("ceiling", {"ceiling": -1}),
        ("weight", {"weight": -1}),
        ("weight", {"weight": float("nan")}),
    ],
)
def test_a_bad_value_is_refused_by_name(
    field: str, asked: dict[str, Any], vision: Tenant, pool: Pool
) -> None:
    with pytest.raises(Invalid) as refusal:
        promise(vision, pool, **asked)

    assert refusal.value.field == field
    assert not Quota.objects.exists()


def test_a_person_must_give_a_reason(vision: Tenant, pool: Pool, root: User) -> None:
    with pytest.raises(Invalid) as refusal:
        promise(vision, pool, 8, by=root, reason="  ")

    assert refusal.value.field == "reason"


def test_a_pool_cannot_promise_more_than_it_has(vision: Tenant, nlp: Tenant, pool: Pool) -> None:
    promise(vision, pool, 20)
    promise(nlp, pool, 12)  # 32 of 32

    with pytest.raises(QuotaExceeded) as refusal:
        promise(nlp, pool, 13)

    assert refusal.value.message == (
        "Guarantees on h100 would be 33, above its 32 GPUs. Lower one by 1."
    )
    assert refusal.value.field == "guarantee"
    assert Quota.objects.get(tenant=nlp).guarantee == 12


def test_a_pool_nobody_has_seen_yet_promises_anything(vision: Tenant, pool: Pool) -> None:
    Node.objects.all().delete()

    assert promise(vision, pool, 1_000).guarantee == 1_000


def test_children_share_their_parents_promise(
    vision: Tenant, perception: Tenant, pool: Pool
) -> None:
    other = make_tenant("vision/generative")
    promise(vision, pool, 16)
    promise(perception, pool, 10)

    with pytest.raises(QuotaExceeded) as refusal:
        promise(other, pool, 7)

    # DESIGN §7, sentence 20.
    assert refusal.value.message == (
        "Guarantees of vision's children would be 17, above vision's own 16. Lower one, or raise"
        " vision first."
    )
    promise(other, pool, 6)


def test_a_parent_cannot_promise_less_than_its_children(
    vision: Tenant, perception: Tenant, pool: Pool
) -> None:
    promise(perception, pool, 10)

    with pytest.raises(QuotaExceeded):
        promise(vision, pool, 9)
    promise(vision, pool, 0)  # none of its own: its children's sum


def test_the_promise_of_a_grandchild_counts_at_every_level(
    vision: Tenant, perception: Tenant, pool: Pool
) -> None:
    deep = make_tenant("vision/perception/radar")
    promise(vision, pool, 8)

    with pytest.raises(QuotaExceeded, match="vision's own 8"):
        promise(deep, pool, 9)


def test_a_promise_stays_below_every_ceiling_above(
    vision: Tenant, perception: Tenant, pool: Pool
) -> None:
    promise(vision, pool, ceiling=6)

    with pytest.raises(QuotaExceeded, match="above its ceiling of 6"):
        promise(perception, pool, 7)


def test_an_archived_tenants_promise_is_free_again(vision: Tenant, nlp: Tenant, pool: Pool) -> None:
    promise(vision, pool, 32)
    Tenant.objects.filter(pk=vision.pk).update(archived_at=NOW)

    assert promise(nlp, pool, 32).guarantee == 32


def test_who_sees_a_quota(
    vision: Tenant, pool: Pool, alice: User, bob: User, carol: User, root: User
) -> None:
    promise(vision, pool, 8)

    assert [quotas_visible_to(u).count() for u in (root, alice, bob, carol)] == [1, 1, 1, 0]
