"""The order of the pending jobs: a sum of terms, each kept."""

from __future__ import annotations

import numpy as np

from apps.engine.types import TERMS, Bools, Floats, Ints, Pending, Policy

LOWEST = 1.0
"""No priority is below this."""


def terms_of(
    pending: Pending, policy: Policy, now: int, factor: Floats, pool_gpus: Ints
) -> tuple[Floats, Floats]:
    """Return the terms, shape (pending, len(TERMS)), and the priorities.

    A priority is the sum of its terms, not rounded, at least 1. ``factor`` is by tenant (NaN: 0),
    ``pool_gpus`` by pool. Source: Slurm, priority/multifactor; its size factor ignores GPUs, ours
    is the gang's part of its pool. ``boost`` (a broken gang) is all weights but the class's.
    """
    weights = policy.weights
    terms = np.zeros((len(pending.id), len(TERMS)))
    if not len(pending.id):
        return terms, np.zeros(0)
    terms[:, 0] = weights.fair_share * np.nan_to_num(factor)[pending.tenant]
    waited = np.maximum(now - pending.submitted, 0)
    if policy.max_age > 0:
        terms[:, 1] = weights.age * np.minimum(waited / policy.max_age, 1.0)
    asked = pending.size * pending.gpus_per_member
    whole = pool_gpus[pending.pool]
    part = np.divide(asked, whole, out=np.zeros(len(asked)), where=whole > 0)
    terms[:, 2] = weights.size * np.minimum(part, 1.0)
    terms[:, 3] = weights.queue * np.clip(pending.queue_factor, 0.0, 1.0)
    if policy.max_class > 0:
        terms[:, 4] = weights.class_ * np.clip(pending.class_priority / policy.max_class, 0.0, 1.0)
    boost = weights.fair_share + weights.age + weights.size + weights.queue
    terms[:, 5] = np.where(pending.broken, boost, 0.0)
    terms[:, 6] = -pending.nice.astype(np.float64)
    terms += 0.0  # no -0.0
    return terms, np.maximum(terms.sum(axis=1), LOWEST)


def order_of(pending: Pending, priority: Floats, last: Bools) -> Ints:
    """Sort by priority, then submitted, then id; jobs marked ``last`` come after all others."""
    return np.lexsort((pending.id, pending.submitted, -priority, last))
