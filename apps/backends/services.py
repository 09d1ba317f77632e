"""Add clusters, keep their nodes as last seen, and ask for an early tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.kinds import KINDS, check_options, option_fields, preflight
from apps.backends.models import Cluster, Grade, Node, Pool
from apps.backends.port import SeenNode
from apps.backends.secrets import kept
from apps.common.errors import Conflict, Invalid
from apps.common.statements import preparing_cursor
from apps.common.text import clean_text

BATCH = 1_000
RESERVED_NAMES = ("new", "all")
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
    token_name: str = "",
    **settings: Any,
) -> Cluster:
    """Add a cluster; ``settings`` are further columns, as ``tick_seconds`` or ``clock_now``.

    :raises Invalid: for a name or a kind there is not, or options its kind cannot use.
    :raises Conflict: if the name is taken, be it by one that is archived.
    """
    name = clean_text(name, field="name", max_length=60)
    if name in RESERVED_NAMES:
        raise Invalid(f"A cluster cannot be called {name}: a page is.", field="name")
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
    _check_columns(cluster)
    cluster.save(force_insert=True)
    audit.record(
        "added", cluster, by=by, now=now, changes={"kind": (None, kind)}, token_name=token_name
    )
    return cluster


def _check_columns(cluster: Cluster) -> None:
    """Refuse what no column of a cluster can hold, naming the first."""
    try:
        cluster.full_clean()
    except ValidationError as error:
        field, told = next(iter(error.message_dict.items()))
        raise Invalid(f"{field}: {told[0]}", field=field) from error


@transaction.atomic
def change_cluster(
    cluster: Cluster,
    *,
    by: User | None,
    now: datetime,
    reason: str,
    grade: str | None = None,
    options: Mapping[str, Any] | None = None,
    tick_seconds: int | None = None,
    token_name: str = "",
) -> Cluster:
    """Change how far a cluster is controlled, or how it is reached; None: as it is.

    Written down with the reason; changing nothing writes nothing.

    :raises Invalid: naming the field, for a value there is not, or without a reason.
    """
    reason = clean_text(reason, field="reason", max_length=300)
    if grade is not None and grade not in Grade.values:
        raise Invalid(f"grade must be one of {', '.join(Grade.values)}.", field="grade")
    fresh = Cluster.objects.select_for_update().get(pk=cluster.pk)
    before = _changeable(fresh)
    if grade is not None:
        fresh.grade = grade
    if options is not None:
        fresh.options = kept(fresh.kind, options, fresh.options)
        check_options(fresh.kind, fresh.options)
    if tick_seconds is not None:
        fresh.tick_seconds = tick_seconds
    changes = audit.differences(before, _changeable(fresh))
    if not changes:
        return fresh
    for field in option_fields(fresh.kind):
        if field.secret and f"options.{field.name}" in changes:
            changes[f"options.{field.name}"] = ("secret", "another secret")
    _check_columns(fresh)
    # What was slow or failed may be so no more.
    fresh.look_seconds, fresh.failed_looks, fresh.not_before = 0.0, 0, None
    fresh.save(
        update_fields=[
            "grade", "options", "tick_seconds", "look_seconds", "failed_looks", "not_before"
        ]
    )  # fmt: skip
    audit.record(
        "changed", fresh, by=by, now=now, changes=changes, reason=reason, token_name=token_name
    )
    request_tick(fresh)
    return fresh


def _changeable(cluster: Cluster) -> dict[str, Any]:
    """Return what may be changed of a cluster, each option by itself."""
    options = {f"options.{name}": value for name, value in cluster.options.items()}
    return {"grade": cluster.grade, "tick_seconds": cluster.tick_seconds, **options}


def check_drivable(cluster: Cluster, *, now: datetime) -> None:
    """Ask a cluster whether all is there that driving it takes; call it outside a transaction.

    :raises Invalid: naming ``grade``, with what is missing.
    """
    missing = [found for found in preflight(cluster, now=now) if found.state == "missing"]
    if missing:
        more = f" And {len(missing) - 1} more." if len(missing) > 1 else ""
        raise Invalid(f"{cluster} cannot be driven yet: {missing[0].sentence}{more}", field="grade")


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
