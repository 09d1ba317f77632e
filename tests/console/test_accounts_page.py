"""A cluster's accounts beside ours: who sees which, what differs, and how an admin decides."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.audit.models import Entry
from apps.backends.models import Cluster
from apps.backends.port import SeenQos, SeenUser
from apps.backends.services import add_cluster
from apps.console.account_lines import MOST_SHOWN
from apps.quotas.account_users import packed
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
    ranks = [
        SeenQos("high", 10, ("DenyOnLimit",), ("low",), "requeue", 90, "gres/gpu=16", "gres/gpu=8",
                "gres/gpu=4", 172_800),
        SeenQos("low", 5, preempt_mode="cluster"),
    ]  # fmt: skip
    AccountsLook.objects.create(cluster=cluster, read_at=now, tried_at=now, qos=packed(ranks))

    def account(name: str, parent: str, tenant: str | None, share: float) -> Account:
        return Account.objects.create(
            cluster=cluster, name=name, parent=parent, seen_at=now, norm_shares=share,
            effective_usage=0.25, fair_share=0.5,
            tenant=None if tenant is None else world.tenants[tenant],
        )  # fmt: skip

    account("top", "", None, 1.0)
    language, vision = account("language", "top", "nlp", 0.4), account("cv", "top", "vision", 0.6)
    vision.users, vision.people = 2, packed([SeenUser("zoe", 3, 4, 2, 600.0, 0.75, 1.0, 0.5)])
    vision.save()
    language.users, language.people = 1, packed([SeenUser("yan", None)])
    language.save()
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


def cells(page: str, table: str) -> list[list[str]]:
    """Return what stands in each body row of the tables of a class."""
    bodies = re.findall(rf'<table class="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = [row for body in bodies for row in body.split("</tr>") if "<th" in row]
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in rows
    ]


def test_the_users_of_an_account_and_the_qos_are_tables(boreas: Cluster, as_user: AsUser) -> None:
    page = html_of(as_user("admin"))

    assert cells(page, "account-users") == [
        ["zoe", "3", "4", "2", "600", "0.750000", "1.000000", "0.500000"],
        ["yan", "parent", *"––––––"],
    ]
    assert page.count("and 1 more with no more usage") == 1
    assert cells(page, "qos") == [
        ["high", "10", "low", "requeue, after 1 min 30 s", "gres/gpu=16", "gres/gpu=8",
         "gres/gpu=4", "2 d", "DenyOnLimit"],
        ["low", "5", "–", "as the cluster has it", *"–––––"],
    ]  # fmt: skip
    assert "the page of a job names its own" in page
    assert cells(html_of(as_user("carol")), "qos") == cells(page, "qos")


def test_more_users_are_no_more_queries(boreas: Cluster, as_user: AsUser) -> None:
    client = as_user("admin")
    client.get(PAGE)
    with CaptureQueriesContext(connection) as few:
        client.get(PAGE)
    many = packed(SeenUser(f"u{at}", 1) for at in range(200))
    Account.objects.update(people=many, users=200)
    with CaptureQueriesContext(connection) as more:
        page = html_of(client)

    assert len(more) == len(few)
    assert len(cells(page, "account-users")) == 3 * MOST_SHOWN


def test_others_see_their_own_and_decide_on_none(boreas: Cluster, as_user: AsUser) -> None:
    answer = as_user("alice").get(PAGE)
    page = answer.content.decode()

    assert [line.row.name for line in answer.context["lines"]] == ["language"]
    assert [table.account for table in answer.context["users"]] == ["language"]
    assert "zoe" not in page
    assert "Decide on" not in page
    assert as_user("alice").get(f"{PAGE}language/").status_code == 403
    assert "None of its accounts is one of yours." in html_of(as_user("carol"))


def test_the_export_has_both_sides(boreas: Cluster, as_user: AsUser) -> None:
    told = as_user("admin").get("/clusters/boreas/accounts.json").json()

    cv = next(row for row in told["rows"] if row["account"] == "cv")
    assert [(one["account"], one["name"], one["shares"]) for one in told["users"]] == [
        ("cv", "zoe", 3), ("language", "yan", None)
    ]  # fmt: skip
    assert [(one["name"], one["preempts"]) for one in told["qos"]] == [
        ("high", ["low"]),
        ("low", []),
    ]
    mine = as_user("alice").get("/clusters/boreas/accounts.json").json()
    assert {one["account"] for one in mine["users"]} == {"language"}
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
