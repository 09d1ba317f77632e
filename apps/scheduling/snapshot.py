"""Rows become the engine's snapshot: one query a table, columns from there on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from apps.backends.models import Cluster, Node, Pool
from apps.common.time import MICROSECOND, to_us
from apps.engine import types as engine
from apps.jobs.models import Attempt, Job, Member
from apps.jobs.states import HOLDING, WAITING, JobState
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.usage import decayed_usage
from apps.queues.models import ClusterPolicy, PriorityClass, Queue
from apps.queues.selectors import policy_of
from apps.quotas.models import Quota
from apps.tenants.models import Tenant

NODE_STATE = {"up": 0, "drained": 1, "down": 2}
TOPOLOGY = {"none": 0, "rack": 1, "nvlink": 2}

PENDING_COLUMNS = (
    "id", "tenant_id", "pool_id", "size", "gpus_per_member", "submitted_at", "limit_seconds",
    "priority_class_id", "nice", "topology", "held_at", "begin_at", "broken", "no_reserve_before",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot, its policy, and what its indexes stand for in the database."""

    snapshot: engine.Snapshot
    policy: engine.Policy
    pending_ids: list[int]
    node_ids: list[int]
    tenant_ids: list[int]
    pool_ids: list[int]
    # job id → [(rank, node id)], of open holds
    holds: dict[int, list[tuple[int, int]]]
    reservations: dict[int, int]


def ints(values: Iterable[Any]) -> engine.Ints:
    """Return a column of integers."""
    return np.array(list(values), dtype=np.int64)


def offsets_of(lengths: Iterable[int]) -> engine.Ints:
    """Return the offsets of ragged rows of these lengths."""
    return np.concatenate(([0], np.cumsum(ints(lengths)))).astype(np.int64)


def _us(at: datetime | None) -> int:
    return engine.NONE if at is None else to_us(at)


def _duration(seconds: int | None) -> int:
    return engine.NONE if seconds is None else seconds * MICROSECOND


def engine_policy(policy: ClusterPolicy) -> engine.Policy:
    """Return a cluster's policy in the engine's words."""
    classes = PriorityClass.objects.order_by("-priority").values_list("priority", flat=True)
    highest = classes.first() or 0
    return engine.Policy(
        fair_share=policy.fair_share,
        dampening=policy.dampening,
        weights=engine.Weights(
            fair_share=policy.weight_fair_share,
            age=policy.weight_age,
            size=policy.weight_size,
            queue=policy.weight_queue,
            class_=policy.weight_class,
        ),
        max_age=policy.max_age_seconds * MICROSECOND,
        max_class=max(highest, 0),
        placement=policy.placement,
        backfill=policy.backfill,
        hold_late=_duration(policy.hold_late_seconds),
        gang_timeout=_duration(policy.gang_timeout_seconds),
        lend_guarantee=policy.lend_guarantee,
    )


def _codes(names: Sequence[str]) -> engine.Ints:
    """Return a number for each name; an empty name is -1."""
    known: dict[str, int] = {}
    return ints(known.setdefault(n, len(known)) if n else engine.NONE for n in names)


def _nodes(cluster: Cluster, pool_at: dict[int, int]) -> engine.Nodes:
    rows = list(
        Node.objects.filter(cluster=cluster, gone_at__isnull=True)
        .order_by("id")
        .values_list("id", "name", "pool_id", "gpus", "state", "rack", "nvlink", "foreign_gpus")
    )
    return engine.Nodes(
        id=ints(r[0] for r in rows),
        name=tuple(r[1] for r in rows),
        pool=ints(pool_at[r[2]] for r in rows),
        gpus=ints(r[3] for r in rows),
        state=ints(NODE_STATE[r[4]] for r in rows),
        rack=_codes([r[5] for r in rows]),
        nvlink=_codes([r[6] for r in rows]),
        foreign=ints(r[7] for r in rows),
    )


def tenants_on(cluster: Cluster) -> tuple[list[Tenant], dict[int, float]]:
    """Return the tenants that have a queue on a cluster, with all above them; and queue factors."""
    factors = dict(Queue.objects.filter(cluster=cluster).values_list("tenant_id", "factor"))
    every = {t.pk: t for t in Tenant.objects.order_by("id").defer("path")}
    wanted: set[int] = set()
    for pk in factors:
        at: int | None = pk
        while at is not None and at not in wanted:
            wanted.add(at)
            at = every[at].parent_id
    return [every[pk] for pk in sorted(wanted)], factors


