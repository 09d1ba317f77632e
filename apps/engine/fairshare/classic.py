"""Classic fair share: 2^(-U / S / d), the parent's overuse shared by its children."""

from __future__ import annotations

import numpy as np

from apps.engine.tree import Siblings
from apps.engine.types import Floats, Policy


def classic(siblings: Siblings, policy: Policy) -> Floats:
    """Return 2^(-U/S/d) for every row; a share of 0 gives 0, no usage anywhere gives 1.

    ``U`` is the effective usage: a row's own part of all usage plus its share, among its siblings,
    of what its parent used beyond it. ``S`` is the product of shares from the root down.
    Source: Slurm, priority/multifactor, the algorithm before fair tree.
    """
    share = siblings.share.copy()
    actual = siblings.usage / siblings.total if siblings.total > 0 else np.zeros(len(share))
    effective = actual.copy()
    for level in siblings.depths[1:]:
        parent = siblings.parent[level]
        share[level] *= share[parent]
        beyond = effective[parent] - actual[level]
        effective[level] += beyond * siblings.share[level]
    ratio = np.divide(effective, share, out=np.full(len(share), np.inf), where=share > 0)
    factor: Floats = np.exp2(-ratio / policy.dampening)
    return factor
