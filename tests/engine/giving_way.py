"""What must always hold of evictions, checked from the snapshot alone, without the engine's code."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from apps.engine.types import Mode, NodeState, Passed, Plan, Policy, Reason, Snapshot, Topology
from tests.engine.clock import ints, last_leaving, members_of, ragged


def check(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """Assert all of it."""
    only_who_may_be_touched(snapshot, policy, plan)
    whole_places(snapshot, plan)
    nothing_promised_twice(snapshot, plan)
    waits_are_told(snapshot, policy, plan)
    guarantees_kept(snapshot, policy, plan)
    ceilings_kept_without_the_victims(snapshot, plan)
    not_beyond_the_guarantee(snapshot, policy, plan)
    no_needless_victim(snapshot, policy, plan)
    in_order(snapshot, policy, plan)
    considered_agrees(snapshot, plan)


def path(snapshot: Snapshot, tenant: int) -> list[int]:
    rows = []
    while tenant >= 0:
        rows.append(tenant)
        tenant = int(snapshot.tenants.parent[tenant])
    return rows


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    asked = plan.evictions
    names = ("victim", "job", "mode", "members", "gpus", "until", "lost")
    columns = zip(*(getattr(asked, name).tolist() for name in names), asked.rule, strict=True)
    return [dict(zip((*names, "rule"), row, strict=True)) for row in columns]


def only_who_may_be_touched(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    running, pending, now = snapshot.running, snapshot.pending, snapshot.now
    rows = rows_of(plan)
    assert not rows or policy.preemption != "none"
    victims = [row["victim"] for row in rows]
    assert len(set(victims)) == len(victims), "asked twice"
    if policy.max_evictions:
        assert len(rows) <= policy.max_evictions
    for row in rows:
        v, k, mode = row["victim"], row["job"], Mode(row["mode"])
        own = running.tenant[v] == pending.tenant[k]
        lower = running.class_priority[v] < pending.class_priority[k]
        assert running.leaving[v] < 0, "asked twice"
        assert running.preemptible[v]
        assert now >= running.started[v] + policy.min_runtime
        assert running.restarted[v] < 0 or now >= running.restarted[v] + policy.cooldown
        assert policy.thrash_after == 0 or running.evictions[v] < policy.thrash_after
        assert running.pool[v] == pending.pool[k]
        assert lower or (policy.preemption != "priority" and not own), "not a lower class"
        assert row["rule"] == ("priority" if own else policy.preemption)
        gpus, size = running.gpus_per_member[v], running.size[v]
        assert row["gpus"] == row["members"] * gpus
        since = max(running.last_checkpoint[v], running.started[v])
        assert row["lost"] == row["gpus"] * (now - since)
        if mode == Mode.SHRINK:
            assert 0 < row["members"] <= size - running.min_size[v]
        else:
            assert row["members"] == size
        if mode == Mode.DEMOTE:
            assert policy.mode == "demote"
            assert running.demoted[v] < 0
        elif policy.mode == "demote" and mode != Mode.SHRINK:
            assert mode == Mode.CHECKPOINT
            assert 0 <= running.demoted[v] <= now - policy.grace, "asked before its grace is over"
        elif mode != Mode.SHRINK:
            assert mode == Mode[policy.mode.upper()]
        if mode != Mode.DEMOTE:
            assert row["until"] == now + (0 if policy.mode == "kill" else policy.grace)


def places(plan: Plan) -> dict[int, dict[int, int]]:
    """Return the node of each rank of each promised gang."""
    found: dict[int, dict[int, int]] = {int(j): {} for j in plan.leaving.job}
    for table in (plan.holds, plan.promises):
        for k, job in enumerate(table.job.tolist()):
            if job in found:
                at = ragged(table, k)
                for rank, node in zip(
                    table.rank[at].tolist(), table.node[at].tolist(), strict=True
                ):
                    assert rank not in found[job], "a rank placed twice"
                    found[job][rank] = node
    return found


def whole_places(snapshot: Snapshot, plan: Plan) -> None:
    pending, nodes = snapshot.pending, snapshot.nodes
    found = places(plan)
    for row in rows_of(plan):
        if row["mode"] != Mode.DEMOTE:
            assert row["job"] in found, "evicted without proof"
    assert set(plan.promises.job.tolist()) <= set(found)
    for job, where in found.items():
        assert sorted(where) == list(range(int(pending.size[job]))), "evicted without proof"
        at = ints(where.values())
        assert (nodes.pool[at] == pending.pool[job]).all()
        assert (nodes.state[at] == NodeState.UP).all(), "evicted without proof"
        wanted = Topology(int(pending.topology[job]))
        if wanted != Topology.NONE:
            codes = nodes.rack if wanted == Topology.RACK else nodes.nvlink
            assert len({(int(codes[n]), n if codes[n] < 0 else -1) for n in at.tolist()}) == 1


def staying(snapshot: Snapshot, plan: Plan) -> Any:
    """Return the GPUs by node of work that was not asked to leave, now or before."""
    running, used = snapshot.running, snapshot.nodes.foreign.copy()
    last = last_leaving(running)
    for row in rows_of(plan):
        if row["mode"] != Mode.DEMOTE:
            last[row["victim"]] = row["members"]
    for k, where in enumerate(members_of(running)):
        np.add.at(used, where[: len(where) - last[k]], running.gpus_per_member[k])
    return used


def taken(snapshot: Snapshot, plan: Plan, *tables: Any) -> Any:
    gpus = np.zeros(len(snapshot.nodes.id), dtype=np.int64)
    for table in tables:
        for k, job in enumerate(table.job.tolist()):
            np.add.at(gpus, table.node[ragged(table, k)], snapshot.pending.gpus_per_member[job])
    return gpus


def nothing_promised_twice(snapshot: Snapshot, plan: Plan) -> None:
    all_of_it = taken(snapshot, plan, plan.starts, plan.holds, plan.promises)
    touched = all_of_it > 0
    used = staying(snapshot, plan) + all_of_it
    assert (used <= snapshot.nodes.gpus)[touched].all(), "promised twice"


def waits_are_told(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """A promised gang says whom it waits for, nobody else does; who is deferred says so."""
    verdicts, running = plan.verdicts, snapshot.running
    asked = {row["victim"]: row for row in rows_of(plan) if row["mode"] != Mode.DEMOTE}
    leaves = {v: int(at) for v, at in enumerate(running.leaving) if at >= 0}
    leaves |= {v: row["until"] for v, row in asked.items()}
    promised = plan.leaving.job.tolist()
    assert promised == np.flatnonzero(verdicts.reason == Reason.LEAVING).tolist()
    for k, job in enumerate(promised):
        victims = plan.leaving.victim[ragged(plan.leaving, k)].tolist()
        assert victims
        assert set(victims) <= leaves.keys()
        assert {v for v, row in asked.items() if row["job"] == job} <= set(victims)
        assert not set(victims) & set(plan.stays.tolist())
    for row in rows_of(plan):
        if row["mode"] == Mode.DEMOTE:
            assert verdicts.reason[row["job"]] in (Reason.DEFERRED, Reason.STARTS, Reason.LEAVING)
    for k in np.flatnonzero(verdicts.reason == Reason.DEFERRED).tolist():
        assert verdicts.until[k] > snapshot.now or verdicts.until[k] < 0 or policy.grace == 0
    assert (running.leaving[plan.stays] >= 0).all()


def use_then(snapshot: Snapshot, plan: Plan, without: int = -1) -> Any:
    """Return what tenants use, (tenants, pools), once all asked have left and all promised started.

    ``without``: a job, by pending index, that is left out.
    """
    running, pending = snapshot.running, snapshot.pending
    last = last_leaving(running)
    for row in rows_of(plan):
        if row["mode"] != Mode.DEMOTE:
            last[row["victim"]] = row["members"]
    used = np.zeros(snapshot.quotas.guarantee.shape, dtype=np.int64)
    rows = [
        (running.tenant[k], running.pool[k], (running.size[k] - last[k]) * gpus)
        for k, gpus in enumerate(running.gpus_per_member)
    ]
    rows += [
        (pending.tenant[k], pending.pool[k], pending.size[k] * pending.gpus_per_member[k])
        for k in {*plan.starts.job.tolist(), *plan.leaving.job.tolist()} - {without}
    ]
    for tenant, pool, gpus in rows:
        used[path(snapshot, int(tenant)), pool] += gpus
    return used


def firm_then(snapshot: Snapshot, plan: Plan) -> Any:
    """Return ``use_then`` without what runs on demoted: that is outside its guarantee."""
    running, firm, last = snapshot.running, use_then(snapshot, plan), last_leaving(snapshot.running)
    demoted = set(np.flatnonzero(running.demoted >= 0).tolist())
    for row in rows_of(plan):
        if row["mode"] == Mode.DEMOTE:
            demoted.add(row["victim"])
        else:
            last[row["victim"]] = row["members"]
    for v in demoted:
        gpus = (running.size[v] - last[v]) * running.gpus_per_member[v]
        firm[path(snapshot, int(running.tenant[v])), running.pool[v]] -= gpus
    return firm


def guarantees_kept(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """Nobody is pushed below its guarantee but for another's guarantee, by reclaim.

    Who is demoted counts no more; to demote is to push.
    """
    guarantee, pending = plan.standings.guarantee, snapshot.pending
    then, firm = use_then(snapshot, plan), firm_then(snapshot, plan)
    for row in rows_of(plan):
        if snapshot.running.demoted[row["victim"]] >= 0:
            continue
        pool = int(pending.pool[row["job"]])
        takers = path(snapshot, int(pending.tenant[row["job"]]))
        losers = path(snapshot, int(snapshot.running.tenant[row["victim"]]))
        for tenant in set(losers) - set(takers):
            if firm[tenant, pool] < guarantee[tenant, pool]:
                assert policy.preemption != "priority", "below the guarantee"
                top = [t for t in takers if t not in losers][-1:]
                assert top, "below the guarantee"
                assert then[top[0], pool] <= guarantee[top[0], pool], "below the guarantee"


def ceilings_kept_without_the_victims(snapshot: Snapshot, plan: Plan) -> None:
    then, ceiling = use_then(snapshot, plan), snapshot.quotas.ceiling
    for job in {row["job"] for row in rows_of(plan)} & set(plan.leaving.job.tolist()):
        for tenant in path(snapshot, int(snapshot.pending.tenant[job])):
            pool = int(snapshot.pending.pool[job])
            if ceiling[tenant, pool] >= 0:
                assert then[tenant, pool] <= ceiling[tenant, pool], "ceiling exceeded"


def not_beyond_the_guarantee(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """What cannot be preempted starts, or is promised room, within the guarantees alone."""
    if policy.preemption in ("none", "priority"):
        return
    pending, running = snapshot.pending, snapshot.running
    used = np.zeros(snapshot.quotas.guarantee.shape, dtype=np.int64)
    fixed = np.flatnonzero(~running.preemptible)
    rows = [
        (running.tenant[k], running.pool[k], running.size[k] * running.gpus_per_member[k])
        for k in fixed
    ]
    new = [k for k in plan.starts.job.tolist() if not pending.preemptible[k]]
    rows += [
        (pending.tenant[k], pending.pool[k], pending.size[k] * pending.gpus_per_member[k])
        for k in new
    ]
    for tenant, pool, gpus in rows:
        used[path(snapshot, int(tenant)), pool] += gpus
    for k in new:
        for tenant in path(snapshot, int(pending.tenant[k])):
            pool = int(pending.pool[k])
            assert used[tenant, pool] <= plan.standings.guarantee[tenant, pool]


class Room:
    """What one beneficiary could use at the end of the decision, were some of its victims spared."""

    def __init__(self, snapshot: Snapshot, plan: Plan, job: int) -> None:
        self.snapshot, self.plan, self.job = snapshot, plan, job
        nodes, pending = snapshot.nodes, snapshot.pending
        gpus = int(pending.gpus_per_member[job])
        rows = rows_of(plan)
        others = np.zeros(len(nodes.id), dtype=np.int64)
        new = {row["victim"]: row for row in rows if row["mode"] != Mode.DEMOTE}
        for v, row in new.items():
            if row["job"] != job:
                others += self.freed(v, row["members"])
        mine = np.zeros(len(nodes.id), dtype=np.int64)
        for node in places(plan).get(job, {}).values():
            mine[node] += gpus
        promised = taken(snapshot, plan, plan.starts, plan.holds, plan.promises) - mine
        # What others were promised of their own victims' room is no loss to this gang, and what
        # they leave over may have come after its turn: it is not counted.
        self.free = nodes.gpus - staying(snapshot, plan) - others - np.maximum(promised - others, 0)
        self.free[nodes.state != NodeState.UP] = 0
        self.free[nodes.pool != pending.pool[job]] = 0

    def freed(self, victim: int, members: int) -> Any:
        """Return the GPUs by node of the last members of an attempt."""
        running = self.snapshot.running
        gpus = np.zeros(len(self.snapshot.nodes.id), dtype=np.int64)
        where = members_of(running)[victim]
        np.add.at(gpus, where[len(where) - members :], running.gpus_per_member[victim])
        return gpus

    def fits(self, spared: Any, more: Any = 0) -> bool:
        """Tell whether the gang has a place without what the spared would free, and with more."""
        pending, nodes = self.snapshot.pending, self.snapshot.nodes
        slots = np.maximum(self.free - spared + more, 0) // int(pending.gpus_per_member[self.job])
        slots[nodes.pool != pending.pool[self.job]] = 0
        slots[nodes.state != NodeState.UP] = 0
        wanted = Topology(int(pending.topology[self.job]))
        size = int(pending.size[self.job])
        if wanted == Topology.NONE:
            return int(slots.sum()) >= size
        codes = nodes.rack if wanted == Topology.RACK else nodes.nvlink
        sums: dict[tuple[int, int], int] = defaultdict(int)
        for node, many in enumerate(slots.tolist()):
            sums[int(codes[node]), -1 if codes[node] >= 0 else node] += many
        return max(sums.values(), default=0) >= size


def under_ceilings(snapshot: Snapshot, plan: Plan, job: int, back: dict[int, int]) -> bool:
    """Tell whether the gang stays under its ceilings if these tenants keep so many GPUs more."""
    then, pool = use_then(snapshot, plan), int(snapshot.pending.pool[job])
    for tenant, gpus in back.items():
        then[path(snapshot, tenant), pool] += gpus
    ceiling = snapshot.quotas.ceiling[:, pool]
    mine = path(snapshot, int(snapshot.pending.tenant[job]))
    return all(ceiling[t] < 0 or then[t, pool] <= ceiling[t] for t in mine)


def judged_alone(snapshot: Snapshot, policy: Policy, plan: Plan, job: int) -> bool:
    """Tell whether nothing but room and ceilings stood in the gang's way at its turn."""
    if not policy.lend_guarantee:
        return False
    held = set(plan.holds.job.tolist()) - set(plan.leaving.job.tolist())
    planned = set(np.flatnonzero(plan.verdicts.forecast >= 0).tolist())
    reserves = held | (planned - set(plan.leaving.job.tolist()))
    pool, place = snapshot.pending.pool, plan.verdicts.position
    limited = (
        snapshot.quotas.ceiling[path(snapshot, int(snapshot.pending.tenant[job]))] >= 0
    ).any()
    room = (Reason.CAPACITY, Reason.PLACEMENT, Reason.RESERVED)
    if limited:  # an earlier gang may keep quota though it holds nothing
        reserves |= {
            k for k in np.flatnonzero(np.isin(plan.verdicts.reason, room)) if place[k] < place[job]
        }
    if policy.backfill == "none" or any(plan.evictions.mode == Mode.DEMOTE):
        return False
    return not any(pool[k] == pool[job] for k in reserves)


