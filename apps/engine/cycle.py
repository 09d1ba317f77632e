"""The recipe: what a tick saw becomes what is to be done, and why the rest waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apps.engine import fairshare
from apps.engine.draft import Draft, Limits, Outcome
from apps.engine.errors import Refused
from apps.engine.ground import Ground, Members
from apps.engine.lending import Kept
from apps.engine.ordering import order_of, terms_of
from apps.engine.placement import placer, wasted
from apps.engine.quotas import (
    UNLIMITED,
    Promises,
    asks_by_tenant,
    borrowing,
    entitlements,
    promises,
)
from apps.engine.tree import Tree, plant, roll_up, siblings_of
from apps.engine.types import (
    NONE,
    Bools,
    Holds,
    Ints,
    NodeState,
    Placements,
    Plan,
    Policy,
    Reason,
    Room,
    Snapshot,
    Standings,
    Verdict,
    Verdicts,
)
from apps.engine.walk import Walk

BACKFILLS = ("easy", "none")
LACKS_ROOM = (Reason.CAPACITY, Reason.PLACEMENT, Reason.RESERVED)


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """What the recipe's steps share."""

    snapshot: Snapshot
    policy: Policy
    tree: Tree
    held: Promises
    free: Ints  # by node, before the decision
    grounds: list[Ground]
    pool_gpus: Ints
    need: Ints


def check(policy: Policy) -> None:
    """Refuse what the engine does not do, by name.

    :raises Refused: if a name is unknown, or known and not built yet.
    """
    fairshare.check(policy.fair_share)
    placer(policy.placement)
    if policy.backfill not in BACKFILLS:
        later = policy.backfill == "conservative"
        raise Refused(
            "backfill", policy.backfill, "is not built yet" if later else "is not a backfill"
        )
    if policy.preemption != "none":
        later = policy.preemption in ("priority", "reclaim", "fair")
        hint = "is not built yet" if later else "is not a preemption rule"
        raise Refused("preemption", policy.preemption, hint)
    if policy.fair_share == "classic" and not policy.dampening > 0:
        raise Refused("dampening", policy.dampening, "must be above 0")


