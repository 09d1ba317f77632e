"""Small clusters at random, for the property tests.

Hypothesis draws how many of everything there are and a seed; the seed says the rest. That shrinks
to few rows, and is ten times as fast as drawing each cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from apps.engine import fairshare
from apps.engine.cycle import BACKFILLS
from apps.engine.placement import PLACERS
from apps.engine.preemption import RULES
from apps.engine.types import (
    HOUR,
    MICROSECOND,
    MODES,
    Nodes,
    Pending,
    Policy,
    Pools,
    Quotas,
    Reason,
    Running,
    Snapshot,
    Tenants,
    Weights,
)

NOW = 1_767_268_800_000_000
MINUTE = 60 * MICROSECOND
LIMITS = [-1, MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR]


def ints(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)


Pick = Callable[[Any], Any]


def picker(seed: int) -> Pick:
    """Return a chooser of one of some values."""
    rng = Random(seed)
    return lambda values: rng.choice(values)


@st.composite
def policies(
    draw: st.DrawFn,
    rule: str | None = None,
    mode: str | None = None,
    fair_share: str | None = None,
    *,
    limited: bool = True,
) -> Policy:
    """Draw a policy: every fair share, placement, backfill, rule and mode there is."""
    pick = picker(draw(st.integers(0, 2**16)))
    weight = [0.0, 1.0, 1000.0]
    return Policy(
        fair_share=fair_share or draw(st.sampled_from(sorted(fairshare.POLICIES))),
        weights=Weights(pick(weight), pick(weight), pick(weight), pick(weight), pick(weight)),
        max_class=pick([0, 2]),
        preemption=rule or draw(st.sampled_from(sorted(RULES))),
        mode=mode or draw(st.sampled_from(sorted(MODES))),
        grace=pick([0, MINUTE]),
        min_runtime=pick([0, 0, 5 * MINUTE]),
        max_evictions=pick([0, 0, 0, 1, 3]) if limited else 0,
        cooldown=pick([0, 0, HOUR]),
        thrash_after=pick([0, 3]),
        placement=draw(st.sampled_from(sorted(PLACERS))),
        backfill=draw(st.sampled_from(BACKFILLS)),
        hold_late=draw(st.sampled_from([-1, -1, 0, 10 * MINUTE])),
        gang_timeout=draw(st.sampled_from([-1, 30 * MINUTE])),
        lend_guarantee=draw(st.booleans()),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster of up to 2 pools, 8 nodes, 6 tenants and 12 jobs, some running."""
    pools, nodes = draw(st.integers(1, 2)), draw(st.integers(0, 8))
    tenants, pending = draw(st.integers(1, 6)), draw(st.integers(0, 12))
    crowded = draw(st.booleans())
    return world(picker(draw(st.integers(0, 2**32 - 1))), pools, nodes, tenants, pending, crowded)


def world(
    pick: Pick, pools: int, nodes: int, tenants: int, pending: int, crowded: bool = False
) -> Snapshot:
    """Make a cluster of so many; a crowded one has next to nothing idle."""

    def column(values: Any, count: int) -> Any:
        return ints(pick(values) for _ in range(count))

    gpus = column([1, 2, 4, 4, 8], nodes)
    shot = Snapshot(
        now=NOW,
        pools=Pools(id=ints(range(1, pools + 1)), name=tuple(f"pool{p}" for p in range(pools))),
        nodes=Nodes(
            id=ints(range(1, nodes + 1)),
            name=tuple(f"n{k}" for k in range(nodes)),
            pool=column(range(pools), nodes),
            gpus=gpus,
            state=column([0, 0, 0, 0, 0, 1, 2], nodes),
            rack=column([-1, 0, 1], nodes),
            nvlink=column([-1, 0, 1, 2], nodes),
            foreign=np.minimum(column([0, 0, 0, 0, 1], nodes), gpus),
        ),
        tenants=Tenants(
            id=ints(range(1, tenants + 1)),
            name=tuple(f"t{k}" for k in range(tenants)),
            parent=ints(pick(range(-1, k)) for k in range(tenants)),
            weight=np.array([pick([0.0, 1.0, 1.0, 2.5]) for _ in range(tenants)]),
            usage=np.array([pick([0.0, 0.0, 3.0, 7.5]) for _ in range(tenants)]),
            archived=np.array([pick(range(10)) == 0 for _ in range(tenants)]),
        ),
        quotas=_quotas(pick, tenants, pools),
        pending=_pending(pick, pending, tenants, pools),
        running=_none_running(),
    )
    return replace(shot, running=_running(pick, shot, 9 if crowded else 3))


