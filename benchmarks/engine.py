"""The engine's figures: one cycle over 2,000 nodes of 8 GPUs and 1,000 tenants."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

from apps.engine.cycle import schedule
from apps.engine.types import (
    HOUR,
    Nodes,
    Pending,
    Policy,
    Pools,
    Quotas,
    Running,
    Snapshot,
    Tenants,
    Weights,
)

SEED = 20260105
NOW = 1_767_614_400_000_000
SIZES = (1, 1, 1, 2, 2, 4, 8, 8, 16, 32, 64, 128)
LIMITS = (HOUR // 2, HOUR, 4 * HOUR, 12 * HOUR, 24 * HOUR, 72 * HOUR)


def snapshot(nodes: int, tenants: int, pending: int, *, load: float = 0.0) -> Snapshot:
    """Make a cluster of one pool in racks of 16, a tree three deep, and gangs of 1 to 128.

    ``load`` is the part of the nodes that run one-node jobs already.
    """
    rng = np.random.default_rng(SEED)
    tops = max(tenants // 20, 1)
    parent = np.where(np.arange(tenants) < tops, -1, rng.integers(0, tops, tenants))
    busy = np.flatnonzero(rng.random(nodes) < load)
    started = NOW - rng.integers(0, 24 * HOUR, len(busy))
    zeros = np.zeros(pending, dtype=np.int64)
    return Snapshot(
        now=NOW,
        pools=Pools(id=np.array([1]), name=("h100",)),
        nodes=Nodes(
            id=np.arange(1, nodes + 1),
            name=tuple(f"n{n:05d}" for n in range(nodes)),
            pool=np.zeros(nodes, dtype=np.int64),
            gpus=np.full(nodes, 8),
            state=np.zeros(nodes, dtype=np.int64),
            rack=np.arange(nodes) // 16,
            nvlink=np.arange(nodes) // 4,
            foreign=np.zeros(nodes, dtype=np.int64),
        ),
        tenants=Tenants(
            id=np.arange(1, tenants + 1),
            name=tuple(f"t{n}" for n in range(tenants)),
            parent=parent.astype(np.int64),
            weight=rng.integers(1, 10, tenants).astype(np.float64),
            usage=rng.exponential(1000.0, tenants),
            archived=np.zeros(tenants, dtype=np.bool_),
        ),
        quotas=Quotas(
            guarantee=np.where(np.arange(tenants) < tops, nodes * 4 // tops, 0)[:, None],
            ceiling=np.where(np.arange(tenants) < tops, nodes * 8 * 3 // tops + 128, -1)[:, None],
            weight=np.full((tenants, 1), np.nan),
        ),
        pending=Pending(
            id=np.arange(1, pending + 1),
            tenant=rng.integers(0, tenants, pending),
            pool=zeros,
            size=rng.choice(SIZES, pending),
            gpus_per_member=np.ones(pending, dtype=np.int64),
            submitted=NOW - rng.integers(0, 48 * HOUR, pending),
            limit=rng.choice(LIMITS, pending),
            class_priority=rng.integers(0, 3, pending),
            nice=zeros,
            queue_factor=np.zeros(pending),
            topology=rng.choice([0, 0, 0, 1, 2], pending),
            gate=zeros,
            broken=np.zeros(pending, dtype=np.bool_),
            reserved_since=zeros - 1,
            no_reserve_before=zeros,
            hold_offsets=np.zeros(pending + 1, dtype=np.int64),
            hold_rank=np.zeros(0, dtype=np.int64),
            hold_node=np.zeros(0, dtype=np.int64),
        ),
        running=Running(
            id=np.arange(pending + 1, pending + 1 + len(busy)),
            tenant=rng.integers(0, tenants, len(busy)),
            pool=np.zeros(len(busy), dtype=np.int64),
            size=np.full(len(busy), 6),
            gpus_per_member=np.ones(len(busy), dtype=np.int64),
            started=started,
            ends_by=started + rng.choice(LIMITS[4:], len(busy)),
            class_priority=np.zeros(len(busy), dtype=np.int64),
            member_offsets=np.arange(len(busy) + 1) * 6,
            member_node=np.repeat(busy, 6),
        ),
    )


def crowd(nodes: int, gang: int, *, tenants: int = 20) -> Snapshot:
    """Fill a cluster with one-GPU jobs of many tenants, and let one gang of whole nodes wait.

    The first tenant, which waits, is guaranteed all its gang needs; nobody else is promised any.
    """
    rng = np.random.default_rng(SEED)
    shot, many = snapshot(nodes, tenants, 1), nodes * 8
    started = NOW - rng.integers(1, 24 * HOUR, many)
    one = np.ones(many, dtype=np.int64)
    guarantee = np.zeros((tenants, 1), dtype=np.int64)
    guarantee[0] = gang * 8
    return replace(
        shot,
        tenants=replace(shot.tenants, parent=np.full(tenants, -1)),
        quotas=replace(shot.quotas, guarantee=guarantee, ceiling=np.full((tenants, 1), -1)),
        pending=replace(
            shot.pending,
            tenant=np.array([0]),
            size=np.array([gang]),
            gpus_per_member=np.array([8]),
            limit=np.array([4 * HOUR]),
            class_priority=np.array([2]),
            topology=np.array([0]),
        ),
        running=Running(
            id=np.arange(2, many + 2),
            tenant=rng.integers(1, tenants, many),
            pool=0 * one,
            size=one,
            gpus_per_member=one,
            started=started,
            ends_by=started + 48 * HOUR,
            class_priority=0 * one,
            member_offsets=np.arange(many + 1),
            member_node=np.repeat(np.arange(nodes), 8),
        ),
    )


def seconds(shot: Snapshot, policy: Policy, repeat: int = 5) -> float:
    """Time a cycle, the best of a few."""
    best = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        schedule(shot, policy)
        best = min(best, time.perf_counter() - begin)
    return best


def run() -> list[dict[str, Any]]:
    """Measure; each line is {"name", "value", "unit", "limit", "ok"}."""
    policy = Policy(weights=Weights(size=500.0), max_class=2)
    lines = []

    def line(name: str, value: float, unit: str, limit: float) -> None:
        value = round(value, 4)
        row = {"name": name, "value": value, "unit": unit, "limit": limit, "ok": value <= limit}
        lines.append(row)

    for pending, limit in ((10_000, 0.5), (100_000, 3.0)):
        for load, state in ((0.0, "empty"), (0.95, "full")):
            value = seconds(snapshot(2000, 1000, pending, load=load), policy)
            line(f"engine: {pending:,} pending, 2,000 nodes, {state}", value, "s", limit)
    for placement in ("spread", "frag"):
        spec = Policy(weights=Weights(size=500.0), max_class=2, placement=placement)
        value = seconds(snapshot(2000, 1000, 10_000), spec)
        line(f"engine: 10,000 pending, 2,000 nodes, {placement}", value, "s", 0.5)
    for rule in ("priority", "reclaim"):
        spec = Policy(max_class=2, preemption=rule)
        full = crowd(1000, 100)
        evicted = len(schedule(full, spec).evictions.victim)
        name = f"engine: {rule}, 8,000 running on 1,000 nodes, {evicted} evicted for 100 × 8"
        line(name, seconds(full, spec, 3), "s", 1.0)
    for rule in ("priority", "reclaim"):
        spec = Policy(max_class=2, preemption=rule, max_evictions=64)
        value = seconds(snapshot(1000, 60, 10_000, load=0.95), spec, 1)
        line(f"engine: {rule}, 10,000 pending, 1,000 nodes, full, 64 evicted", value, "s", 3.0)
    small = snapshot(100, 15, 300, load=0.9)
    line("engine: 300 pending, 100 nodes", 1000 * seconds(small, policy, 20), "ms", 10.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
    line("engine: most memory", peak, "GiB", 1.5)
    return lines


if __name__ == "__main__":
    rows = run()
    json.dump(rows, sys.stdout, indent=1)
    sys.exit(0 if all(row["ok"] for row in rows) else 1)
