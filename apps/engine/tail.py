"""The end of a walk, when nothing idle is large enough for any job left: all at once."""

from __future__ import annotations

import numpy as np

from apps.engine.draft import Limits
from apps.engine.quotas import UNLIMITED
from apps.engine.types import NONE, Ints, Pending, Reason


def judge_rest(
    pending: Pending, jobs: Ints, limits: Limits, usable: Ints, *, waited: bool
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return reason, needed, available and tenant of jobs that cannot start.

    ``usable`` is what each could use of the little that is idle; ``waited`` says that someone whose
    tenant has a weight waits for room already. Use is what it is: nobody starts any more.
    """
    tenant = pending.tenant[jobs]
    need = pending.size[jobs] * pending.gpus_per_member[jobs]
    used = np.array(limits.used, dtype=np.int64)
    ceiling = np.array(limits.ceiling, dtype=np.int64)
    over = np.full(len(jobs), NONE, dtype=np.int64)
    if (ceiling != UNLIMITED).any():
        parents = np.array(limits.parents, dtype=np.int64)
        above = tenant
        while (above >= 0).any():
            passes = (over < 0) & (above >= 0) & (need > ceiling[above] - used[above])
            over[passes] = above[passes]
            above = np.where(above >= 0, parents[above], NONE)
    weightless = np.array(limits.weightless, dtype=np.bool_)[tenant]
    at_ceiling = over >= 0
    reason = np.where(at_ceiling, int(Reason.CEILING), int(Reason.CAPACITY))
    available = np.where(at_ceiling, np.maximum(ceiling[over] - used[over], 0), usable)
    who = over
    if weightless.any() and (waited or bool((~weightless & ~at_ceiling).any())):
        who = _beyond(limits, tenant, need, used)
        light = who >= 0
        who = np.where(light, who, over)
        reason = np.where(light, int(Reason.WEIGHTLESS), reason)
        need, available = np.where(light, NONE, need), np.where(light, NONE, available)
    return reason, need, available, who


def _beyond(limits: Limits, tenant: Ints, need: Ints, used: Ints) -> Ints:
    """Find who of weight 0, the lowest first, would pass its guarantee by each job, -1: none."""
    guarantee = np.array(limits.guarantee, dtype=np.int64)
    zero = np.array(limits.zero, dtype=np.bool_)
    parents = np.array(limits.parents, dtype=np.int64)
    found = np.full(len(tenant), NONE, dtype=np.int64)
    above = tenant
    while (above >= 0).any():
        passes = zero[above] & (found < 0) & (above >= 0)
        passes &= used[above] + need > guarantee[above]
        found[passes] = above[passes]
        above = np.where(above >= 0, parents[above], NONE)
    return found
