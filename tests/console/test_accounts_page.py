"""A cluster's accounts beside ours: who sees which, what differs, and how an admin decides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.backends.models import Cluster
from apps.backends.services import add_cluster
from apps.quotas.models import Account, AccountsLook, AccountValue, What
from apps.scheduling.models import Standing

AsUser = Callable[[str], Client]
PAGE = "/clusters/boreas/accounts/"


@pytest.fixture
def boreas(world: SimpleNamespace, now: datetime) -> Cluster:
    """A Slurm cluster with three accounts: one in step, one drifted, one that is nobody's."""
    cluster = add_cluster(
        "boreas", kind="slurm", now=now, grade="drive", options={"accounts": {"nlp": "language"}}
    )
    AccountsLook.objects.create(cluster=cluster, read_at=now, tried_at=now)

    def account(name: str, parent: str, tenant: str | None, share: float) -> Account:
        return Account.objects.create(
            cluster=cluster, name=name, parent=parent, seen_at=now, norm_shares=share,
            effective_usage=0.25, fair_share=0.5,
            tenant=None if tenant is None else world.tenants[tenant],
        )  # fmt: skip

    account("top", "", None, 1.0)
    language, vision = account("language", "top", "nlp", 0.4), account("cv", "top", "vision", 0.6)
    wanted = {"is_wanted": True, "base": 1.0, "wanted_at": now, "met_at": now}
    AccountValue.objects.create(
        account=language, what=What.SHARES, seen=9, wanted=4, drifted_at=now, **wanted
    )
    AccountValue.objects.create(account=vision, what=What.SHARES, seen=6, wanted=6, **wanted)
    Standing.objects.create(
        cluster=cluster, tenant=world.tenants["vision"], tick_id=1, usage=1, share=0.6,
        usage_share=0.25, factor=0.75,
    )  # fmt: skip
    return cluster


def html_of(client: Client, url: str = PAGE) -> str:
    return client.get(url).content.decode().replace("\xa0", " ")


def test_an_admin_sees_all_with_what_differs(boreas: Cluster, as_user: AsUser) -> None:
    answer = as_user("admin").get(PAGE)

    assert "3 accounts; 1 not as wanted here." in answer.content.decode().replace("\xa0", " ")
    lines = {line.row.name: line for line in answer.context["lines"]}
    # The tree, parents first.
    assert list(lines) == ["top", "cv", "language"]
    cv, language = lines["cv"], lines["language"]
    assert (cv.share.theirs, cv.share.ours, cv.share.off) == ("0.600000", "0.600000", False)
    assert (cv.factor.theirs, cv.factor.ours, cv.factor.off) == ("0.500000", "0.750000", True)
    assert (cv.label, cv.apart) == ("in step", False)
    assert (language.label, language.shares, language.share.ours) == ("drifted", "9", "–")
    assert language.sentences == (
        "Somebody changed it on boreas: it has 9 shares; wanted here is 4 shares.",
    )


def test_others_see_their_own_and_decide_on_none(boreas: Cluster, as_user: AsUser) -> None:
    page = html_of(as_user("alice"))

    assert "language" in page
    assert "cv" not in page
    assert "Decide on" not in page
    assert as_user("alice").get(f"{PAGE}language/").status_code == 403
    assert "None of its accounts is one of yours." in html_of(as_user("carol"))


def test_the_export_has_both_sides(boreas: Cluster, as_user: AsUser) -> None:
    rows = as_user("admin").get("/clusters/boreas/accounts.json").json()["rows"]

    cv = next(row for row in rows if row["account"] == "cv")
    assert (cv["factor_theirs"], cv["factor_ours"], cv["shares"]) == (0.5, 0.75, 6)


@pytest.mark.parametrize(("keep", "wanted"), [("theirs", False), ("ours", True)])
def test_an_admin_decides_whose_numbers_hold(
    boreas: Cluster, as_user: AsUser, keep: str, wanted: bool
) -> None:
    client = as_user("admin")
    assert "Somebody changed it on boreas" in html_of(client, f"{PAGE}language/")

    refused = client.post(f"{PAGE}language/", {"keep": keep})
    assert "reason" in refused.context["form"].errors
    client.post(f"{PAGE}language/", {"keep": keep, "reason": "agreed with their operator"})

    value = AccountValue.objects.get(account__name="language", what=What.SHARES)
    assert (value.is_wanted, value.drifted_at) == (wanted, None)
    assert Entry.objects.latest("pk").reason == "agreed with their operator"
    assert client.get(f"{PAGE}nowhere/").status_code == 404


def test_what_went_wrong_is_for_admins(boreas: Cluster, as_user: AsUser, now: datetime) -> None:
    AccountsLook.objects.update(trouble="slurmdbd on db1 is down", read_at=now - timedelta(hours=1))

    assert "slurmdbd on db1 is down" in html_of(as_user("admin"))
    assert "db1" not in html_of(as_user("alice"))


def test_a_cluster_whose_accounts_were_never_read_says_so(
    world: SimpleNamespace, as_user: AsUser
) -> None:
    assert "have not been read yet" in html_of(as_user("bob"), "/clusters/atlas/accounts/")