def _quotas(pick: Pick, tenants: int, pools: int) -> Quotas:
    def table(values: list[float]) -> Any:
        return np.array([[pick(values) for _ in range(pools)] for _ in range(tenants)])

    return Quotas(
        guarantee=table([0, 0, 2, 5]).astype(np.int64),
        ceiling=table([-1, -1, -1, 3, 6, 12]).astype(np.int64),
        weight=table([np.nan, np.nan, 0.0, 3.0]),
    )


def _pending(pick: Pick, count: int, tenants: int, pools: int) -> Pending:
    def column(values: Any) -> Any:
        return ints(pick(values) for _ in range(count))

    return Pending(
        id=ints(100 + k for k in range(count)),
        tenant=column(range(tenants)),
        pool=column(range(pools)),
        size=column([1, 1, 2, 3, 5, 9]),
        gpus_per_member=column([1, 1, 1, 2, 4]),
        submitted=NOW - column([0, MINUTE, HOUR, 24 * HOUR]),
        limit=column(LIMITS),
        class_priority=column([-1, 0, 0, 1, 2]),
        nice=column([0, 0, 5, 10_000]),
        queue_factor=np.array([pick([0.0, 0.5]) for _ in range(count)]),
        topology=column([0, 0, 0, 1, 2]),
        gate=column([0] * 8 + [int(Reason.HELD), int(Reason.PAUSED)]),
        broken=column([0, 0, 0, 1]).astype(np.bool_),
        reserved_since=np.full(count, -1, dtype=np.int64),
        no_reserve_before=column([0, 0, 0, NOW + HOUR]),
        hold_offsets=np.zeros(count + 1, dtype=np.int64),
        hold_rank=ints([]),
        hold_node=ints([]),
        preemptible=column([0, 1, 1, 1, 1]).astype(np.bool_),
    )


def _none_running() -> Running:
    nothing = ints([])
    return Running(*[nothing] * 8, member_offsets=ints([0]), member_node=nothing)


