"""Promises and weights: an admin changes them with a reason, who sees the tenant reads them."""

from __future__ import annotations

from typing import Any

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Cluster, Pool
from apps.quotas.models import Quota
from apps.tenants.models import Tenant
from tests.api.conftest import Caller, refusal
from tests.factories import make_tenant

QUOTA = "/api/v1/tenants/vision/quotas/atlas/h100"
WEIGHT = "/api/v1/tenants/vision/weight"
ASKED = {"guarantee": 8, "ceiling": 16, "weight": None, "reason": "paid for"}


def test_an_admin_promises_with_a_reason(
    root: User, bob: User, call: Caller, pool: Pool, vision: Tenant
) -> None:
    before = call(bob).get(QUOTA).json()
    told = call(root).put(QUOTA, ASKED)

    shown = {"tenant": "vision", "cluster": "atlas", "pool": "h100", "weight": None}
    assert before == shown | {"guarantee": 0, "ceiling": None}
    assert told.json() == call(bob).get(QUOTA).json() == shown | {"guarantee": 8, "ceiling": 16}
    entry = Entry.objects.get(verb="quota changed")
    assert (entry.actor, entry.token_name, entry.reason) == (root, "test", "paid for")
    assert Cluster.objects.get().tick_requested_at is not None


def test_an_admin_weighs_with_a_reason(root: User, call: Caller, pool: Pool) -> None:
    make_tenant("vision")
    make_tenant("vision/a b")
    told = call(root).put("/api/v1/tenants/vision/a%20b/weight", {"weight": 2.5, "reason": "grew"})

    assert told.json() == {"tenant": "vision/a b", "weight": 2.5}
    assert Entry.objects.get(verb="weight changed").reason == "grew"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reason": ""}, "reason"),
        ({"guarantee": 17}, "guarantee"),
        ({"guarantee": "8"}, "guarantee"),
        ({"guarantee": 33, "ceiling": None}, "guarantee"),
        ({"ceiling": -1}, "ceiling"),
        ({"weight": True}, "weight"),
        ({"weight": -1}, "weight"),
        ({"weight": 10**400}, "weight"),
        ({"price": 1}, "price"),
    ],
)
def test_a_promise_that_cannot_be_is_refused(
    changes: dict[str, Any], field: str, root: User, call: Caller, pool: Pool, vision: Tenant
) -> None:
    assert refusal(call(root).put(QUOTA, ASKED | changes), 400)["field"] == field
    assert not Quota.objects.exists()


@pytest.mark.parametrize("weight", [-1, "2", None])
def test_a_weight_that_cannot_be_is_refused(
    weight: Any, root: User, call: Caller, vision: Tenant
) -> None:
    asked = {"weight": weight, "reason": "grew"}

    assert refusal(call(root).put(WEIGHT, asked), 400)["field"] == "weight"


def test_others_read_what_they_see_and_change_nothing(
    alice: User, carol: User, call: Caller, pool: Pool, vision: Tenant
) -> None:
    for address, asked in ((QUOTA, ASKED), (WEIGHT, {"weight": 2, "reason": "more"})):
        refusal(call(alice).put(address, asked), 403)
        refusal(call(carol).put(address, asked), 404)
    refusal(call(carol).get(QUOTA), 404)
    vision.refresh_from_db()
    assert (vision.weight, Quota.objects.count()) == (1.0, 0)


@pytest.mark.parametrize(
    "address",
    [
        "/api/v1/tenants/nobody/quotas/atlas/h100",
        "/api/v1/tenants/vision/quotas/atlas/a100",
        "/api/v1/tenants/vision/quotas/nowhere/h100",
        "/api/v1/tenants/vis%00ion/quotas/atlas/h100",
        "/api/v1/tenants/vision/quotas/atlas/h%00",
        f"/api/v1/tenants/{'a/' * 2_000}b/quotas/atlas/h100",
    ],
)
def test_what_there_is_not_is_not_found(
    address: str, root: User, call: Caller, pool: Pool, vision: Tenant
) -> None:
    refusal(call(root).get(address), 404)
