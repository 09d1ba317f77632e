"""Rows become the engine's snapshot: one query a table, columns from there on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

import numpy as np

from apps.backends.models import Cluster, Node
from apps.common.prepared import Prepared
from apps.common.time import MICROSECOND, to_us
from apps.engine import types as engine
from apps.jobs.models import Job, Reservation
from apps.jobs.states import WAITING, JobState
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.usage import decayed_usage
from apps.scheduling.alive import Alive, alive_on, nodes_of
from apps.scheduling.frame import Frame, Frames, Guest, duration
from apps.scheduling.leavers import Leavers, leavers_on

NODE_STATE = {"up": 0, "drained": 1, "down": 2}
TOPOLOGY = {"none": 0, "rack": 1, "nvlink": 2}

PENDING_COLUMNS = (
    "id", "tenant_id", "pool_id", "size", "gpus_per_member", "submitted_at", "limit_seconds",
    "priority_class_id", "nice", "topology", "held_at", "begin_at", "broken", "no_reserve_before",
    "foreign_ref",
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


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation that stands: since when, and what is promised: [rank, node id]."""

    since: datetime | None
    promised: bool
    promises: list[list[int]]


NOT_RESERVED = Reserved(None, False, [])


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


RESERVED = Prepared(
    lambda cluster_id: (
        Reservation.objects.filter(job__cluster=cluster_id, ended_at__isnull=True)
        .order_by("id")
        .values_list("job_id", "since", "promised", "promises")
    )
)
PENDING = Prepared(
    lambda cluster_id: (
        Job.objects.filter(cluster=cluster_id, state__in=sorted(WAITING))
        .order_by()
        .values_list(*PENDING_COLUMNS)
    )
)
# The waiting jobs that depend on one that has not succeeded.
UNMET = Prepared(
    lambda cluster_id: (
        Job.depends_on.through.objects.filter(
            from_job__cluster=cluster_id, from_job__state__in=sorted(WAITING)
        )
        .exclude(to_job__state=JobState.SUCCEEDED)
        .values_list("from_job_id")
    )
)
HELD = Prepared(
    lambda cluster_id: (
        Interval.objects.filter(cluster=cluster_id, kind=IntervalKind.HOLD, end_us__isnull=True)
        .order_by("job_id", "rank")
        .values_list("job_id", "rank", "node_id")
    )
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


def _pending(
    cluster: Cluster,
    now: datetime,
    frame: Frame,
    node_at: dict[int, int],
    reserved: dict[int, Reserved],
    holds: dict[int, list[tuple[int, int]]],
    guest: Guest | None,
) -> engine.Pending:
    # Sorted here: asked for in this order, SQLite walks through all jobs there ever were.
    rows = sorted(PENDING.rows(cluster.pk), key=itemgetter(0))
    if cluster.driven:  # what was submitted to the cluster itself it starts itself
        rows = [row for row in rows if not row[14]]
    if guest is not None:
        rows = [*rows, tuple(getattr(guest.job, column) for column in PENDING_COLUMNS)]
    frame.check({r[1] for r in rows}, {r[2] for r in rows}, {r[7] for r in rows})
    unmet = {job_id for (job_id,) in UNMET.rows(cluster.pk)} if rows else set()
    if guest is not None and guest.unmet:
        unmet.add(guest.job.pk)
    held = [holds.get(r[0], []) for r in rows]
    known = [reserved.get(r[0], NOT_RESERVED) for r in rows]
    promises = [[(r, node_at[n]) for r, n in one.promises if n in node_at] for one in known]
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
        reserved_since=ints(_us(one.since) for one in known),
        no_reserve_before=ints(0 if r[13] is None else to_us(r[13]) for r in rows),
        hold_offsets=offsets_of(len(h) for h in held),
        hold_rank=ints(rank for h in held for rank, _ in h),
        hold_node=ints(node_at[node] for h in held for _, node in h),
        preemptible=np.array([r[7] not in frame.stays for r in rows], dtype=np.bool_),
        promised=np.array([one.promised for one in known], dtype=np.bool_),
        promise_offsets=offsets_of(len(p) for p in promises),
        promise_rank=ints(rank for p in promises for rank, _ in p),
        promise_node=ints(node for p in promises for _, node in p),
    )


