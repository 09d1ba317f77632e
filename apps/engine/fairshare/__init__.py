"""The table of fair-share policies: a name, and what turns siblings into factors.

To add one: a file beside this one, and a line in ``POLICIES``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from apps.engine.errors import Refused
from apps.engine.fairshare.classic import classic
from apps.engine.fairshare.fair_tree import fair_tree
from apps.engine.tree import Siblings
from apps.engine.types import Floats, Ints, Policy

POLICIES: Final[dict[str, Callable[[Siblings, Policy], Floats]]] = {
    "fair_tree": fair_tree,
    "classic": classic,
}
LATER: Final = ("dominant_share", "moving_average", "time_based")


def factors(siblings: Siblings, policy: Policy) -> tuple[Floats, Ints]:
    """Give each tenant its factor (NaN: not ranked) and its rank (1 is first, ties share).

    :raises Refused: if the policy is not in the table.
    """
    check(policy.fair_share)
    by_row = POLICIES[policy.fair_share](siblings, policy)
    factor = np.full(siblings.tenants, np.nan)
    factor[siblings.owner[siblings.leaf]] = by_row[siblings.leaf]
    ranked = np.flatnonzero(~np.isnan(factor))
    rank = np.full(siblings.tenants, -1, dtype=np.int64)
    best_first = np.sort(-factor[ranked])
    rank[ranked] = np.searchsorted(best_first, -factor[ranked], side="left") + 1
    return factor, rank


def check(name: str) -> None:
    """Refuse a name that is not in the table."""
    if name not in POLICIES:
        hint = "is not built yet" if name in LATER else "is not a fair-share policy"
        raise Refused("fair_share", name, hint)
