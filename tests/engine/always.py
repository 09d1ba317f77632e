"""What must always hold of a plan, checked from the snapshot alone, without the engine's code."""

from __future__ import annotations

from typing import Any

import numpy as np

from apps.engine.codec import to_columns
from apps.engine.types import (
    Holds,
    Mode,
    NodeState,
    Plan,
    Policy,
    Reason,
    Snapshot,
    Topology,
    Verdict,
)
from tests.engine import giving_way
from tests.engine.clock import ints, last_leaving, ragged

ROOM = {Reason.CAPACITY, Reason.PLACEMENT, Reason.RESERVED}


def check(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """Assert all of it."""
    one_verdict_each(snapshot, plan)
    gangs_whole(snapshot, plan)
    nodes_not_exceeded(snapshot, plan)
    topology_kept(snapshot, plan)
    ceilings_not_exceeded(snapshot, plan)
    only_one_reserves(snapshot, plan)
    numbers_make_sense(snapshot, policy, plan)
    room_adds_up(snapshot, plan)
    standings_add_up(snapshot, plan)
    giving_way.check(snapshot, policy, plan)


def one_verdict_each(snapshot: Snapshot, plan: Plan) -> None:
    pending, verdicts = snapshot.pending, plan.verdicts
    count = len(pending.id)
    assert sorted(plan.order.tolist()) == list(range(count))
    assert verdicts.position[plan.order].tolist() == list(range(count))
    started, holding = set(plan.starts.job.tolist()), set(plan.holds.job.tolist())
    for k in range(count):
        verdict, reason = Verdict(int(verdicts.verdict[k])), Reason(int(verdicts.reason[k]))
        assert (verdict == Verdict.START) == (reason == Reason.STARTS) == (k in started)
        assert (verdict == Verdict.RESERVE) == (k in holding)
        if pending.gate[k]:
            assert reason == pending.gate[k]
    assert len(started) == len(plan.starts.job)
    assert len(holding) == len(plan.holds.job)


def gangs_whole(snapshot: Snapshot, plan: Plan) -> None:
    pending = snapshot.pending
    for k, job in enumerate(plan.starts.job.tolist()):
        assert len(plan.starts.node[ragged(plan.starts, k)]) == pending.size[job], "partial gang"
    for k, job in enumerate(plan.holds.job.tolist()):
        ranks = plan.holds.rank[ragged(plan.holds, k)].tolist()
        assert ranks
        assert len(set(ranks)) == len(ranks) <= pending.size[job]
        assert set(ranks) <= set(range(int(pending.size[job])))


def used_by_node(snapshot: Snapshot) -> Any:
    used = snapshot.nodes.foreign.copy()
    running = snapshot.running
    for k in range(len(running.id)):
        where = running.member_node[running.member_offsets[k] : running.member_offsets[k + 1]]
        np.add.at(used, where, running.gpus_per_member[k])
    return used


def taken_by_node(snapshot: Snapshot, plan: Plan) -> tuple[Any, Any]:
    """Return the GPUs that starts and holds take, by node."""
    starts, holds = np.zeros((2, len(snapshot.nodes.id)), dtype=np.int64)
    for taken, table in ((starts, plan.starts), (holds, plan.holds)):
        for k, job in enumerate(table.job.tolist()):
            np.add.at(taken, table.node[ragged(table, k)], snapshot.pending.gpus_per_member[job])
    return starts, holds


def nodes_not_exceeded(snapshot: Snapshot, plan: Plan) -> None:
    nodes = snapshot.nodes
    starts, holds = taken_by_node(snapshot, plan)
    new = starts + holds
    used = used_by_node(snapshot)
    touched = new > 0
    assert (nodes.state[touched] == NodeState.UP).all()
    assert (used + new <= nodes.gpus)[touched].all(), "node exceeded"
    for table in (plan.starts, plan.holds):
        for k, job in enumerate(table.job.tolist()):
            assert (nodes.pool[table.node[ragged(table, k)]] == snapshot.pending.pool[job]).all()


def topology_kept(snapshot: Snapshot, plan: Plan) -> None:
    for table in (plan.starts, plan.holds):
        for k, job in enumerate(table.job.tolist()):
            where = set(table.node[ragged(table, k)].tolist())
            wanted = Topology(int(snapshot.pending.topology[job]))
            if wanted == Topology.NONE:
                continue
            codes = snapshot.nodes.rack if wanted == Topology.RACK else snapshot.nodes.nvlink
            domains = {(int(codes[n]), n if codes[n] < 0 else -1) for n in where}
            assert len(domains) == 1


def ancestors(snapshot: Snapshot, tenant: int) -> list[int]:
    path = []
    while tenant >= 0:
        path.append(tenant)
        tenant = int(snapshot.tenants.parent[tenant])
    return path


def used_by_tenant(snapshot: Snapshot, plan: Plan | None) -> Any:
    used = np.zeros((len(snapshot.tenants.id), len(snapshot.pools.id)), dtype=np.int64)
    running, pending = snapshot.running, snapshot.pending
    rows = [
        (int(running.tenant[k]), int(running.pool[k]), int(running.size[k]), int(gpus))
        for k, gpus in enumerate(running.gpus_per_member)
    ]
    for job in plan.starts.job.tolist() if plan else ():
        gpus = int(pending.gpus_per_member[job])
        rows.append(
            (int(pending.tenant[job]), int(pending.pool[job]), int(pending.size[job]), gpus)
        )
    for tenant, pool, size, gpus in rows:
        for above in ancestors(snapshot, tenant):
            used[above, pool] += size * gpus
    return used


def ceilings_not_exceeded(snapshot: Snapshot, plan: Plan) -> None:
    before, after = used_by_tenant(snapshot, None), used_by_tenant(snapshot, plan)
    ceiling = snapshot.quotas.ceiling
    grown = (after > before) & (ceiling >= 0)
    assert (after[grown] <= ceiling[grown]).all(), "ceiling exceeded"


def only_one_reserves(snapshot: Snapshot, plan: Plan) -> None:
    reserve = np.setdiff1d(plan.holds.job, plan.leaving.job)  # who is promised none
    pools = snapshot.pending.pool[reserve].tolist()
    assert len(set(pools)) == len(pools)


def numbers_make_sense(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    pending, verdicts = snapshot.pending, plan.verdicts
    need = pending.size * pending.gpus_per_member
    numbers = {**ROOM_NUMBERS, Reason.CEILING: True, Reason.GUARANTEE: True}
    for k in range(len(pending.id)):
        reason = Reason(int(verdicts.reason[k]))
        if reason in numbers:
            assert verdicts.needed[k] == need[k]
            assert verdicts.available[k] >= 0
            assert verdicts.position[k] >= 0
        if reason == Reason.GUARANTEE:
            assert not pending.preemptible[k]
            assert int(verdicts.tenant[k]) in ancestors(snapshot, int(pending.tenant[k]))
        if reason in (Reason.CEILING, Reason.CAPACITY, Reason.GUARANTEE):
            assert verdicts.available[k] < verdicts.needed[k]
        if reason == Reason.CEILING:
            assert int(verdicts.tenant[k]) in ancestors(snapshot, int(pending.tenant[k]))
        if reason == Reason.NEVER_FITS:
            assert 0 <= verdicts.most[k] < verdicts.needed[k] == need[k]
        if reason == Reason.RESERVED:
            first = int(verdicts.for_job[k])
            if first not in plan.leaving.job:  # a promise outlasts a change of order
                assert verdicts.position[first] < verdicts.position[k]
            assert pending.pool[first] == pending.pool[k]
        if reason == Reason.WEIGHTLESS:
            path = ancestors(snapshot, int(pending.tenant[k]))
            assert any(snapshot.tenants.weight[t] == 0 for t in path)
    assert np.isfinite(verdicts.priority).all()
    assert np.isfinite(verdicts.terms).all()
    sums = verdicts.terms.sum(axis=1)
    assert np.allclose(verdicts.priority, np.maximum(sums, 1.0))
    if policy.backfill == "easy":
        late = np.isin(verdicts.reason, list(ROOM)) & (verdicts.forecast >= 0)
        assert (verdicts.forecast[late] >= snapshot.now).all()


ROOM_NUMBERS = dict.fromkeys(ROOM, True)


def room_adds_up(snapshot: Snapshot, plan: Plan) -> None:
    nodes, room = snapshot.nodes, plan.room
    starts, holds = taken_by_node(snapshot, plan)
    usable = np.where(
        nodes.state == NodeState.UP, np.maximum(nodes.gpus - used_by_node(snapshot), 0), 0
    )
    running, asked = snapshot.running, plan.evictions
    going = ints(last_leaving(running))
    for victim, mode, members in zip(asked.victim, asked.mode, asked.members, strict=True):
        going[victim] = 0 if mode == Mode.DEMOTE else members
    going *= running.gpus_per_member
    for pool in range(len(snapshot.pools.id)):
        here = nodes.pool == pool
        assert room.promised[pool] == going[running.pool == pool].sum()
        assert room.gpus[pool] == nodes.gpus[here].sum()
        assert room.held[pool] == holds[here].sum()
        assert room.free[pool] + room.held[pool] + starts[here].sum() == usable[here].sum()
        assert 0 <= room.stranded[here].sum() <= room.free[pool]
    assert (room.stranded >= 0).all()


def standings_add_up(snapshot: Snapshot, plan: Plan) -> None:
    s, tenants = plan.standings, snapshot.tenants
    assert (s.used == used_by_tenant(snapshot, plan)).all()
    for name, column in to_columns(s).items():
        if column.dtype.kind == "f" and name not in ("factor", "level"):
            assert np.isfinite(column).all(), name
    assert not np.isnan(s.level).any()
    ranked = ~np.isnan(s.factor)
    assert ((s.rank >= 1) == ranked).all()
    assert ((s.factor[ranked] >= 0) & (s.factor[ranked] <= 1)).all()
    assert (s.level[tenants.weight == 0] == 0).all()
    up = snapshot.nodes.state == NodeState.UP
    for pool in range(len(snapshot.pools.id)):
        gpus = snapshot.nodes.gpus - snapshot.nodes.foreign
        total = int(gpus[up & (snapshot.nodes.pool == pool)].sum())
        for parent in range(-1, len(tenants.id)):
            below = tenants.parent == parent
            share = total if parent < 0 else s.entitlement[parent, pool]
            assert s.entitlement[below, pool].sum() <= share
            assert (
                parent < 0
                or s.guarantee[parent, pool] >= s.guarantee[below & ~tenants.archived, pool].sum()
                or tenants.archived[ancestors(snapshot, parent)].any()
            )
    limited = s.ceiling >= 0
    assert (s.entitlement[limited] <= s.ceiling[limited]).all()
    for column in (s.entitlement, s.lent, s.borrowed, s.over_quota, s.used, s.guarantee):
        assert (column >= 0).all()
    assert (s.lent <= np.maximum(s.guarantee - s.used, 0)).all()


def holds_by_id(snapshot: Snapshot, plan: Plan) -> dict[int, dict[int, int]]:
    """Spell out what is held: job id → rank → node id."""
    return _by_id(snapshot, plan.holds)


def promises_by_id(snapshot: Snapshot, plan: Plan) -> dict[int, dict[int, int]]:
    """Spell out what is promised: job id → rank → node id."""
    return _by_id(snapshot, plan.promises)


def _by_id(snapshot: Snapshot, table: Holds) -> dict[int, dict[int, int]]:
    return {
        int(snapshot.pending.id[j]): dict(
            zip(
                table.rank[ragged(table, k)].tolist(),
                snapshot.nodes.id[table.node[ragged(table, k)]].tolist(),
                strict=True,
            )
        )
        for k, j in enumerate(table.job.tolist())
    }


def evictions_by_id(snapshot: Snapshot, plan: Plan) -> set[tuple[Any, ...]]:
    """Spell out who is asked for whom: (victim, beneficiary, mode, members, rule)."""
    asked = plan.evictions
    return set(
        zip(
            snapshot.running.id[asked.victim].tolist(),
            snapshot.pending.id[asked.job].tolist(),
            asked.mode.tolist(),
            asked.members.tolist(),
            asked.rule,
            strict=True,
        )
    )


def starts_by_id(snapshot: Snapshot, plan: Plan) -> dict[int, list[int]]:
    """Spell out what starts: job id → node ids by rank."""
    return {
        int(snapshot.pending.id[j]): snapshot.nodes.id[
            plan.starts.node[ragged(plan.starts, k)]
        ].tolist()
        for k, j in enumerate(plan.starts.job.tolist())
    }