def _running(
    rows: list[Alive],
    members: dict[int, list[int]],
    frame: Frame,
    node_at: dict[int, int],
    leavers: Leavers,
) -> engine.Running:
    frame.check({r.tenant_id for r in rows}, {r.pool_id for r in rows}, {r.class_id for r in rows})
    # A node that left the cluster takes no room of it any more.
    nodes = [[node_at[n] for n in members[r.pk] if n in node_at] for r in rows]
    started = [to_us(r.started_at or r.created_at) for r in rows]
    return engine.Running(
        id=ints(r.job_id for r in rows),
        tenant=ints(frame.tenant_at[r.tenant_id] for r in rows),
        pool=ints(frame.pool_at[r.pool_id] for r in rows),
        size=ints(len(n) for n in nodes),
        gpus_per_member=ints(r.gpus_per_member for r in rows),
        started=ints(started),
        ends_by=ints(
            engine.NONE if r.limit_seconds is None else s + r.limit_seconds * MICROSECOND
            for r, s in zip(rows, started, strict=True)
        ),
        class_priority=ints(frame.classes[r.class_id] for r in rows),
        member_offsets=offsets_of(len(n) for n in nodes),
        member_node=ints(n for of_attempt in nodes for n in of_attempt),
        attempt=ints(r.pk for r in rows),
        submitted=ints(to_us(r.submitted_at) for r in rows),
        preemptible=np.array(
            [r.class_id not in frame.stays and not r.foreign_ref for r in rows], dtype=np.bool_
        ),
        min_size=ints(min(r.min_size, len(n)) for r, n in zip(rows, nodes, strict=True)),
        last_checkpoint=ints(_us(r.last_checkpoint_at) for r in rows),
        restarted=ints(
            s if r.after_eviction else engine.NONE for r, s in zip(rows, started, strict=True)
        ),
        **_giving_way(rows, leavers),
    )


def _giving_way(rows: list[Alive], leavers: Leavers) -> dict[str, engine.Ints]:
    """Return the columns of who was asked to give way."""
    leaving = [leavers.leaving.get(r.pk) for r in rows]
    demoted = [leavers.demoted.get(r.pk) for r in rows]
    return {
        "evictions": ints(leavers.evictions[r.job_id] for r in rows),
        "demoted": ints(engine.NONE if d is None else to_us(d[0]) for d in demoted),
        "leaving": ints(engine.NONE if one is None else to_us(one.until) for one in leaving),
        "leaving_for": ints(
            one.job_id if one is not None else engine.NONE if d is None else d[1]
            for one, d in zip(leaving, demoted, strict=True)
        ),
        "shrinking": ints(0 if one is None else one.shrinking for one in leaving),
    }


def _open_holds(cluster: Cluster, node_at: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    """Return what is held now: (rank, node id) by job id."""
    holds: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for job_id, rank, node_id in HELD.rows(cluster.pk):
        if node_id in node_at:
            holds[job_id].append((rank, node_id))
    return dict(holds)


def take_snapshot(
    cluster: Cluster,
    frames: Frames,
    *,
    now: datetime,
    alive: list[Alive] | None = None,
) -> Seen:
    """Read all that a decision needs, at the cluster's time ``now``.

    ``alive``: the attempts that hold GPUs, if they were read already.

    :raises StaleFrame: if the frame was read before what a job refers to was made.
    """
    now_us = to_us(now)
    frame = frames.get()
    if frames.nodes is None:
        frames.nodes = _nodes(cluster, frame.pool_at)
    nodes = frames.nodes
    node_at = {pk: k for k, pk in enumerate(nodes.id.tolist())}
    reserved = {row[0]: Reserved(*row[1:]) for row in RESERVED.rows(cluster.pk)}
    # Nothing is held but for a reservation that stands.
    holds = _open_holds(cluster, node_at) if reserved else {}
    if alive is None:
        alive = alive_on(cluster, frames.alive)
    members = nodes_of(cluster, alive, frames.members)
    leavers = leavers_on(cluster, now=now, rule=frame.policy.preemption)
    snapshot = engine.Snapshot(
        now=now_us,
        pools=frame.pools,
        nodes=nodes,
        tenants=_tenants(cluster, frame, now_us),
        quotas=frame.quotas,
        pending=_pending(cluster, now, frame, node_at, reserved, holds, frames.guest),
        running=_running(alive, members, frame, node_at, leavers),
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
