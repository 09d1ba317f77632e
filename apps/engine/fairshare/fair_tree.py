"""Fair Tree: siblings by level, depth first; the factor is the rank from the end."""

from __future__ import annotations

import numpy as np

from apps.engine.tree import Siblings, tie_key
from apps.engine.types import Bools, Floats, Ints, Policy


def fair_tree(siblings: Siblings, policy: Policy) -> Floats:
    """Rank the leaves depth first, the highest level first, and return rank-from-the-end / count.

    Tied leaves share a rank, a leaf goes before a tied inner tenant, tied inner tenants are not
    merged but go by id. What comes first below an inner tenant that is tied with the sibling before
    it shares the rank before it. Source: Slurm, priority/multifactor, fair_tree, as the code of
    22.05 has it (its page has it otherwise); DOMAIN decision 4.
    """
    rows = len(siblings.parent)
    leaves = siblings.leaf.astype(np.int64)
    for level in reversed(siblings.depths[1:]):
        np.add.at(
            leaves, siblings.parent[level], np.where(siblings.active[level], leaves[level], 0)
        )
    key = tie_key(siblings.level)
    first = np.zeros(rows, dtype=np.int64)
    tied = np.zeros(rows, dtype=np.bool_)
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
        tied[here[1:]] = ~new_family[1:] & (key[here[1:]] == key[here[:-1]])
        if depth:
            before += first[parent]
            tied[here[starts]] = tied[parent[starts]]
        first[here] = before
    _share_ranks(first, tied, np.flatnonzero(siblings.leaf))
    count = int(siblings.leaf.sum())
    return (count - first) / count if count else np.zeros(rows)


def _share_ranks(first: Ints, tied: Bools, leaf: Ints) -> None:
    """Give each tied leaf the rank of the leaf before it; of inner tenants nobody asks."""
    line = leaf[np.argsort(first[leaf])]
    heads = np.maximum.accumulate(np.where(tied[line], 0, np.arange(len(line))))
    first[line] = heads