def _tenants(
    cluster: Cluster, rows: list[Tenant], at: dict[int, int], now_us: int
) -> engine.Tenants:
    usage = decayed_usage(cluster, at_us=now_us)
    return engine.Tenants(
        id=ints(t.pk for t in rows),
        name=tuple(t.name for t in rows),
        parent=ints(engine.NONE if t.parent_id is None else at[t.parent_id] for t in rows),
        weight=np.array([t.weight for t in rows], dtype=np.float64),
        usage=np.array([usage.get(t.pk, 0.0) for t in rows], dtype=np.float64),
        archived=np.array([t.archived_at is not None for t in rows], dtype=np.bool_),
    )


def _quotas(cluster: Cluster, tenant_at: dict[int, int], pool_at: dict[int, int]) -> engine.Quotas:
    shape = (len(tenant_at), len(pool_at))
    guarantee = np.zeros(shape, dtype=np.int64)
    ceiling = np.full(shape, engine.NONE, dtype=np.int64)
    weight = np.full(shape, np.nan, dtype=np.float64)
    rows = Quota.objects.filter(pool__cluster=cluster, tenant_id__in=tenant_at)
    for row in rows:
        cell = tenant_at[row.tenant_id], pool_at[row.pool_id]
        guarantee[cell] = row.guarantee
        if row.ceiling is not None:
            ceiling[cell] = row.ceiling
        if row.weight is not None:
            weight[cell] = row.weight
    return engine.Quotas(guarantee=guarantee, ceiling=ceiling, weight=weight)


def unmet_dependencies(job_ids: Sequence[int], cluster: Cluster) -> set[int]:
    """Return which of the waiting jobs depend on one that has not succeeded."""
    through = Job.depends_on.through
    rows = through.objects.filter(
        from_job__cluster=cluster, from_job__state__in=sorted(WAITING)
    ).exclude(to_job__state=JobState.SUCCEEDED)
    return set(rows.values_list("from_job_id", flat=True)) & set(job_ids)


def paused_tenants(tenants: Sequence[Tenant]) -> set[int]:
    """Return the tenants that are paused or archived, themselves or through one above them."""
    by_id = {t.pk: t for t in tenants}
    paused: dict[int, bool] = {}

    def is_paused(tenant: Tenant) -> bool:
        if tenant.pk not in paused:
            above = by_id.get(tenant.parent_id) if tenant.parent_id else None
            own = tenant.paused_at is not None or tenant.archived_at is not None
            paused[tenant.pk] = own or (above is not None and is_paused(above))
        return paused[tenant.pk]

    return {t.pk for t in tenants if is_paused(t)}


def _gate(row: Sequence[Any], now: datetime, unmet: set[int], paused: set[int]) -> int:
    if row[10] is not None:
        return engine.Reason.HELD
    if row[0] in unmet:
        return engine.Reason.DEPENDENCY
    if row[11] is not None and row[11] > now:
        return engine.Reason.BEGIN_TIME
    if row[1] in paused:
        return engine.Reason.PAUSED
    return 0


def _pending(
    cluster: Cluster,
    now: datetime,
    rows: list[Any],
    at: dict[str, dict[int, int]],
    tenants: list[Tenant],
    factors: dict[int, float],
    holds: dict[int, list[tuple[int, int]]],
) -> engine.Pending:
    classes = dict(PriorityClass.objects.values_list("id", "priority"))
    unmet = unmet_dependencies([r[0] for r in rows], cluster) if rows else set()
    paused = paused_tenants(tenants)
    since = (
        dict(
            Job.objects.filter(
                cluster=cluster, state__in=sorted(WAITING), reservations__ended_at__isnull=True
            )
            .exclude(reservations=None)
            .values_list("id", "reservations__since")
        )
        if rows
        else {}
    )
    held = [holds.get(r[0], []) for r in rows]
    return engine.Pending(
        id=ints(r[0] for r in rows),
        tenant=ints(at["tenant"][r[1]] for r in rows),
        pool=ints(at["pool"][r[2]] for r in rows),
        size=ints(r[3] for r in rows),
        gpus_per_member=ints(r[4] for r in rows),
        submitted=ints(to_us(r[5]) for r in rows),
        limit=ints(_duration(r[6]) for r in rows),
        class_priority=ints(classes[r[7]] for r in rows),
        nice=ints(r[8] for r in rows),
        queue_factor=np.array([factors.get(r[1], 0.0) for r in rows], dtype=np.float64),
        topology=ints(TOPOLOGY[r[9]] for r in rows),
        gate=ints(_gate(r, now, unmet, paused) for r in rows),
        broken=np.array([r[12] for r in rows], dtype=np.bool_),
        reserved_since=ints(_us(since.get(r[0])) for r in rows),
        no_reserve_before=ints(0 if r[13] is None else to_us(r[13]) for r in rows),
        hold_offsets=offsets_of(len(h) for h in held),
        hold_rank=ints(rank for h in held for rank, _ in h),
        hold_node=ints(at["node"][node] for h in held for _, node in h),
    )


