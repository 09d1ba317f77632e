"""A person enters their own token for a cluster on the page Profile."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.test import Client
from django.utils import timezone

from apps.backends.adapters.slurm.tokens import signed
from apps.backends.models import UserToken
from apps.backends.services import add_cluster

AsUser = Callable[[str], Client]
URL = "/profile/clusters/boreas/token/"


@pytest.fixture(autouse=True)
def boreas(world: SimpleNamespace) -> None:
    options = {
        "way": "rest", "url": "http://slurm.example.org:6820", "user": "rollcall",
        "token": signed(b"key", "rollcall", now=0), "run_as": "token",
    }  # fmt: skip
    add_cluster("boreas", kind="slurm", now=timezone.now(), options=options)


def test_it_is_entered_and_forgotten_and_never_drawn(as_user: AsUser) -> None:
    client, token = as_user("bob"), signed(b"key", "bob", now=time.time(), seconds=3_600)
    before = client.get("/profile/").content.decode()

    answer = client.post(URL, {"cluster-token": token}, follow=True)
    page = answer.content.decode()
    client.post(URL, {"forget": "yes"})
    after = client.get("/profile/").content.decode()

    assert "boreas has none of you: your jobs are refused there." in before
    assert "Your jobs on boreas run as you now." in page
    assert "boreas has one of you, entered" in page
    assert "; it ends" in page
    assert token not in page
    assert "boreas has none of you" in after
    assert not UserToken.objects.exists()


def test_what_will_not_do_is_said_at_its_field(as_user: AsUser) -> None:
    client, token = as_user("bob"), signed(b"key", "eve", now=time.time(), seconds=3_600)

    wrong = client.post(URL, {"cluster-token": token})
    empty = client.post(URL, {"cluster-token": ""})

    assert (wrong.status_code, empty.status_code) == (422, 422)
    assert "The token is for eve, not for bob." in wrong.content.decode()
    assert token not in wrong.content.decode()
    assert "Enter the token." in empty.content.decode()
    assert not UserToken.objects.exists()
    assert (
        client.post("/profile/clusters/nowhere/token/", {"cluster-token": "x"}).status_code == 404
    )