def _running(pick: Pick, shot: Snapshot, most: int) -> Running:
    """Put jobs where they fit, on drained nodes too: single ones, then gangs on what is left."""
    nodes = shot.nodes
    free = np.where(nodes.state < 2, nodes.gpus - nodes.foreign, 0).tolist()
    rows: list[tuple[int, int, list[int]]] = []
    for node in range(len(nodes.id)):
        for _ in range(pick(range(4)) if most == 3 else most):
            gpus = pick([1, 1, 2, 4])
            if gpus <= free[node]:
                free[node] -= gpus
                rows.append((int(nodes.pool[node]), gpus, [node]))
    for pool in range(len(shot.pools.id)):
        for _ in range(pick([0, 1, 2])):
            gpus, size = pick([1, 1, 2]), pick([2, 3, 4])
            where: list[int] = []
            for node in np.flatnonzero(nodes.pool == pool).tolist():
                while len(where) < size and free[node] >= gpus:
                    free[node] -= gpus
                    where.append(node)
            if where:
                rows.append((pool, gpus, where))
    count = len(rows)

    def column(values: Any) -> Any:
        return ints(pick(values) for _ in range(count))

    size = ints(len(r[2]) for r in rows)
    started, limit = NOW - column([0, MINUTE, 20 * MINUTE, 2 * HOUR]), column(LIMITS)
    demoted = column([-1, -1, -1, -1, NOW - 10 * MINUTE])
    return Running(
        id=ints(1000 + k for k in range(count)),
        tenant=column(range(len(shot.tenants.id))),
        pool=ints(r[0] for r in rows),
        size=size,
        gpus_per_member=ints(r[1] for r in rows),
        started=started,
        ends_by=np.where(limit >= 0, started + limit, -1),
        class_priority=column([-1, 0, 0, 1]),
        member_offsets=ints(np.cumsum([0, *size])),
        member_node=ints(n for r in rows for n in r[2]),
        submitted=started - column([0, MINUTE]),
        preemptible=column([0, 1, 1, 1, 1, 1]).astype(np.bool_),
        min_size=np.maximum(size - column([0, 0, 1, 2]), 1),
        last_checkpoint=np.where(column([0, 1]) > 0, started + (NOW - started) // 2, -1),
        restarted=np.where(column([0, 0, 1]) > 0, started, -1),
        evictions=column([0, 0, 0, 1, 3]),
        demoted=demoted,
        leaving_for=np.where(demoted >= 0, column([-1, 100, 101]), -1),
    )


def shuffled(shot: Snapshot, rng: np.random.Generator) -> Snapshot:
    """Permute the rows of every table; the ids say what is what."""
    nodes_new = rng.permutation(len(shot.nodes.id))
    tenants_new = rng.permutation(len(shot.tenants.id))
    pools_new = rng.permutation(len(shot.pools.id))
    pending_new = rng.permutation(len(shot.pending.id))
    running_new = rng.permutation(len(shot.running.id))
    node_at, tenant_at, pool_at = (np.argsort(p) for p in (nodes_new, tenants_new, pools_new))

    def again(table: Any, order: Any, *skip: str) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name in type(table).__slots__:
            value = getattr(table, name)
            if name.startswith(skip):
                continue
            if isinstance(value, tuple):
                columns[name] = tuple(value[k] for k in order)
            else:
                columns[name] = value[order]
        for name, at in (("tenant", tenant_at), ("pool", pool_at)):
            if name in columns and len(columns[name]):
                columns[name] = at[columns[name]]
        return columns

    def members(offsets: Any, flats: list[Any], order: Any) -> list[Any]:
        parts = [np.arange(offsets[k], offsets[k + 1]) for k in order]
        flat = np.concatenate([*parts, ints([])]).astype(np.int64)
        lengths = [len(p) for p in parts]
        return [ints(np.cumsum([0, *lengths])), *(f[flat] for f in flats)]

    parent = shot.tenants.parent[tenants_new]
    tenants = Tenants(
        **again(shot.tenants, tenants_new)
        | {"parent": np.where(parent >= 0, tenant_at[np.maximum(parent, 0)], -1)}
    )
    pending, running = shot.pending, shot.running
    hold_offsets, hold_rank, hold_node = members(
        pending.hold_offsets, [pending.hold_rank, pending.hold_node], pending_new
    )
    promise_offsets, promise_rank, promise_node = members(
        pending.promise_offsets, [pending.promise_rank, pending.promise_node], pending_new
    )
    member_offsets, member_node = members(
        running.member_offsets, [running.member_node], running_new
    )
    return Snapshot(
        now=shot.now,
        pools=Pools(**again(shot.pools, pools_new)),
        nodes=Nodes(**again(shot.nodes, nodes_new)),
        tenants=tenants,
        quotas=Quotas(
            **{
                name: getattr(shot.quotas, name)[tenants_new][:, pools_new]
                for name in Quotas.__slots__
            }
        ),
        pending=Pending(
            **again(pending, pending_new, "hold_", "promise_"),
            hold_offsets=hold_offsets,
            hold_rank=hold_rank,
            hold_node=node_at[hold_node] if len(hold_node) else hold_node,
            promise_offsets=promise_offsets,
            promise_rank=promise_rank,
            promise_node=node_at[promise_node] if len(promise_node) else promise_node,
        ),
        running=Running(
            **again(running, running_new, "member_"),
            member_offsets=member_offsets,
            member_node=node_at[member_node] if len(member_node) else member_node,
        ),
    )