def _running(cluster: Cluster, at: dict[str, dict[int, int]]) -> engine.Running:
    classes = dict(PriorityClass.objects.values_list("id", "priority"))
    alive = Attempt.objects.filter(
        job__cluster=cluster, job__state__in=sorted(HOLDING), ended_at=None
    )
    rows = list(
        alive.order_by("job_id").values_list(
            "id", "job_id", "job__tenant_id", "job__pool_id", "job__size", "job__gpus_per_member",
            "started_at", "created_at", "job__limit_seconds", "job__priority_class_id",
        )
    )  # fmt: skip
    nodes: dict[int, list[int]] = defaultdict(list)
    members = Member.objects.filter(attempt__in=alive).order_by("attempt_id", "rank")
    for attempt_id, node_id in members.values_list("attempt_id", "node_id"):
        # A node that left the cluster takes no room of it any more.
        if node_id in at["node"]:
            nodes[attempt_id].append(node_id)
    started = [to_us(r[6] or r[7]) for r in rows]
    return engine.Running(
        id=ints(r[1] for r in rows),
        tenant=ints(at["tenant"][r[2]] for r in rows),
        pool=ints(at["pool"][r[3]] for r in rows),
        size=ints(len(nodes[r[0]]) for r in rows),
        gpus_per_member=ints(r[5] for r in rows),
        started=ints(started),
        ends_by=ints(
            engine.NONE if r[8] is None else s + r[8] * MICROSECOND
            for r, s in zip(rows, started, strict=True)
        ),
        class_priority=ints(classes[r[9]] for r in rows),
        member_offsets=offsets_of(len(nodes[r[0]]) for r in rows),
        member_node=ints(at["node"][n] for r in rows for n in nodes[r[0]]),
    )


def _open_holds(cluster: Cluster) -> tuple[dict[int, list[tuple[int, int]]], dict[int, int]]:
    """Return what is held now, (rank, node id) by job id, and the reservation of each job."""
    holds: dict[int, list[tuple[int, int]]] = defaultdict(list)
    reservations: dict[int, int] = {}
    rows = Interval.objects.filter(cluster=cluster, kind=IntervalKind.HOLD, end_us__isnull=True)
    for job_id, rank, node_id, reservation_id in rows.order_by("job_id", "rank").values_list(
        "job_id", "rank", "node_id", "reservation_id"
    ):
        if job_id is not None and rank is not None and node_id is not None:
            holds[job_id].append((rank, node_id))
            reservations[job_id] = reservation_id or 0
    return dict(holds), reservations


def take_snapshot(cluster: Cluster, *, now: datetime) -> Seen:
    """Read all that a decision needs, at the cluster's time ``now``."""
    now_us = to_us(now)
    pools = list(Pool.objects.filter(cluster=cluster).order_by("id"))
    tenants, factors = tenants_on(cluster)
    at: dict[str, dict[int, int]] = {
        "pool": {p.pk: i for i, p in enumerate(pools)},
        "tenant": {t.pk: i for i, t in enumerate(tenants)},
    }
    nodes = _nodes(cluster, at["pool"])
    at["node"] = {int(pk): i for i, pk in enumerate(nodes.id)}
    rows = list(
        Job.objects.filter(cluster=cluster, state__in=sorted(WAITING))
        .order_by("id")
        .values_list(*PENDING_COLUMNS)
    )
    holds, reservations = _open_holds(cluster)
    snapshot = engine.Snapshot(
        now=now_us,
        pools=engine.Pools(id=ints(p.pk for p in pools), name=tuple(p.name for p in pools)),
        nodes=nodes,
        tenants=_tenants(cluster, tenants, at["tenant"], now_us),
        quotas=_quotas(cluster, at["tenant"], at["pool"]),
        pending=_pending(cluster, now, rows, at, tenants, factors, holds),
        running=_running(cluster, at),
    )
    return Seen(
        snapshot=snapshot,
        policy=engine_policy(policy_of(cluster)),
        pending_ids=[r[0] for r in rows],
        node_ids=[int(n) for n in nodes.id],
        tenant_ids=[t.pk for t in tenants],
        pool_ids=[p.pk for p in pools],
        holds=holds,
        reservations=reservations,
    )
