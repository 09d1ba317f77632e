"""Fair Tree: siblings by level, depth first; the factor is the rank from the end."""

from __future__ import annotations

import numpy as np

from apps.engine.tree import Siblings, tie_key
from apps.engine.types import Floats, Policy


def fair_tree(siblings: Siblings, policy: Policy) -> Floats:
    """Rank the leaves depth first, the highest level first, and return rank-from-the-end / count.

    Tied leaves share a rank, a leaf goes before a tied inner tenant, tied inner tenants are not
    merged but go by id. Source: Slurm, priority/multifactor, fair_tree; DOMAIN decision 4.
    """
    rows = len(siblings.parent)
    leaves = siblings.leaf.astype(np.int64)
    for level in reversed(siblings.depths[1:]):
        np.add.at(
            leaves, siblings.parent[level], np.where(siblings.active[level], leaves[level], 0)
        )
    key = tie_key(siblings.level)
    first = np.zeros(rows, dtype=np.int64)
    for depth, level in enumerate(siblings.depths):
        here = level[siblings.active[level]]
        if not len(here):
            continue
        inner = ~siblings.leaf[here]
        order = np.lexsort((siblings.id[here], inner, -key[here], siblings.parent[here]))
        here = here[order]
        parent = siblings.parent[here]
        before = np.cumsum(leaves[here]) - leaves[here]
        new_family = np.ones(len(here), dtype=np.bool_)
        new_family[1:] = parent[1:] != parent[:-1]
        starts = np.flatnonzero(new_family)
        family = np.cumsum(new_family) - 1
        before -= before[starts][family]
        if depth:
            before += first[parent]
        _share_ranks(before, new_family, siblings.leaf[here], key[here])
        first[here] = before
    count = int(siblings.leaf.sum())
    return (count - first) / count if count else np.zeros(rows)


def _share_ranks(before: np.ndarray, new: np.ndarray, leaf: np.ndarray, key: Floats) -> None:
    """Give tied leaves, which stand side by side, the rank of their first."""
    tied = np.zeros(len(before), dtype=np.bool_)
    tied[1:] = ~new[1:] & leaf[1:] & leaf[:-1] & (key[1:] == key[:-1])
    if tied.any():
        head = np.maximum.accumulate(np.where(tied, 0, np.arange(len(before))))
        before[tied] = before[head[tied]]
