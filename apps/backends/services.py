"""Add clusters, keep their nodes as last seen, and ask for an early tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.kinds import KINDS, check_options
from apps.backends.models import Cluster, Grade, Node, Pool
from apps.backends.port import SeenNode
from apps.common.errors import Conflict, Invalid
from apps.common.statements import preparing_cursor
from apps.common.text import clean_text

BATCH = 1_000
REQUEST_TICK = "UPDATE backends_cluster SET tick_requested_at = %s WHERE id = %s"


def request_tick(cluster: Cluster, *, now: datetime | None = None) -> None:
    """Ask for an early tick: a mark on the cluster's row, in wall time; nothing is sent."""
    at = connection.ops.adapt_datetimefield_value(now or timezone.now())
    with preparing_cursor() as cursor:
        cursor.execute(REQUEST_TICK, [at, cluster.pk])


@transaction.atomic
def add_cluster(
    name: str,
    *,
    kind: str,
    now: datetime,
    by: User | None = None,
    grade: str = Grade.OBSERVE,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Cluster:
    """Add a cluster; ``settings`` are further columns, as ``tick_seconds`` or ``clock_now``.

    :raises Invalid: for a name or a kind there is not, or options its kind cannot use.
    :raises Conflict: if the name is taken.
    """
    name = clean_text(name, field="name", max_length=60)
    if kind not in KINDS:
        raise Invalid(f"There is no kind of cluster called {kind}.", field="kind")
    if grade not in Grade.values:
        raise Invalid(f"grade must be one of {', '.join(Grade.values)}.", field="grade")
    check_options(kind, options or {})
    if Cluster.objects.filter(name=name).exists():
        raise Conflict(f"There is a cluster called {name} already.", field="name")
    cluster = Cluster(
        name=name, kind=kind, grade=grade, options=dict(options or {}), created_at=now, **settings
    )
    cluster.full_clean()
    cluster.save(force_insert=True)
    audit.record("added", cluster, by=by, now=now, changes={"kind": (None, kind)})
    return cluster


def find_cluster(name: str) -> Cluster:
    """Return a cluster in use by its name.

    :raises Cluster.DoesNotExist: if there is none.
    """
    return Cluster.objects.get(name=name, archived_at__isnull=True)


def _pools_by_name(cluster: Cluster, names: Iterable[str]) -> dict[str, Pool]:
    known = {pool.name: pool for pool in Pool.objects.filter(cluster=cluster)}
    missing = sorted(set(names) - known.keys())
    if missing:
        Pool.objects.bulk_create(
            [Pool(cluster=cluster, name=name) for name in missing], ignore_conflicts=True
        )
        known = {pool.name: pool for pool in Pool.objects.filter(cluster=cluster)}
    return known


def _differs(node: Node, seen: SeenNode) -> bool:
    return (
        node.gpus != seen.gpus
        or node.foreign_gpus != seen.foreign_gpus
        or node.rack != seen.rack
        or node.nvlink != seen.nvlink
        or node.state != seen.state
        or node.state_reason != seen.reason[:200]
        or node.gone_at is not None
    )


def _take_over(node: Node, seen: SeenNode) -> None:
    if node.state != seen.state or node.gone_at is not None:
        node.state_since = seen.since
    node.gpus = seen.gpus
    node.foreign_gpus = seen.foreign_gpus
    node.rack = seen.rack
    node.nvlink = seen.nvlink
    node.state = seen.state
    node.state_reason = seen.reason[:200]
    node.gone_at = None


CHANGEABLE = [
    "gpus",
    "foreign_gpus",
    "rack",
    "nvlink",
    "state",
    "state_since",
    "state_reason",
    "gone_at",
]


@transaction.atomic
def sync_nodes(cluster: Cluster, seen: Iterable[SeenNode], *, at: datetime) -> list[Node]:
    """Make the rows of a cluster's nodes what a look showed, and return those that changed.

    Pools and nodes unknown so far are made; a node the look did not show is gone since ``at``.
    Two queries when nothing changed. Each node carries its ``pool``; several for one name and
    pool are refused by the database.
    """
    reports = list(seen)
    pools = _pools_by_name(cluster, (report.pool for report in reports))
    by_id = {pool.pk: pool for pool in pools.values()}
    known: dict[tuple[str, int], Node] = {}
    for node in Node.objects.filter(cluster=cluster):
        node.pool = by_id[node.pool_id]
        known[node.name, node.pool_id] = node

    fresh: list[Node] = []
    changed: list[Node] = []
    shown: set[tuple[str, int]] = set()
    for report in reports:
        pool = pools[report.pool]
        key = (report.name, pool.pk)
        shown.add(key)
        row = known.get(key)
        if row is None:
            row = Node(cluster=cluster, pool=pool, name=report.name, state_since=report.since)
            _take_over(row, report)
            row.state_since = report.since
            fresh.append(row)
        elif _differs(row, report):
            _take_over(row, report)
            changed.append(row)
    for key, row in known.items():
        if key not in shown and row.gone_at is None:
            row.gone_at = at
            changed.append(row)
    if fresh:
        Node.objects.bulk_create(fresh, batch_size=BATCH)
    if changed:
        Node.objects.bulk_update(changed, CHANGEABLE, batch_size=BATCH)
    return fresh + changed
