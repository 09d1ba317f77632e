"""The form of a tenant's quota and weight: who may, what it says before, what it refuses, what it does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.audit.models import Entry
from apps.backends.models import Cluster, Node, NodeState, Pool
from apps.backends.services import add_cluster
from apps.quotas.models import Account, AccountValue, Quota, What
from apps.tenants.models import Tenant
from apps.tenants.services import set_weight

AsUser = Callable[[str], Client]
PAGE = "/quotas/nlp/boreas/h100/edit/"
WHY = "agreed with the platform team"
ASKED = {"guarantee": "12", "ceiling": "24", "weight": "45", "quota_weight": "", "reason": WHY}


@pytest.fixture
def boreas(world: SimpleNamespace, now: datetime) -> Cluster:
    """A Slurm cluster of 40 GPUs with nlp's account, of 30 shares, and another beside it."""
    cluster = add_cluster(
        "boreas", kind="slurm", now=now, grade="drive", options={"accounts": {"nlp": "language"}}
    )
    pool = Pool.objects.create(cluster=cluster, name="h100")
    for number in range(5):
        Node.objects.create(
            cluster=cluster, pool=pool, name=f"gpu{number}", gpus=8, state=NodeState.UP,
            state_since=now,
        )  # fmt: skip
    tenant = world.tenants["nlp"]
    Tenant.objects.filter(pk=tenant.pk).update(weight=30)
    account = Account.objects.create(cluster=cluster, name="language", seen_at=now, tenant=tenant)
    Account.objects.create(cluster=cluster, name="cv", seen_at=now)
    AccountValue.objects.create(account=account, what=What.SHARES, seen=30, base=30.0)
    AccountValue.objects.create(account=account, what=What.GPUS, seen=8)
    AccountValue.objects.create(account=account, what=What.GUARANTEE, pool=pool, base=0.0)
    return cluster


def text_of(answer: Any) -> str:
    """Return a page as it is read: numbers with plain blanks."""
    text: str = answer.content.decode()
    return text.replace("\xa0", " ").replace("\u202f", " ").replace("&#x27;", "'")


def quota() -> tuple[int, int | None, float | None, float]:
    tenant = Tenant.objects.get(path="nlp")
    row = Quota.objects.get(tenant=tenant)
    return row.guarantee, row.ceiling, row.weight, tenant.weight


def test_it_is_for_admins_alone(boreas: Cluster, as_user: AsUser) -> None:
    for name in ("alice", "bob", "carol", "vera"):
        assert as_user(name).get(PAGE).status_code == 403
        assert as_user(name).post(PAGE, ASKED).status_code == 403
    assert Client().get(PAGE).status_code == 302
    assert not Quota.objects.exists()
    admin = as_user("admin")
    assert "Change its quota on h100" in text_of(admin.get("/clusters/boreas/accounts/"))
    assert "Change its quota" not in text_of(as_user("alice").get("/clusters/boreas/accounts/"))
    for page in ("nlp/boreas/a100", "nlp/atlantis/h100", "nobody/boreas/h100", "n%00p/boreas/h100"):
        assert admin.get(f"/quotas/{page}/edit/").status_code == 404


def test_it_says_what_is_and_what_that_is_there(boreas: Cluster, as_user: AsUser) -> None:
    page = text_of(as_user("admin").get(PAGE))

    assert "nlp is promised 0 GPUs on h100 and has weight 30." in page
    assert "Promised on h100 to all: 0 of 40 GPUs." in page
    assert 'name="weight" value="30"' in page
    assert "Now 30. Its share among its siblings" in page
    assert "In Slurm it is the account’s Fairshare" in page
    assert "boreas has 30 shares; nothing else is wanted here." in page
    assert "No change yet." in page