def schedule(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide: who starts, who reserves, and why each other job waits.

    Pure: the same snapshot and policy give the same plan, whatever the order of the rows.

    :raises Refused: if the policy names what the engine does not do, or the tree is none.
    """
    check(policy)
    pending, running, tenants = snapshot.pending, snapshot.running, snapshot.tenants
    tree = plant(tenants)
    field = _survey(snapshot, policy, tree)
    has_jobs = np.zeros(len(tenants.id), dtype=np.bool_)
    has_jobs[pending.tenant] = True
    has_jobs[running.tenant] = True
    siblings = siblings_of(tenants, tree, has_jobs)
    factor, rank = fairshare.factors(siblings, policy)
    terms, priority = terms_of(pending, policy, snapshot.now, factor, field.pool_gpus)
    order = order_of(pending, priority, tree.weightless[pending.tenant])
    draft, most = _open(field)
    outcome = _walks(field, order, draft)
    count = len(pending.id)
    verdict = np.where(draft.reason == Reason.STARTS, int(Verdict.START), int(Verdict.WAIT))
    verdict[list(outcome.holds)] = Verdict.RESERVE
    position = np.empty(count, dtype=np.int64)
    position[order] = np.arange(count)
    few = len(tenants.id)
    return Plan(
        order=order,
        verdicts=Verdicts(
            verdict=verdict,
            reason=draft.reason,
            needed=draft.needed,
            available=draft.available,
            tenant=draft.tenant,
            for_job=draft.for_job,
            until=draft.until,
            most=most,
            forecast=draft.forecast,
            terms=terms,
            priority=priority,
            position=position,
        ),
        starts=_placements(outcome),
        holds=_holds(outcome),
        timed_out=np.array(sorted(outcome.timed_out), dtype=np.int64),
        standings=_standings(
            field,
            draft,
            usage=siblings.usage[:few],
            share=siblings.share[:few],
            usage_share=siblings.usage_share[:few],
            level=siblings.level[:few],
            factor=factor,
            rank=rank,
        ),
        room=_room(field, draft, outcome),
    )


def _survey(snapshot: Snapshot, policy: Policy, tree: Tree) -> Field:
    """Look over nodes, use and promises."""
    nodes, pools = snapshot.nodes, snapshot.pools
    members = Members(snapshot.running)
    idle = nodes.gpus - nodes.foreign - members.used(len(nodes.id))
    free = np.where(nodes.state == NodeState.UP, np.maximum(idle, 0), 0)
    pool_gpus = np.zeros(len(pools.id), dtype=np.int64)
    np.add.at(pool_gpus, nodes.pool, nodes.gpus)
    return Field(
        snapshot=snapshot,
        policy=policy,
        tree=tree,
        held=promises(snapshot.quotas, snapshot.tenants, tree, snapshot.running),
        free=free,
        grounds=[Ground(snapshot, pool, free, members) for pool in range(len(pools.id))],
        pool_gpus=pool_gpus,
        need=snapshot.pending.size * snapshot.pending.gpus_per_member,
    )


def _open(field: Field) -> tuple[Draft, Ints]:
    """Write down what is plain before the walk: gates, what never fits, pools without nodes."""
    pending, grounds = field.snapshot.pending, field.grounds
    count = len(pending.id)

    def blank() -> Ints:
        return np.full(count, NONE, dtype=np.int64)

    draft = Draft(blank(), blank(), blank(), blank(), blank(), blank(), blank())
    most = blank()
    if not count:
        return draft, most
    width = int(pending.gpus_per_member.max()) + 1
    shape = (pending.pool * 3 + pending.topology) * width + pending.gpus_per_member
    kinds, which = np.unique(shape, return_inverse=True)
    ever = np.array(
        [
            grounds[kind // width // 3].most(kind % width, kind // width % 3, usable=False)
            * (kind % width)
            for kind in kinds.tolist()
        ],
        dtype=np.int64,
    )[which]
    lowest = field.held.lowest[pending.tenant, pending.pool]
    usable = np.array([bool(ground.nodes) for ground in grounds], dtype=np.bool_)
    gated = pending.gate > 0
    never = ~gated & (field.need > np.minimum(ever, lowest))
    nowhere = ~gated & ~never & ~usable[pending.pool]
    draft.reason[gated] = pending.gate[gated]
    draft.reason[never] = Reason.NEVER_FITS
    draft.needed[never] = field.need[never]
    most[never] = np.minimum(ever, lowest)[never]
    draft.reason[nowhere] = Reason.NO_NODES
    return draft, most


def _walks(field: Field, order: Ints, draft: Draft) -> Outcome:
    """Walk each pool's open jobs in order; pools share nothing but the order."""
    pending, tree, held = field.snapshot.pending, field.tree, field.held
    how = placer(field.policy.placement)
    whole = Outcome()
    parents = tree.parent.tolist()
    weightless = tree.weightless.tolist()
    zero = (field.snapshot.tenants.weight <= 0).tolist()
    bottom_up = [int(t) for level in reversed(tree.levels) for t in level]
    still_open = order[draft.reason[order] == NONE]
    of_pool = pending.pool[still_open]
    for pool, ground in enumerate(field.grounds):
        jobs = still_open[of_pool == pool]
        if not len(jobs):
            continue
        used = held.used[:, pool].tolist()
        limits = Limits(
            parents=parents,
            used=used,
            ceiling=held.ceiling[:, pool].tolist(),
            guarantee=held.guarantee[:, pool].tolist(),
            weightless=weightless,
            zero=zero,
        )
        kept = None
        if not field.policy.lend_guarantee:
            kept = Kept(parents, bottom_up, limits.guarantee, used)
        waste = _waste(field, jobs, ground)
        out = Walk(
            field.snapshot.now, field.policy, pending, jobs, ground, limits, draft, how, waste, kept
        ).run()
        held.used[:, pool] = used
        whole.starts.update(out.starts)
        whole.holds.update(out.holds)
        whole.timed_out.update(out.timed_out)
    return whole


def _waste(field: Field, jobs: Ints, ground: Ground) -> list[float]:
    """Weigh free amounts by the shapes that wait; only ``frag`` asks."""
    if field.policy.placement != "frag":
        return []
    pending = field.snapshot.pending
    shapes, which = np.unique(pending.gpus_per_member[jobs], return_inverse=True)
    many = np.bincount(which, weights=pending.size[jobs]).astype(np.int64)
    top = max(ground.free, default=0)
    return wasted(dict(zip(shapes.tolist(), many.tolist(), strict=True)), top)


def _offsets(lengths: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _placements(outcome: Outcome) -> Placements:
    jobs = sorted(outcome.starts)
    return Placements(
        job=np.array(jobs, dtype=np.int64),
        offsets=_offsets([len(outcome.starts[j]) for j in jobs]),
        node=np.array([n for j in jobs for n in outcome.starts[j]], dtype=np.int64),
    )


def _holds(outcome: Outcome) -> Holds:
    jobs = sorted(outcome.holds)
    rows = [row for j in jobs for row in outcome.holds[j]]
    return Holds(
        job=np.array(jobs, dtype=np.int64),
        offsets=_offsets([len(outcome.holds[j]) for j in jobs]),
        rank=np.array([rank for rank, _ in rows], dtype=np.int64),
        node=np.array([node for _, node in rows], dtype=np.int64),
    )


def _standings(field: Field, draft: Draft, **shares: np.ndarray) -> Standings:
    """Say where tenants stand after the decision."""
    snapshot, tree, held = field.snapshot, field.tree, field.held
    pending, running, nodes = snapshot.pending, snapshot.running, snapshot.nodes
    shape = held.used.shape
    starts = draft.reason == Reason.STARTS
    own = asks_by_tenant(shape, pending.tenant, pending.pool, field.need, starts)
    np.add.at(own, (running.tenant, running.pool), running.size * running.gpus_per_member)
    used = np.asarray(roll_up(tree, own), dtype=np.int64)
    lacking: Bools = np.isin(draft.reason, LACKS_ROOM)
    asked = own + asks_by_tenant(shape, pending.tenant, pending.pool, field.need, lacking)
    up = nodes.state == NodeState.UP
    totals = np.zeros(len(snapshot.pools.id), dtype=np.int64)
    np.add.at(totals, nodes.pool[up], np.maximum(nodes.gpus - nodes.foreign, 0)[up])
    lent, borrowed = borrowing(snapshot.tenants, tree, held.guarantee, used, own, totals)
    ceiling = np.where(held.ceiling == UNLIMITED, NONE, held.ceiling)
    return Standings(
        **shares,
        guarantee=held.guarantee,
        ceiling=ceiling,
        used=used,
        entitlement=entitlements(
            snapshot.tenants,
            tree,
            held,
            used,
            asked,
            totals,
            lend=field.policy.lend_guarantee,
        ),
        lent=lent,
        borrowed=borrowed,
        over_quota=np.where(ceiling >= 0, np.maximum(used - ceiling, 0), 0),
    )


def _room(field: Field, draft: Draft, outcome: Outcome) -> Room:
    """Count GPUs after the decision; stranded: free, and too few for any member that waits."""
    pending, nodes = field.snapshot.pending, field.snapshot.nodes
    free = field.free.copy()
    held = np.zeros(len(nodes.id), dtype=np.int64)
    for job, where in outcome.starts.items():
        np.subtract.at(free, where, pending.gpus_per_member[job])
    for job, rows in outcome.holds.items():
        np.add.at(held, [node for _, node in rows], pending.gpus_per_member[job])
    free -= held
    pools = len(field.snapshot.pools.id)
    waits = np.isin(draft.reason, (*LACKS_ROOM, Reason.CEILING, Reason.WEIGHTLESS))
    smallest = np.zeros(pools, dtype=np.int64)
    if waits.any():
        huge = np.full(pools, UNLIMITED)
        np.minimum.at(huge, pending.pool[waits], pending.gpus_per_member[waits])
        smallest = np.where(huge == UNLIMITED, 0, huge)
    stranded = np.where(free < smallest[nodes.pool], free, 0)

    def by_pool(values: Ints) -> Ints:
        total = np.zeros(pools, dtype=np.int64)
        np.add.at(total, nodes.pool, values)
        return total

    return Room(
        gpus=field.pool_gpus,
        free=by_pool(free),
        held=by_pool(held),
        promised=np.zeros(pools, dtype=np.int64),
        stranded=stranded,
    )
