"""Promises and limits down the tenant tree: ceilings, guarantees, entitlement, lending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apps.engine.tree import Tree, roll_up
from apps.engine.types import NONE, Bools, Floats, Ints, Quotas, Running, Tenants

UNLIMITED = np.iinfo(np.int64).max
EPSILON = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Promises:
    """Quotas as they hold in the tree, shape (tenants, pools)."""

    guarantee: Ints  # a parent's is at least its children's sum; archived tenants have none
    ceiling: Ints  # its own, UNLIMITED: none
    lowest: Ints  # the lowest ceiling on the way to the root
    weight: Floats
    used: Ints  # by running work, with all descendants


def promises(quotas: Quotas, tenants: Tenants, tree: Tree, running: Running) -> Promises:
    """Roll guarantees and use up the tree, and ceilings down."""
    guarantee = np.where(tree.active[:, None], np.maximum(quotas.guarantee, 0), 0)
    for level in reversed(tree.levels[1:]):
        below = np.zeros_like(guarantee)
        np.add.at(below, tree.parent[level], guarantee[level])
        guarantee = np.maximum(guarantee, below)
    ceiling = np.where(quotas.ceiling < 0, UNLIMITED, quotas.ceiling)
    lowest = ceiling.copy()
    for level in tree.levels[1:]:
        lowest[level] = np.minimum(lowest[level], lowest[tree.parent[level]])
    weight = np.where(np.isnan(quotas.weight), tenants.weight[:, None], quotas.weight)
    own = np.zeros_like(guarantee)
    np.add.at(own, (running.tenant, running.pool), running.size * running.gpus_per_member)
    used = np.asarray(roll_up(tree, own), dtype=np.int64)
    return Promises(guarantee, ceiling, lowest, weight, used)


def water_fill(
    total: int,
    guarantee: Sequence[int],
    weight: Sequence[float],
    demand: Sequence[int],
    *,
    lend: bool = True,
) -> list[int]:
    """Share ``total`` whole GPUs: guarantees, then the rest by weight, none above its demand.

    The sequence is older first; ``demand`` is capped by the ceiling already. An idle guarantee is
    shared with the rest unless ``lend`` is false. Weight 0 gets what is left when all others have
    what they ask. Fractions go to the largest, then the older. Source: DOMAIN decision 5.
    """
    base = [min(g, d) for g, d in zip(guarantee, demand, strict=True)]
    kept = sum(base) if lend else sum(max(g, 0) for g in guarantee)
    if sum(base) >= total:
        whole = sum(base)
        share = [b * total / whole if whole else 0.0 for b in base]
        return _whole(share, base, min(total, whole))
    filled = [float(b) for b in base]
    left = _pour(max(total - kept, 0), filled, weight, demand)
    if left > EPSILON:
        idle = [1.0 if w <= 0 else 0.0 for w in weight]
        left = _pour(left, filled, idle, demand)
    return _whole(filled, demand, round(sum(filled)))


def _pour(
    left: float, filled: list[float], weight: Sequence[float], demand: Sequence[int]
) -> float:
    """Raise all levels at once, each by its weight, until nothing is left or all are full."""
    thirsty = [i for i, w in enumerate(weight) if w > 0 and demand[i] > filled[i]]
    while thirsty and left > EPSILON:
        rate = left / sum(weight[i] for i in thirsty)
        full = [i for i in thirsty if demand[i] - filled[i] <= rate * weight[i] + EPSILON]
        if not full:
            for i in thirsty:
                filled[i] += rate * weight[i]
            return 0.0
        for i in full:
            left -= demand[i] - filled[i]
            filled[i] = float(demand[i])
        thirsty = [i for i in thirsty if i not in set(full)]
    return max(left, 0.0)


def _whole(share: Sequence[float], cap: Sequence[int], total: int) -> list[int]:
    """Round to whole GPUs that add up to ``total``: the largest fraction first, then the older."""
    whole = [int(s + EPSILON) for s in share]
    spare = total - sum(whole)
    if spare > 0:
        part = [round(s - w, 9) for s, w in zip(share, whole, strict=True)]
        for i in sorted(range(len(share)), key=lambda i: (-part[i], i)):
            if spare and whole[i] < cap[i]:
                whole[i] += 1
                spare -= 1
    return whole


def entitlements(
    tenants: Tenants, tree: Tree, held: Promises, own_demand: Ints, totals: Ints, *, lend: bool
) -> tuple[Ints, Ints]:
    """Fill the tree from the top, per pool; ``own_demand`` is each tenant's own use and asking.

    Returns what each tenant is entitled to, and what the own work of each that has children is. A
    tenant with work of its own beside its children's is one more child of itself, weight 1, no
    guarantee of its own (DOMAIN decision 24).
    """
    asked = own_demand.copy()
    cap = np.where(tree.active[:, None], held.ceiling, 0)
    for level in reversed(tree.levels):
        asked[level] = np.minimum(asked[level], cap[level])
        if level is not tree.levels[0]:
            np.add.at(asked, tree.parent[level], asked[level])
    entitled, alone = np.zeros_like(asked), np.zeros_like(asked)
    older = np.argsort(tenants.id, kind="stable").tolist()
    parents = tree.parent.tolist()
    for pool in range(len(totals)):
        asks = asked[:, pool].tolist()
        promised = held.guarantee[:, pool].tolist()
        families: dict[int, list[int]] = {}
        for t in older:
            if asks[t] or (promised[t] and not lend):
                families.setdefault(parents[t], []).append(t)
        if not families:
            continue
        own = own_demand[:, pool].tolist()
        weights = held.weight[:, pool].tolist()
        shares = [0] * len(asks)
        front = [(NONE, int(totals[pool]), 0)]
        while front:
            parent, total, own_part = front.pop()
            children = families.get(parent, [])
            got = water_fill(
                total,
                [*(promised[c] for c in children), 0],
                [*(weights[c] for c in children), 1.0],
                [*(asks[c] for c in children), own_part],
                lend=lend,
            )
            if parent != NONE:
                alone[parent, pool] = got[-1]
            for child, share in zip(children, got, strict=False):
                shares[child] = share
                if child in families:
                    front.append((child, shares[child], own[child]))
        entitled[:, pool] = shares
        childless = [t for t in range(len(asks)) if t not in families]
        alone[childless, pool] = entitled[childless, pool]
    return entitled, alone


def borrowing(
    tenants: Tenants, tree: Tree, guarantee: Ints, used: Ints, own_used: Ints, totals: Ints
) -> tuple[Ints, Ints]:
    """Return (lent, borrowed): what is used above guarantees, and whose idle guarantee carries it.

    What siblings borrow beyond the part nobody is guaranteed is lent, by idle guarantee. That part
    is, below the root, the pool less the guarantees; below a parent, what it is promised or uses,
    the larger, less its children's. Source: SCENARIO, the JSON answer.
    """
    borrowed = np.maximum(used - guarantee, 0)
    lent = np.zeros_like(used)
    idle = np.where(tree.active[:, None], np.maximum(guarantee - used, 0), 0)
    if not idle.any() or not borrowed.any():
        return lent, borrowed
    families = tree.parent + 1
    sums = np.zeros((3, len(used) + 1, used.shape[1]), dtype=np.int64)
    for total, column in zip(sums, (borrowed, guarantee, idle), strict=True):
        np.add.at(total, families, column)
    has_children = np.bincount(families, minlength=len(used) + 1)[1:] > 0
    sums[0, 1:] += np.where(has_children[:, None], own_used, 0)
    nobodys = np.concatenate([totals[None, :], np.maximum(guarantee, used)]) - sums[1]
    owed = np.minimum(np.maximum(sums[0] - np.maximum(nobodys, 0), 0), sums[2])
    for family, pool in np.argwhere(owed > 0).tolist():
        lenders = np.flatnonzero((families == family) & (idle[:, pool] > 0))
        lenders = lenders[np.argsort(tenants.id[lenders])]
        part = idle[lenders, pool]
        owes = int(owed[family, pool])
        share = (part * owes / int(part.sum())).tolist()
        lent[lenders, pool] = _whole(share, part.tolist(), owes)
    return lent, borrowed


def asks_by_tenant(shape: tuple[int, ...], tenant: Ints, pool: Ints, gpus: Ints, of: Bools) -> Ints:
    """Sum the GPUs of the chosen jobs by tenant and pool."""
    own = np.zeros(shape, dtype=np.int64)
    np.add.at(own, (tenant[of], pool[of]), gpus[of])
    return own
