"""The rows of a cluster's nodes follow each look, in few queries."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.backends.models import Cluster, Node, Pool
from apps.backends.port import SeenNode
from apps.backends.services import add_cluster, find_cluster, request_tick, sync_nodes
from apps.common.errors import Conflict, Invalid
from tests.factories import NOW, make_cluster

LATER = NOW + timedelta(minutes=5)


def seen(count: int = 3, **columns: Any) -> list[SeenNode]:
    """Nodes as a look shows them."""
    common = {"pool": "h100", "gpus": 8, "state": "up", "since": NOW} | columns
    return [SeenNode(name=f"n{number}", **common) for number in range(count)]


def test_pools_and_nodes_unknown_so_far_are_made(cluster: Cluster) -> None:
    changed = sync_nodes(cluster, [*seen(2), *seen(1, pool="a100")], at=NOW)

    assert {(node.name, node.pool.name) for node in changed} == {
        ("n0", "h100"),
        ("n1", "h100"),
        ("n0", "a100"),
    }
    assert all(node.pk for node in changed)
    assert set(Pool.objects.values_list("name", flat=True)) == {"h100", "a100"}


def test_what_did_not_change_is_not_written(cluster: Cluster) -> None:
    sync_nodes(cluster, seen(50), at=NOW)

    with CaptureQueriesContext(connection) as queries:
        changed = sync_nodes(cluster, seen(50), at=LATER)

    assert changed == []
    told = [query["sql"] for query in queries.captured_queries]
    assert not [sql for sql in told if sql.startswith(("INSERT", "UPDATE"))]
    assert len([sql for sql in told if sql.startswith("SELECT")]) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "down"),
        ("gpus", 7),
        ("rack", "r2"),
        ("nvlink", "d1"),
        ("foreign_gpus", 3),
        ("reason", "xid 79"),
    ],
)
def test_what_changed_is_written(field: str, value: Any, cluster: Cluster) -> None:
    sync_nodes(cluster, seen(), at=NOW)
    look = seen()
    look[1] = replace(look[1], **{field: value, "since": LATER})

    (changed,) = sync_nodes(cluster, look, at=LATER)

    changed.refresh_from_db()
    assert changed.name == "n1"
    assert getattr(changed, "state_reason" if field == "reason" else field) == value
    assert changed.state_since == (LATER if field == "state" else NOW)


def test_a_node_not_shown_is_gone_and_comes_back(cluster: Cluster) -> None:
    sync_nodes(cluster, seen(3), at=NOW)

    (gone,) = sync_nodes(cluster, seen(2), at=LATER)
    assert (gone.name, gone.gone_at) == ("n2", LATER)
    assert sync_nodes(cluster, seen(2), at=LATER) == []

    (back,) = sync_nodes(cluster, seen(3), at=LATER)
    assert (back.pk, back.gone_at) == (gone.pk, None)


def test_another_cluster_is_left_alone(cluster: Cluster) -> None:
    other = make_cluster("boreas")
    sync_nodes(other, seen(), at=NOW)

    sync_nodes(cluster, seen(1), at=NOW)

    assert Node.objects.filter(cluster=other, gone_at=None).count() == 3


def test_a_tick_is_asked_for_on_the_row_alone(cluster: Cluster) -> None:
    request_tick(cluster, now=NOW)

    cluster.refresh_from_db()
    assert cluster.tick_requested_at == NOW


def test_a_cluster_is_added_once(db: None) -> None:
    made = add_cluster("atlas", kind="simulator", now=NOW, tick_seconds=3)

    assert find_cluster("atlas") == made
    with pytest.raises(Conflict):
        add_cluster("atlas", kind="simulator", now=NOW)
    for asked, field in (({"kind": "cray"}, "kind"), ({"grade": "own"}, "grade")):
        with pytest.raises(Invalid) as refusal:
            add_cluster("boreas", **({"kind": "simulator", "now": NOW} | asked))
        assert refusal.value.field == field
    assert Cluster.objects.count() == 1
