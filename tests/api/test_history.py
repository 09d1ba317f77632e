"""The import of a cluster's history over the API: admins alone begin it and see how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Cluster
from apps.backends.port import Capabilities, History, Recalled
from apps.scheduling import history
from apps.scheduling.history import go_on
from apps.scheduling.models import HistoryImport
from tests.api.conftest import Caller, refusal
from tests.factories import NOW, make_cluster

HISTORY = "/api/v1/clusters/atlas/history"
ASKED = {"since": "2026-01-01T00:00:00+01:00", "reason": "new here"}


class Remembering:
    """A cluster that remembers a job without GPUs a day."""

    def capabilities(self) -> Capabilities:
        return Capabilities(grade="observe", can=frozenset({"history"}))

    def history(self, since: datetime, until: datetime, *, now: datetime) -> History:
        return History([], left_out={"asked for no GPUs": 1})

    def recall(self, foreign: Sequence[str], own: Mapping[str, str], *, now: datetime) -> Recalled:
        return Recalled()


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "backend_of", lambda _: Remembering())


def begun(call: Caller, user: User, **changes: Any) -> Mapping[str, Any]:
    answer = call(user).post(HISTORY, ASKED | changes)
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_an_admin_begins_it_and_sees_how_far_it_is(
    call: Caller, root: User, cluster: Cluster, remembering: None
) -> None:
    told = begun(call, root)

    assert {key: told[key] for key in ("since", "until", "state", "percent", "started_by")} == {
        "since": "2025-12-31T23:00:00Z", "until": "2026-01-05T12:00:00Z", "state": "running",
        "percent": 0, "started_by": "root",
    }  # fmt: skip
    entry = Entry.objects.get(verb="history imported")
    assert (entry.actor, entry.reason, entry.object_name) == (root, "new here", "atlas")

    go_on(told["id"], holder="test", seconds=0)
    (shown,) = call(root).get(HISTORY).json()["results"]
    assert (shown["state"], shown["done_until"]) == ("running", "2026-01-01T23:00:00Z")
    assert shown["percent"] == 100 * 24 // 109

    go_on(told["id"], holder="test")
    (shown,) = call(root).get(HISTORY).json()["results"]
    assert (shown["state"], shown["percent"], shown["problem"]) == ("done", 100, "")
    assert shown["left_out"] == {"asked for no GPUs": 5}


def test_the_newest_is_first(call: Caller, root: User, cluster: Cluster, remembering: None) -> None:
    first = begun(call, root, until="2026-01-02T00:00:00Z")
    go_on(first["id"], holder="test")
    second = begun(call, root)

    rows = call(root).get(HISTORY).json()["results"]
    assert [row["id"] for row in rows] == [second["id"], first["id"]]


def test_nobody_but_an_admin(
    call: Caller, alice: User, bob: User, carol: User, cluster: Cluster, remembering: None
) -> None:
    for user in (alice, bob, carol):
        assert refusal(call(user).post(HISTORY, ASKED), 403)["code"] == "forbidden"
        refusal(call(user).get(HISTORY), 403)
    assert not HistoryImport.objects.exists()


def test_a_cluster_there_is_not(call: Caller, root: User, alice: User, remembering: None) -> None:
    make_cluster("old", archived_at=NOW)
    for name in ("nowhere", "old"):
        for user in (root, alice):
            refusal(call(user).post(f"/api/v1/clusters/{name}/history", ASKED), 404)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"since": "2026-01-01"}, "since"),
        ({"since": "2026-01-05T12:00:00Z"}, "since"),
        ({"since": (NOW - timedelta(days=1)).isoformat(), "until": "2026-01-01T00:00:00Z"}, "since"),
        ({"since": None}, "since"),
        ({"until": "soon"}, "until"),
        ({"everything": True}, "everything"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_field(
    call: Caller, root: User, cluster: Cluster, remembering: None, changes: Any, field: str
) -> None:
    assert refusal(call(root).post(HISTORY, ASKED | changes), 400)["field"] == field
    assert not HistoryImport.objects.exists()


def test_one_at_a_time(call: Caller, root: User, cluster: Cluster, remembering: None) -> None:
    begun(call, root)
    assert "already" in refusal(call(root).post(HISTORY, ASKED), 409)["message"]


def test_a_cluster_that_has_no_history_says_why(call: Caller, root: User, cluster: Cluster) -> None:
    told = refusal(call(root).post(HISTORY, ASKED), 400)
    assert told["message"] == "A simulated cluster has no past that Rollcall did not see."
