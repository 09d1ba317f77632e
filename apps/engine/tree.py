"""The tenant tree: depths, paths, roll-ups, and who stands beside whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apps.engine.errors import Refused
from apps.engine.types import NONE, Bools, Floats, Ints, Tenants

TIE_BITS = 40
"""Levels equal to this many binary digits are a tie: decay must not churn ranks by rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Tenants by depth; ``levels[0]`` holds the indexes of those below the root."""

    parent: Ints
    levels: tuple[Ints, ...]
    active: Bools  # neither it nor any above it is archived
    weightless: Bools  # its weight, or one above it, is 0


def plant(tenants: Tenants) -> Tree:
    """Order the tenants by depth.

    :raises Refused: if a tenant stands above itself.
    """
    parent = tenants.parent
    count = len(parent)
    depth = np.zeros(count, dtype=np.int64)
    above = parent.copy()
    for _ in range(count + 1):
        has = above >= 0
        if not has.any():
            break
        depth[has] += 1
        above = np.where(has, parent[above], NONE)
    else:
        raise Refused("tenants.parent", parent.tolist(), "a tenant stands above itself")
    deepest = int(depth.max()) if count else -1
    levels = tuple(np.flatnonzero(depth == d) for d in range(deepest + 1))
    active = ~tenants.archived
    weightless = tenants.weight <= 0
    for level in levels[1:]:
        active[level] &= active[parent[level]]
        weightless[level] |= weightless[parent[level]]
    return Tree(parent=parent, levels=levels, active=active, weightless=weightless)


def roll_up(tree: Tree, own: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Add to each tenant what its descendants have; the first axis is the tenant."""
    total = own.copy()
    for level in reversed(tree.levels[1:]):
        np.add.at(total, tree.parent[level], total[level])
    return total


def path_of(parents: list[int], tenant: int) -> list[int]:
    """List the tenant and all above it, lowest first."""
    path = []
    while tenant >= 0:
        path.append(tenant)
        tenant = parents[tenant]
    return path


@dataclass(frozen=True, slots=True, eq=False)
class Siblings:
    """All that compete: the tenants, then one more child per inner tenant with jobs of its own.

    ``level`` is share / usage_share (no usage: infinite; weight 0: 0). Sources: DOMAIN decisions 4
    and 24; Slurm, fair tree: LF = S / U.
    """

    tenants: int  # how many of the rows are tenants
    parent: Ints
    weight: Floats
    usage: Floats  # with all descendants
    active: Bools
    leaf: Bools  # active and ranked
    owner: Ints  # the tenant a row ranks for
    id: Ints
    depths: tuple[Ints, ...]
    share: Floats
    usage_share: Floats
    level: Floats
    total: float  # usage of the whole tree, archived tenants included


def siblings_of(tenants: Tenants, tree: Tree, has_jobs: Bools) -> Siblings:
    """Give every inner tenant with jobs of its own a child for them, and level all siblings."""
    count = len(tree.parent)
    usage = np.asarray(roll_up(tree, tenants.usage), dtype=np.float64)
    inner = np.zeros(count, dtype=np.bool_)
    alive = np.flatnonzero(tree.active & (tree.parent >= 0))
    inner[tree.parent[alive]] = True
    own = np.flatnonzero(inner & tree.active & has_jobs)
    parent = np.concatenate([tree.parent, own])
    weight = np.concatenate([tenants.weight, np.ones(len(own))])
    used = np.concatenate([usage, tenants.usage[own]])
    active = np.concatenate([tree.active, np.ones(len(own), dtype=np.bool_)])
    depths = tree.levels
    if len(own):
        rank = np.searchsorted(own, np.arange(count))
        extra = []
        for level in (*tree.levels, np.zeros(0, dtype=np.int64)):
            extra.append(level)
        merged = [extra[0]]
        for above, level in zip(tree.levels, extra[1:], strict=True):
            mine = above[np.isin(above, own)]
            merged.append(np.concatenate([level, count + rank[mine]]))
        depths = tuple(level for level in merged if len(level))
    share, usage_share, level_of = _levels(parent, weight, used, active)
    leaf = np.concatenate([tree.active & ~inner, np.ones(len(own), dtype=np.bool_)])
    return Siblings(
        tenants=count,
        parent=parent,
        weight=weight,
        usage=used,
        active=active,
        leaf=leaf,
        owner=np.concatenate([np.arange(count), own]),
        id=np.concatenate([tenants.id, tenants.id[own]]),
        depths=depths,
        share=share,
        usage_share=usage_share,
        level=level_of,
        total=float(usage[tree.levels[0]].sum()) if count else 0.0,
    )


def _levels(
    parent: Ints, weight: Floats, usage: Floats, active: Bools
) -> tuple[Floats, Floats, Floats]:
    """Divide among active siblings: share, usage_share and their quotient."""
    group = parent + 1
    weighs = np.where(active, weight, 0.0)
    uses = np.where(active, usage, 0.0)
    all_weight = np.bincount(group, weights=weighs)[group] if len(group) else weighs
    all_usage = np.bincount(group, weights=uses)[group] if len(group) else uses
    share = np.divide(weighs, all_weight, out=np.zeros_like(weighs), where=all_weight > 0)
    usage_share = np.divide(uses, all_usage, out=np.zeros_like(uses), where=all_usage > 0)
    level = np.full(len(weighs), np.inf)
    np.divide(share, usage_share, out=level, where=usage_share > 0)
    level[share <= 0] = 0.0
    return share, usage_share, level


def tie_key(values: Floats) -> Floats:
    """Round to ``TIE_BITS`` binary digits, so that what differs by noise is equal."""
    mantissa, exponent = np.frexp(values)
    rounded: Floats = np.ldexp(np.round(np.ldexp(mantissa, TIE_BITS)), exponent - TIE_BITS)
    return rounded
