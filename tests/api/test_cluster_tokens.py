"""One's own token for a cluster: entered, sealed, never shown, and handed to the launch of one's jobs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.adapters.slurm.tokens import signed
from apps.backends.models import Cluster, UserToken
from apps.backends.services import add_cluster
from apps.backends.user_tokens import sealed_tokens
from apps.common.sealing import unseal
from tests.api.conftest import Caller, refusal
from tests.factories import make_user

URL = "/api/v1/me/cluster-tokens"
SERVICE = signed(b"key", "rollcall", now=0)
OPTIONS = {
    "way": "rest", "url": "http://slurm.example.org:6820", "user": "rollcall", "token": SERVICE,
    "run_as": "token", "users": {"ann": "u17"},
}  # fmt: skip


def token_of(user: str, **changes: Any) -> str:
    return signed(b"key", user, **({"now": time.time(), "seconds": 3_600} | changes))


@pytest.fixture
def boreas(db: None) -> Cluster:
    return add_cluster("boreas", kind="slurm", now=timezone.now(), options=OPTIONS)


@pytest.fixture
def ann(db: None) -> User:
    return make_user("ann")


def test_it_is_entered_sealed_replaced_and_forgotten(
    call: Caller, boreas: Cluster, ann: User, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = token_of("u17"), token_of("u17", seconds=7_200)
    before = call(ann).get(URL).json()

    entered = call(ann).put(f"{URL}/boreas", {"token": f"SLURM_JWT={first}"})
    again = call(ann).put(f"{URL}/boreas", {"token": second})
    told = call(ann).get(URL)

    assert before == [{"cluster": "boreas", "entered_at": None, "until": None}]
    assert (entered.status_code, again.status_code) == (200, 200)
    assert again.json()["until"] > entered.json()["until"]
    row = UserToken.objects.get()
    assert second not in row.sealed
    assert unseal(row.sealed) == second
    assert sealed_tokens(boreas, {ann.pk, ann.pk + 1}) == {ann.pk: row.sealed}
    for text in (entered.content.decode(), told.content.decode(), caplog.text, str(row)):
        assert first not in text
        assert second not in text
    entries = Entry.objects.filter(verb="token entered")
    assert entries.count() == 2
    assert all(one.changes == {} for one in entries)

    assert call(ann).delete(f"{URL}/boreas").status_code == 204
    assert not UserToken.objects.exists()
    refusal(call(ann).delete(f"{URL}/boreas"), 404)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("abc", "three parts with dots"),
        (token_of("eve"), "for eve, not for u17"),
        (token_of("u17", now=1_000_000), "The token ended at 1970-"),
        (12, "valid string"),
        ("x" * 5_000, "4096"),
    ],
)
def test_what_will_not_do_is_said_at_its_field_and_not_repeated(
    call: Caller, boreas: Cluster, ann: User, token: Any, said: str
) -> None:
    answer = call(ann).put(f"{URL}/boreas", {"token": token})

    told = refusal(answer, 400)
    assert said in str(told)
    assert "token" in str(told)
    assert str(token)[:60] not in answer.content.decode() or token == "abc"
    assert not UserToken.objects.exists()


def test_a_cluster_that_asks_for_none_takes_none(call: Caller, cluster: Cluster, ann: User) -> None:
    assert call(ann).get(URL).json() == []
    told = refusal(call(ann).put(f"{URL}/{cluster.name}", {"token": token_of("ann")}), 400)
    assert "asks nobody for a token" in str(told)
    assert sealed_tokens(cluster, {ann.pk}) == {}
