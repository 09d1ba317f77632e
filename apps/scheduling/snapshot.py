"""Rows become the engine's snapshot: one query a table, columns from there on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from apps.backends.models import Cluster, Node
from apps.common.time import MICROSECOND, to_us
from apps.engine import types as engine
from apps.jobs.models import Attempt, Job, Member, Reservation
from apps.jobs.states import WAITING, JobState
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.usage import decayed_usage
from apps.scheduling.frame import Frame, duration

NODE_STATE = {"up": 0, "drained": 1, "down": 2}
TOPOLOGY = {"none": 0, "rack": 1, "nvlink": 2}

PENDING_COLUMNS = (
    "id", "tenant_id", "pool_id", "size", "gpus_per_member", "submitted_at", "limit_seconds",
    "priority_class_id", "nice", "topology", "held_at", "begin_at", "broken", "no_reserve_before",
)  # fmt: skip
RUNNING_COLUMNS = (
    "id", "job_id", "job__tenant_id", "job__pool_id", "job__gpus_per_member", "started_at",
    "created_at", "job__limit_seconds", "job__priority_class_id",
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
    # the jobs whose reservation stands, whether they hold anything now or not
    reserved: frozenset[int] = frozenset()


def ints(values: Iterable[Any]) -> engine.Ints:
    """Return a column of integers."""
    return np.array(list(values), dtype=np.int64)


def offsets_of(lengths: Iterable[int]) -> engine.Ints:
    """Return the offsets of ragged rows of these lengths."""
    return np.concatenate(([0], np.cumsum(ints(lengths)))).astype(np.int64)


def _us(at: datetime | None) -> int:
    return engine.NONE if at is None else to_us(at)


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


def _tenants(cluster: Cluster, frame: Frame, now_us: int) -> engine.Tenants:
    usage = decayed_usage(cluster, at_us=now_us)
    rows, at = frame.tenants, frame.tenant_at
    return engine.Tenants(
        id=ints(t.pk for t in rows),
        name=tuple(t.name for t in rows),
        parent=ints(engine.NONE if t.parent_id is None else at[t.parent_id] for t in rows),
        weight=np.array([t.weight for t in rows], dtype=np.float64),
        usage=np.array([usage.get(t.pk, 0.0) for t in rows], dtype=np.float64),
        archived=np.array([t.archived_at is not None for t in rows], dtype=np.bool_),
    )


def unmet_dependencies(cluster: Cluster) -> set[int]:
    """Return the waiting jobs that depend on one that has not succeeded."""
    rows = Job.depends_on.through.objects.filter(
        from_job__cluster=cluster, from_job__state__in=sorted(WAITING)
    ).exclude(to_job__state=JobState.SUCCEEDED)
    return set(rows.values_list("from_job_id", flat=True))


def _gate(row: Sequence[Any], now: datetime, unmet: set[int], paused: frozenset[int]) -> int:
    if row[10] is not None:
        return engine.Reason.HELD
    if row[0] in unmet:
        return engine.Reason.DEPENDENCY
    if row[11] is not None and row[11] > now:
        return engine.Reason.BEGIN_TIME
    if row[1] in paused:
        return engine.Reason.PAUSED
    return 0


def _reserved_since(cluster: Cluster) -> dict[int, datetime]:
    """Return since when each reservation that stands holds, by job id."""
    rows = Reservation.objects.filter(job__cluster=cluster, ended_at__isnull=True)
    return dict(rows.order_by("id").values_list("job_id", "since"))


def _pending(
    cluster: Cluster,
    now: datetime,
    frame: Frame,
    node_at: dict[int, int],
    holds: dict[int, list[tuple[int, int]]],
) -> engine.Pending:
    rows = list(
        Job.objects.filter(cluster=cluster, state__in=sorted(WAITING))
        .order_by("id")
        .values_list(*PENDING_COLUMNS)
    )
    frame.check({r[1] for r in rows}, {r[2] for r in rows}, {r[7] for r in rows})
    unmet = unmet_dependencies(cluster) if rows else set()
    since = _reserved_since(cluster) if rows else {}
    held = [holds.get(r[0], []) for r in rows]
    return engine.Pending(
        id=ints(r[0] for r in rows),
        tenant=ints(frame.tenant_at[r[1]] for r in rows),
        pool=ints(frame.pool_at[r[2]] for r in rows),
        size=ints(r[3] for r in rows),
        gpus_per_member=ints(r[4] for r in rows),
        submitted=ints(to_us(r[5]) for r in rows),
        limit=ints(duration(r[6]) for r in rows),
        class_priority=ints(frame.classes[r[7]] for r in rows),
        nice=ints(r[8] for r in rows),
        queue_factor=np.array([frame.queue_factors.get(r[1], 0.0) for r in rows], dtype=np.float64),
        topology=ints(TOPOLOGY[r[9]] for r in rows),
        gate=ints(_gate(r, now, unmet, frame.paused) for r in rows),
        broken=np.array([r[12] for r in rows], dtype=np.bool_),
        reserved_since=ints(_us(since.get(r[0])) for r in rows),
        no_reserve_before=ints(0 if r[13] is None else to_us(r[13]) for r in rows),
        hold_offsets=offsets_of(len(h) for h in held),
        hold_rank=ints(rank for h in held for rank, _ in h),
        hold_node=ints(node_at[node] for h in held for _, node in h),
    )


def _running(cluster: Cluster, frame: Frame, node_at: dict[int, int]) -> engine.Running:
    alive = Attempt.objects.filter(job__cluster=cluster, ended_at__isnull=True)
    rows = list(alive.order_by("job_id").values_list(*RUNNING_COLUMNS))
    frame.check({r[2] for r in rows}, {r[3] for r in rows}, {r[8] for r in rows})
    nodes: dict[int, list[int]] = defaultdict(list)
    members = Member.objects.filter(attempt__in=alive.order_by()) if rows else Member.objects.none()
    for attempt_id, node_id in members.order_by("attempt_id", "rank").values_list(
        "attempt_id", "node_id"
    ):
        # A node that left the cluster takes no room of it any more.
        if node_id in node_at:
            nodes[attempt_id].append(node_id)
    started = [to_us(r[5] or r[6]) for r in rows]
    return engine.Running(
        id=ints(r[1] for r in rows),
        tenant=ints(frame.tenant_at[r[2]] for r in rows),
        pool=ints(frame.pool_at[r[3]] for r in rows),
        size=ints(len(nodes[r[0]]) for r in rows),
        gpus_per_member=ints(r[4] for r in rows),
        started=ints(started),
        ends_by=ints(
            engine.NONE if r[7] is None else s + r[7] * MICROSECOND
            for r, s in zip(rows, started, strict=True)
        ),
        class_priority=ints(frame.classes[r[8]] for r in rows),
        member_offsets=offsets_of(len(nodes[r[0]]) for r in rows),
        member_node=ints(node_at[n] for r in rows for n in nodes[r[0]]),
    )


def _open_holds(cluster: Cluster) -> dict[int, list[tuple[int, int]]]:
    """Return what is held now: (rank, node id) by job id."""
    holds: dict[int, list[tuple[int, int]]] = defaultdict(list)
    rows = Interval.objects.filter(cluster=cluster, kind=IntervalKind.HOLD, end_us__isnull=True)
    for job_id, rank, node_id in rows.order_by("job_id", "rank").values_list(
        "job_id", "rank", "node_id"
    ):
        if job_id is not None and rank is not None and node_id is not None:
            holds[job_id].append((rank, node_id))
    return dict(holds)


def take_snapshot(cluster: Cluster, frame: Frame, *, now: datetime) -> Seen:
    """Read all that a decision needs, at the cluster's time ``now``.

    :raises StaleFrame: if the frame was read before what a job refers to was made.
    """
    now_us = to_us(now)
    nodes = _nodes(cluster, frame.pool_at)
    node_at = {int(pk): k for k, pk in enumerate(nodes.id)}
    holds = _open_holds(cluster)
    holds = {j: [(r, n) for r, n in rows if n in node_at] for j, rows in holds.items()}
    snapshot = engine.Snapshot(
        now=now_us,
        pools=frame.pools,
        nodes=nodes,
        tenants=_tenants(cluster, frame, now_us),
        quotas=frame.quotas,
        pending=_pending(cluster, now, frame, node_at, holds),
        running=_running(cluster, frame, node_at),
    )
    return Seen(
        snapshot=snapshot,
        policy=frame.policy,
        pending_ids=snapshot.pending.id.tolist(),
        node_ids=nodes.id.tolist(),
        tenant_ids=[t.pk for t in frame.tenants],
        pool_ids=snapshot.pools.id.tolist(),
        holds=holds,
        reserved=frozenset(
            snapshot.pending.id[snapshot.pending.reserved_since != engine.NONE].tolist()
        ),
    )
