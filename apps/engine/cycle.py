"""The recipe: what a tick saw becomes what is to be done, and why the rest waits."""

from __future__ import annotations

import numpy as np

from apps.engine import answer, fairshare
from apps.engine.draft import Draft, Limits, Outcome
from apps.engine.errors import Refused
from apps.engine.field import LACKS_ROOM, Field
from apps.engine.ground import Ground, Members
from apps.engine.holdings import Holdings
from apps.engine.keeping import Allowance, Means
from apps.engine.lending import Kept
from apps.engine.ordering import order_of, terms_of
from apps.engine.placement import placer, wasted
from apps.engine.preemption import rule_of
from apps.engine.quotas import Promises, entitlements, promises
from apps.engine.tree import Tree, plant, siblings_of
from apps.engine.types import (
    MODES,
    NONE,
    Bools,
    Ints,
    NodeState,
    Plan,
    Policy,
    Reason,
    Snapshot,
)
from apps.engine.walk import Walk

BACKFILLS = ("easy", "none")


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
    rule_of(policy.preemption)
    if policy.mode not in MODES:
        raise Refused("mode", policy.mode, "is not a mode")
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
    shown = answer.Shown(siblings, factor, rank, terms, priority, order, most)
    return answer.plan_of(field, draft, outcome, shown)


def _survey(snapshot: Snapshot, policy: Policy, tree: Tree) -> Field:
    """Look over nodes, use and promises."""
    nodes, pools = snapshot.nodes, snapshot.pools
    members = Members(snapshot.running)
    idle = nodes.gpus - nodes.foreign - members.used(len(nodes.id))
    free = np.where(nodes.state == NodeState.UP, np.maximum(idle, 0), 0)
    pool_gpus = np.zeros(len(pools.id), dtype=np.int64)
    np.add.at(pool_gpus, nodes.pool, nodes.gpus)
    usable = np.zeros(len(pools.id), dtype=np.int64)
    ours = np.where(nodes.state == NodeState.UP, np.maximum(nodes.gpus - nodes.foreign, 0), 0)
    np.add.at(usable, nodes.pool, ours)
    return Field(
        snapshot=snapshot,
        policy=policy,
        tree=tree,
        held=promises(snapshot.quotas, snapshot.tenants, tree, snapshot.running),
        free=free,
        grounds=[Ground(snapshot, pool, free, members, idle) for pool in range(len(pools.id))],
        pool_gpus=pool_gpus,
        usable=usable,
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
    """Walk each pool's open jobs in order; pools share nothing but what may be evicted at once."""
    pending, running = field.snapshot.pending, field.snapshot.running
    whole = Outcome()
    most = field.policy.max_evictions
    allowance = Allowance(most if most > 0 else None)
    still_open = order[draft.reason[order] == NONE]
    of_pool = pending.pool[still_open]
    for pool in np.argsort(field.snapshot.pools.id).tolist():
        jobs = still_open[of_pool == pool]
        if len(jobs):
            means = means_of(field, pool, jobs, draft, allowance)
            whole.update(walk_of(field, pool, jobs, draft, means).run())
        else:
            asked = (running.pool == pool) & (running.leaving >= 0) & (running.leaving_for != NONE)
            whole.stays.update(np.flatnonzero(asked).tolist())
    return whole


def walk_of(field: Field, pool: int, jobs: Ints, draft: Draft, means: Means | None) -> Walk:
    """Prepare the walk of one pool's open jobs."""
    pending, tree, held, ground = (
        field.snapshot.pending,
        field.tree,
        field.held,
        field.grounds[pool],
    )
    parents = tree.parent.tolist()
    used = held.used[:, pool].tolist()
    limits = Limits(
        parents=parents,
        used=used,
        ceiling=held.ceiling[:, pool].tolist(),
        guarantee=held.guarantee[:, pool].tolist(),
        weightless=tree.weightless.tolist(),
        zero=(field.snapshot.tenants.weight <= 0).tolist(),
    )
    if means is not None:
        limits.now.extend(used)
        limits.then.extend(used)
    kept = None
    if not field.policy.lend_guarantee:
        bottom_up = [int(t) for level in reversed(tree.levels) for t in level]
        kept = Kept(parents, bottom_up, limits.guarantee, used if means is None else limits.then)
    return Walk(
        field.snapshot.now, field.policy, pending, jobs, ground, limits, draft,
        placer(field.policy.placement), _waste(field, jobs, ground), kept, means,
    )  # fmt: skip


def means_of(
    field: Field, pool: int, jobs: Ints, draft: Draft, allowance: Allowance, rule: str | None = None
) -> Means | None:
    """Prepare what a pool's evictions are made with; None: nobody is, was or can be evicted."""
    policy, snapshot, tree = field.policy, field.snapshot, field.tree
    pending, running = snapshot.pending, snapshot.running
    name = policy.preemption if rule is None else rule
    here = running.pool == pool
    if (
        name == "none"
        and not (running.leaving[here] >= 0).any()
        and not pending.promised[jobs].any()
    ):
        return None
    own = np.zeros(len(tree.parent), dtype=np.int64)
    np.add.at(own, running.tenant[here], (running.size * running.gpus_per_member)[here])

    def shares(lacking: Bools, starting: Bools) -> tuple[Ints, Ints]:
        asks = (lacking | starting) & (pending.pool == pool)
        asked = own.copy()
        np.add.at(asked, pending.tenant[asks], field.need[asks])
        one = slice(pool, pool + 1)
        held = field.held
        narrow = Promises(
            held.guarantee[:, one], held.ceiling[:, one], held.lowest[:, one], held.weight[:, one],
            held.used[:, one],
        )  # fmt: skip
        entitled, alone = entitlements(
            snapshot.tenants, tree, narrow, asked[:, None], field.usable[one],
            lend=policy.lend_guarantee,
        )  # fmt: skip
        return entitled[:, 0], alone[:, 0]

    def guess() -> tuple[Bools, Bools]:
        dry = draft.copy()
        means = means_of(field, pool, jobs, draft, Allowance(0), "none")
        walk_of(field, pool, jobs, dry, means).run()
        return np.isin(dry.reason, LACKS_ROOM), dry.reason == Reason.STARTS

    holdings = Holdings(tree, field.held.guarantee[:, pool], field.held.used[:, pool], own)
    return Means(rule_of(name), name, holdings, shares, guess, allowance)


def _waste(field: Field, jobs: Ints, ground: Ground) -> list[float]:
    """Weigh free amounts by the shapes that wait; only ``frag`` asks."""
    if field.policy.placement != "frag":
        return []
    pending = field.snapshot.pending
    shapes, which = np.unique(pending.gpus_per_member[jobs], return_inverse=True)
    many = np.bincount(which, weights=pending.size[jobs]).astype(np.int64)
    top = max([*ground.free, *ground.capacity], default=0)
    return wasted(dict(zip(shapes.tolist(), many.tolist(), strict=True)), top)
