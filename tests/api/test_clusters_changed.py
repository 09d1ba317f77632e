"""Add a cluster, say how it is reached and how far it is controlled: by admins, with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Cluster
from apps.backends.services import add_cluster
from tests.api.conftest import Caller, refusal
from tests.factories import NOW

CLUSTERS = "/api/v1/clusters"
OPTIONS = {"bin": "/nowhere", "partition": "gpu"}


@pytest.fixture
def boreas(db: None) -> Cluster:
    """A Slurm cluster that nobody can reach."""
    return add_cluster("boreas", kind="slurm", now=NOW, options=OPTIONS)


def test_an_admin_adds_one_which_is_only_watched(root: User, call: Caller) -> None:
    body = {"name": "boreas", "kind": "slurm", "options": OPTIONS, "tick_seconds": 5}

    answer = call(root).post(CLUSTERS, body, format="json")

    assert answer.status_code == 201
    assert (answer.json()["name"], answer.json()["grade"]) == ("boreas", "observe")
    made = Cluster.objects.get(name="boreas")
    assert (made.options, made.tick_seconds) == (OPTIONS, 5)
    assert made.tick_requested_at is not None
    entry = Entry.objects.get(object_kind="cluster")
    assert (entry.verb, entry.actor, entry.token_name) == ("added", root, "test")


@pytest.mark.parametrize(("kind", "seconds"), [("slurm", 5), ("simulator", 2)])
def test_how_often_one_is_looked_at_is_its_kinds_unless_said(
    kind: str, seconds: int, root: User, call: Caller
) -> None:
    call(root).post(CLUSTERS, {"name": "boreas", "kind": kind}, format="json")

    assert Cluster.objects.get().tick_seconds == seconds


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"name": "two words"}, 400, "name"),
        ({"name": ""}, 400, "name"),
        ({"name": "atlas"}, 409, "name"),
        ({"kind": "cray"}, 400, "kind"),
        ({"options": {"way": "pigeon"}}, 400, "options.way"),
        ({"options": {"partiton": "gpu"}}, 400, "options.partiton"),
        ({"options": "gpu"}, 400, "options"),
        ({"tick_seconds": 0}, 400, "tick_seconds"),
        ({"grade": "drive"}, 400, "grade"),
    ],
)
def test_what_cannot_be_added_is_named(
    change: dict[str, Any], status: int, field: str, root: User, call: Caller, cluster: Cluster
) -> None:
    body = {"name": "boreas", "kind": "slurm"} | change

    assert refusal(call(root).post(CLUSTERS, body, format="json"), status)["field"] == field
    assert Cluster.objects.count() == 1


def test_only_an_admin_adds_or_changes(alice: User, call: Caller, boreas: Cluster) -> None:
    one = f"{CLUSTERS}/boreas"
    reason = "it is Monday today"

    for method, address, body in (
        ("post", CLUSTERS, {"name": "more", "kind": "simulator"}),
        ("patch", one, {"tick_seconds": 9, "reason": reason}),
        ("post", f"{one}/grade", {"grade": "advise", "reason": reason}),
    ):
        answer = getattr(call(alice), method)(address, body, format="json")
        assert refusal(answer, 403)["message"].startswith("Only an admin may")

    boreas.refresh_from_db()
    assert (boreas.grade, boreas.tick_seconds) == ("observe", 2)


def test_what_changes_is_written_down_with_the_reason(
    root: User, call: Caller, boreas: Cluster
) -> None:
    body = {"options": {"partition": "a100"}, "tick_seconds": 5, "reason": "the old one is gone"}

    answer = call(root).patch(f"{CLUSTERS}/boreas", body, format="json")

    assert answer.status_code == 200
    entry = Entry.objects.get(verb="changed")
    assert entry.reason == "the old one is gone"
    assert entry.changes == {
        "tick_seconds": [2, 5],
        "options.partition": ["gpu", "a100"],
        "options.bin": ["/nowhere", None],
    }
    # Nothing differs: nothing is written.
    assert call(root).patch(f"{CLUSTERS}/boreas", body, format="json").status_code == 200
    assert Entry.objects.filter(verb="changed").count() == 1


def test_a_cluster_that_lacks_something_is_driven_only_if_that_is_said(
    root: User, call: Caller, boreas: Cluster
) -> None:
    body: dict[str, Any] = {"grade": "drive", "reason": "the team asked for it"}
    address = f"{CLUSTERS}/boreas/grade"

    told = refusal(call(root).post(address, body, format="json"), 400)
    assert told["field"] == "grade"
    assert told["message"].startswith("boreas cannot be driven yet: /nowhere/scontrol cannot")

    shown = call(root).post(address, body | {"anyway": True}, format="json").json()
    assert shown["grade"] == "drive"
    entry = Entry.objects.get(verb="changed")
    assert entry.changes == {"grade": ["observe", "drive"]}
    # Back again nothing is asked: the cluster may be gone.
    assert call(root).post(address, body | {"grade": "observe"}, format="json").status_code == 200


@pytest.mark.parametrize("reason", ["", "   ", None])
def test_without_a_reason_nothing_changes(
    reason: str | None, root: User, call: Caller, boreas: Cluster
) -> None:
    body = {"grade": "advise", "reason": reason}

    answer = call(root).post(f"{CLUSTERS}/boreas/grade", body, format="json")

    assert refusal(answer, 400)["field"] == "reason"
    boreas.refresh_from_db()
    assert boreas.grade == "observe"
