"""A cluster's own accounts: an admin is shown all, others their tenants', with both sides' numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Cluster, Pool
from apps.backends.port import SeenAccount, SeenQos, SeenUser
from apps.quotas.account_users import packed
from apps.quotas.accounts import take_in
from apps.quotas.models import AccountsLook, AccountValue
from apps.scheduling.models import Standing
from apps.tenants.models import Tenant
from tests.api.conftest import Caller, refusal
from tests.factories import NOW

HIGH = SeenQos("high", 10, (), ("low",), "requeue", 90, "gres/gpu=16", "", "", 172_800)
ADDRESS = "/api/v1/clusters/atlas/accounts"


@pytest.fixture
def read(cluster: Cluster, pool: Pool, vision: Tenant) -> Cluster:
    """Accounts were read: cv is vision's, and below it stands one that is nobody's."""
    Cluster.objects.filter(pk=cluster.pk).update(options={"accounts": {"vision": "cv"}})
    cluster.refresh_from_db()
    seen = [
        SeenAccount("a-lab", "cv", None, None, users=3),
        SeenAccount(
            "cv", "root", 30, 8, users=2, people=(SeenUser("ana", None, 4, 2, 12.0, 1.0, 1.0, 0.5),), raw_usage=12.0, norm_shares=0.6, effective_usage=0.2,
            level=3.0, fair_share=0.5,
        ),
        SeenAccount("root", "", 1, None),
    ]  # fmt: skip
    take_in(cluster, seen, now=NOW)
    AccountsLook.objects.create(
        cluster=cluster, read_at=NOW, trouble="gone for a while", qos=packed([HIGH])
    )
    Standing.objects.create(
        cluster=cluster, tenant=vision, tick_id=1, usage=1.0, share=0.5, usage_share=0.25,
        level=2.0, factor=1.0,
    )  # fmt: skip
    return cluster


def test_an_admin_is_shown_the_tree_with_both_sides_numbers(
    root: User, call: Caller, read: Cluster
) -> None:
    told = call(root).get(ADDRESS).json()

    assert (told["cluster"], told["trouble"]) == ("atlas", "gone for a while")
    assert [(one["name"], one["parent"], one["users"]) for one in told["accounts"]] == [
        ("root", "", 0), ("cv", "root", 2), ("a-lab", "cv", 3),
    ]  # fmt: skip
    cv: dict[str, Any] = told["accounts"][1]
    assert (cv["tenant"], cv["state"], cv["raw_usage"]) == ("vision", "taken", 12.0)
    assert cv["theirs"] == {"share": 0.6, "usage_share": 0.2, "level": 3.0, "factor": 0.5}
    assert cv["ours"] == {"share": 0.5, "usage_share": 0.25, "level": 2.0, "factor": 1.0}
    assert cv["difference"]["share"] == pytest.approx(-0.1)
    assert cv["difference"]["usage_share"] == pytest.approx(0.05)
    shares, gpus, guarantee = cv["values"]
    assert (shares["what"], shares["theirs"], shares["ours"]) == ("shares", 30, None)
    assert gpus["sentence"] == "atlas has at most 8 GPUs; nothing else is wanted here."
    assert (guarantee["what"], guarantee["pool"], gpus["pool"]) == ("guarantee", "h100", None)
    assert guarantee["sentence"] == (
        "atlas has no guarantee noted for h100; nothing else is wanted here."
    )
    lab = told["accounts"][2]
    assert lab["tenant"] is None
    assert lab["difference"] == dict.fromkeys(("share", "usage_share", "level", "factor"))
    assert lab["values"][0]["sentence"].startswith("atlas has its parent's shares;")


def test_others_are_shown_their_tenants_accounts_and_no_trouble(
    bob: User, carol: User, call: Caller, read: Cluster
) -> None:
    mine, theirs = call(bob).get(ADDRESS).json(), call(carol).get(ADDRESS).json()

    assert [one["name"] for one in mine["accounts"]] == ["cv"]
    assert mine["trouble"] == theirs["trouble"] == ""
    assert theirs["accounts"] == []
    assert theirs["qos"] == mine["qos"] == [asdict(HIGH) | {"flags": [], "preempts": ["low"]}]


def test_who_sees_an_account_sees_its_users(bob: User, call: Caller, read: Cluster) -> None:
    (cv,) = call(bob).get(ADDRESS).json()["accounts"]

    assert cv["people"] == [
        {"name": "ana", "shares": None, "gpu_limit": 4, "gpus_per_job": 2, "raw_usage": 12.0,
         "norm_shares": 1.0, "effective_usage": 1.0, "fair_share": 0.5},
    ]  # fmt: skip
    assert (cv["users"], cv["people_left"]) == (2, 1)


def test_a_cluster_that_was_never_read_has_none(root: User, call: Caller, cluster: Cluster) -> None:
    told = call(root).get(ADDRESS).json()

    assert told == {"cluster": "atlas", "read_at": None, "trouble": "", "accounts": [],
                    "qos": []}  # fmt: skip
    refusal(call(root).get("/api/v1/clusters/nowhere/accounts"), 404)


class TestSettling:
    """Deciding on an account that drifted."""

    @pytest.fixture
    def drifted(self, read: Cluster) -> Cluster:
        AccountValue.objects.filter(account__name="cv", what="shares").update(
            is_wanted=True, wanted=45, wanted_at=NOW, met_at=NOW, drifted_at=NOW
        )
        return read

    def test_an_admin_decides_with_a_reason(
        self, root: User, call: Caller, drifted: Cluster
    ) -> None:
        before = call(root).get(ADDRESS).json()["accounts"][1]
        asked = {"account": "cv", "keep": "ours", "reason": "agreed"}
        told = call(root).post(ADDRESS, asked)

        assert (before["state"], before["values"][0]["since"]) == (
            "drifted",
            "2026-01-05T12:00:00Z",
        )
        assert before["values"][0]["sentence"] == (
            "Somebody changed it on atlas: it has 30 shares; wanted here is 45 shares."
        )
        assert told.json()["accounts"][1]["state"] == "waiting"
        assert Entry.objects.get(verb="account kept ours").reason == "agreed"

    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({"reason": ""}, 400),
            ({"keep": "both"}, 400),
            ({"account": "nobody"}, 404),
            ({"account": "root"}, 409),
            ({"shares": 5}, 400),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, changes: dict[str, Any], status: int, root: User, call: Caller, drifted: Cluster
    ) -> None:
        asked = {"account": "cv", "keep": "ours", "reason": "agreed"} | changes

        refusal(call(root).post(ADDRESS, asked), status)

    def test_a_lead_decides_nothing(self, alice: User, call: Caller, drifted: Cluster) -> None:
        asked = {"account": "cv", "keep": "ours", "reason": "agreed"}

        assert refusal(call(alice).post(ADDRESS, asked), 403)["code"] == "forbidden"
        assert AccountValue.objects.get(account__name="cv", what="shares").drifted_at == NOW