def test_a_preview_says_what_is_written_and_changes_nothing(
    boreas: Cluster, as_user: AsUser
) -> None:
    answer = as_user("admin").post(PAGE, {**ASKED, "reason": "", "preview": "1"})

    assert answer.status_code == 200
    page = text_of(answer)
    assert (
        "Saving this changes guarantee 0 → 12, ceiling none → 24, weight 30 → 45." in page
    )  # fmt: skip
    assert [(one.what, one.before, one.after) for one in answer.context["effects"]] == [
        ("language: Fairshare", "30", "45"),
        ("language: GrpTRES=gres/gpu", "8", "24"),
        ("language: Description, guarantee of h100", "none", "12"),
    ]
    assert "Written within a minute of saving" in page
    assert '<label for="id_reason">Reason</label>' in page
    assert not Quota.objects.exists()
    assert not Entry.objects.filter(verb__in=("quota changed", "weight changed")).exists()
    assert Tenant.objects.get(path="nlp").weight == 30
    assert AccountValue.objects.count() == 3
    assert not AccountValue.objects.filter(is_wanted=True).exists()


@pytest.mark.parametrize("grade", ["observe", "advise"])
def test_where_nothing_is_written_it_says_until_when(
    boreas: Cluster, as_user: AsUser, grade: str
) -> None:
    Cluster.objects.filter(pk=boreas.pk).update(grade=grade)

    page = text_of(as_user("admin").post(PAGE, {**ASKED, "preview": "1"}))

    assert f"boreas is in grade {grade}: it waits until the grade is drive." in page


def test_it_is_saved_by_the_services_with_the_reason(boreas: Cluster, as_user: AsUser) -> None:
    client = as_user("admin")
    answer = client.post(PAGE, ASKED, follow=True)

    assert answer.redirect_chain == [("/clusters/boreas/accounts/", 302)]
    assert "nlp: guarantee 0 → 12, ceiling none → 24, weight 30 → 45." in text_of(answer)
    assert quota() == (12, 24, None, 45.0)
    told = {one.verb: one for one in Entry.objects.filter(reason=WHY)}
    assert told["quota changed"].changes == {"guarantee": [0, 12], "ceiling": [None, 24]}
    assert told["weight changed"].changes == {"weight": [30.0, 45.0]}
    assert {one.actor.username for one in told.values() if one.actor} == {"admin"}
    boreas.refresh_from_db()
    assert boreas.tick_requested_at is not None
    # Before the next pass the page says what is to be written.
    values = AccountValue.objects.filter(account__name="language")
    assert {(one.what, one.seen, one.wanted, one.state) for one in values} == {
        ("shares", 30, 45, "waiting"), ("gpus", 8, 24, "waiting"), ("guarantee", None, 12, "waiting"),
    }  # fmt: skip
    page = text_of(client.get(PAGE))
    assert "nlp is promised 12 GPUs, at most 24, on h100 and has weight 45." in page
    assert f"“<bdi>{WHY}</bdi>”" in page


def test_what_stays_as_it_is_is_not_written_down(boreas: Cluster, as_user: AsUser) -> None:
    client = as_user("admin")
    client.post(PAGE, ASKED)
    client.post(PAGE, {**ASKED, "weight": "46"})
    client.post(PAGE, {**ASKED, "weight": "46", "quota_weight": "2.5"})

    verbs = list(Entry.objects.filter(reason=WHY).order_by("pk").values_list("verb", flat=True))
    assert sorted(verbs[:2]) == ["quota changed", "weight changed"]
    assert verbs[2:] == ["weight changed", "quota changed"]
    assert Entry.objects.latest("pk").changes == {"weight": [None, 2.5]}
    again = client.post(PAGE, {**ASKED, "weight": "46", "quota_weight": "2.5"})
    assert again.status_code == 409
    assert "Nothing is changed by this: all is as it was." in text_of(again)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"guarantee": "-1"}, "guarantee", "guarantee must be 0 to 2,147,483,647, not -1."),
        ({"guarantee": "1.5"}, "guarantee", "Enter a whole number."),
        ({"guarantee": ""}, "guarantee", "This field is required."),
        ({"guarantee": "25"}, "guarantee", "A guarantee of 25 is above the ceiling of 24."),
        (
            {"guarantee": "41", "ceiling": ""},
            "guarantee",
            "Guarantees on h100 would be 41, above its 40 GPUs. Lower one by 1.",
        ),
        ({"ceiling": "9" * 30}, "ceiling", "ceiling must be 0 to 2,147,483,647"),
        ({"weight": "-2"}, "weight", "weight must be 0 or more, not -2"),
        ({"weight": "nan"}, "weight", "Enter a number."),
        ({"weight": "x"}, "weight", "Enter a number."),
        ({"quota_weight": "-3"}, "quota_weight", "weight must be 0 or more, not -3"),
        ({"reason": ""}, "reason", "Say why, in 10 characters or more."),
        ({"reason": "because"}, "reason", "Say why, in 10 characters or more."),
    ],
)
def test_what_cannot_be_is_refused_where_it_was_typed(
    boreas: Cluster, as_user: AsUser, changes: dict[str, str], field: str, words: str
) -> None:
    answer = as_user("admin").post(PAGE, ASKED | changes)

    assert answer.status_code == 422
    form = answer.context["form"]
    assert list(form.errors) == [field]
    assert form.errors[field][0].startswith(words)
    # All of it or nothing: the weight is not changed by a quota that is refused.
    assert not Quota.objects.exists()
    assert Tenant.objects.get(path="nlp").weight == 30
    assert "has weight 30." in text_of(answer)