def no_needless_victim(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """Spare any one of a gang's victims, or one member of a shrink, and the gang has no place."""
    running = snapshot.running
    rows = [row for row in rows_of(plan) if row["mode"] != Mode.DEMOTE]
    for row in rows:
        job, v = row["job"], row["victim"]
        if not judged_alone(snapshot, policy, plan, job):
            continue
        room = Room(snapshot, plan, job)
        if not room.fits(0):  # it counts on what others leave over
            continue
        spared = row["members"]
        if row["mode"] == Mode.SHRINK:  # the last member but those: one less leaves
            spared = room.freed(v, row["members"]) - room.freed(v, row["members"] - 1)
            gpus = int(running.gpus_per_member[v])
        else:
            spared, gpus = room.freed(v, row["members"]), row["gpus"]
        needless = room.fits(spared) and under_ceilings(
            snapshot, plan, job, {int(running.tenant[v]): gpus}
        )
        assert not needless, "needless victim"


def in_order(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """The last victim in order is needed although all before it of the own tenant could go.

    Of its own tenant a gang may touch every lower class, so who comes before the last victim was
    added before it, and was not enough.
    """
    running, pending, now = snapshot.running, snapshot.pending, snapshot.now
    since = np.maximum(running.last_checkpoint, running.started)
    lost = running.size * running.gpus_per_member * (now - since)
    keys = (
        -running.id,
        -running.submitted,
        -running.started,
        lost,
        running.class_priority,
        running.demoted < 0,
    )
    place = np.argsort(np.lexsort(keys))
    rows = [row for row in rows_of(plan) if row["mode"] != Mode.DEMOTE]
    elsewhere = {row["victim"] for row in rows}
    for job in {row["job"] for row in rows}:
        mine = {row["victim"]: row for row in rows if row["job"] == job}
        last = max(mine, key=lambda v: int(place[v]))
        if mine[last]["mode"] == Mode.SHRINK or not judged_alone(snapshot, policy, plan, job):
            continue
        room, back, more = Room(snapshot, plan, job), {}, np.zeros(len(snapshot.nodes.id), int)
        for v in range(len(running.id)):
            rested = now >= running.started[v] + max(policy.min_runtime, 1)
            cool = running.restarted[v] < 0 or now >= running.restarted[v] + policy.cooldown
            free = (
                running.tenant[v] == pending.tenant[job]
                and running.pool[v] == pending.pool[job]
                and running.class_priority[v] < pending.class_priority[job]
                and running.preemptible[v]
                and running.leaving[v] < 0
                and (policy.thrash_after == 0 or running.evictions[v] < policy.thrash_after)
                and running.demoted[v] < 0
                and place[v] < place[last]
                and v not in elsewhere
            )
            if free and rested and cool:
                more += room.freed(v, int(running.size[v]))
                tenant = int(running.tenant[v])
                back[tenant] = back.get(tenant, 0) - int(
                    running.size[v] * running.gpus_per_member[v]
                )
        tenant = int(running.tenant[last])
        back[tenant] = back.get(tenant, 0) + mine[last]["gpus"]
        early = room.fits(room.freed(last, mine[last]["members"]), more)
        assert not (early and under_ceilings(snapshot, plan, job, back)), "wrong order"


def considered_agrees(snapshot: Snapshot, plan: Plan) -> None:
    """Who was chosen is who is asked, and the counts are of all that were looked at."""
    table = plan.considered
    asked = defaultdict(set)
    for row in rows_of(plan):
        asked[row["job"]].add(row["victim"])
    assert set(asked) == set(table.job.tolist())
    for k, job in enumerate(table.job.tolist()):
        at = ragged(table, k)
        codes = dict(zip(table.victim[at].tolist(), table.passed[at].tolist(), strict=True))
        chosen = {v for v, code in codes.items() if code == Passed.CHOSEN}
        assert asked[job] <= chosen
        assert table.counts[k].sum() >= len(codes) > 0
        assert (snapshot.running.pool[list(codes)] == snapshot.pending.pool[job]).all()
        assert table.counts[k, Passed.CHOSEN] == len(chosen)