def test_a_promise_above_the_parents_names_the_parents_number(
    boreas: Cluster, as_user: AsUser
) -> None:
    client = as_user("admin")
    client.post(PAGE, {**ASKED, "guarantee": "8"})
    page = "/quotas/nlp/alignment/boreas/h100/edit/"
    answer = client.post(page, {**ASKED, "ceiling": "", "guarantee": "9", "preview": "1"})

    assert answer.status_code == 422
    assert answer.context["form"].errors["guarantee"] == [
        "Guarantees of nlp's children would be 9, above nlp's own 8. Lower one, or raise nlp first."
    ]


def test_what_somebody_changed_meanwhile_is_not_written_over(
    boreas: Cluster, as_user: AsUser, now: datetime
) -> None:
    client = as_user("admin")
    was = client.get(PAGE).context["form"]["was"].value()
    set_weight(Tenant.objects.get(path="nlp"), 31, by=None, now=now, reason="")
    answer = client.post(PAGE, {**ASKED, "was": was})

    assert answer.status_code == 409
    page = text_of(answer)
    assert "Somebody changed it meanwhile." in page
    assert "has weight 31." in page
    assert not Quota.objects.exists()
    again = client.post(PAGE, {**ASKED, "was": answer.context["form"]["was"].value()})
    assert again.status_code == 302
    assert quota() == (12, 24, None, 45.0)
    assert client.post(PAGE, {**ASKED, "weight": "1", "was": "[]"}).status_code == 302


def test_a_cluster_without_accounts_has_the_form_and_says_nothing_of_slurm(
    world: SimpleNamespace, as_user: AsUser
) -> None:
    client = as_user("admin")
    page = "/quotas/vision/generative/atlas/h100/edit/"
    shown = text_of(client.get(page))
    previewed = client.post(page, {**ASKED, "preview": "1"})

    assert "Slurm" not in shown + text_of(previewed)
    assert previewed.context["effects"] == []
    answer = client.post(page, ASKED)
    assert answer.headers["Location"] == "/clusters/atlas/"


def test_a_preview_asks_as_much_of_the_database_whatever_the_number_of_accounts(
    boreas: Cluster, as_user: AsUser, now: datetime
) -> None:
    client = as_user("admin")
    client.get(PAGE)

    def queries() -> tuple[int, int]:
        with CaptureQueriesContext(
            connection,
        ) as shown:
            client.get(PAGE)
        with CaptureQueriesContext(connection) as previewed:
            client.post(PAGE, {**ASKED, "preview": "1"})
        return len(shown), len(previewed)

    few = queries()
    Account.objects.bulk_create(
        Account(cluster=boreas, name=f"team{number}", seen_at=now) for number in range(40)
    )
    many = queries()

    assert few == many
    assert few[0] <= 20
    assert few[1] <= 45
