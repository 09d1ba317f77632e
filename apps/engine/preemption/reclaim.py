"""Who uses more than its own gives it back, whatever the class (DOMAIN decision 6)."""

from __future__ import annotations

import numpy as np

from apps.engine.candidates import Candidates, Stage, Taker
from apps.engine.holdings import Holdings
from apps.engine.types import Bools, Ints, Passed


def reclaim(taker: Taker, candidates: Candidates, holdings: Holdings) -> list[Stage]:
    """Let a tenant within its entitlement take from those who keep theirs, and lower classes go.

    Where that does not do, a tenant within its guarantee takes from any above theirs: a gang that
    cannot be halved must not make a promise void. Below a level that is within its guarantee, being
    within its entitlement is enough: a parent's promise is to all its children.
    """
    guarantee, entitled = holdings.guarantee, holdings.entitled
    in_share = holdings.within(entitled, taker.row, taker.need)
    in_promise = holdings.within(guarantee, taker.row, taker.need)
    # By where the paths meet: all levels of the taker's below that.
    levels = range(len(in_share) + 1)
    by_share = np.array([m > 0 and all(in_share[:m]) for m in levels])
    either = [a or b for a, b in zip(in_share, in_promise, strict=True)]
    by_promise = np.array([m > 0 and in_promise[m - 1] and all(either[:m]) for m in levels])
    lower = candidates.lowest(taker.tenant) < taker.class_priority
    if not (lower or by_share.any() or by_promise.any()):
        return []
    meets, on_path = holdings.beside(taker.row)
    keep = np.maximum(entitled, guarantee)
    at = meets[candidates.row]
    least = np.where(candidates.elastic, candidates.unit, candidates.gpus)
    outside = candidates.demoted >= 0  # of any guarantee or entitlement
    spare = holdings.surplus(keep, on_path)[candidates.row]
    above = holdings.surplus(guarantee, on_path)[candidates.row]
    shared = _passed(
        taker, candidates, by_share[at], outside | (spare >= least), Passed.ENTITLEMENT
    )
    stages = [Stage(shared, keep, any_above=False, refusal=Passed.ENTITLEMENT)]
    if by_promise[at].any():
        owed = _passed(taker, candidates, by_promise[at], outside | (above > 0), Passed.GUARANTEE)
        stages.append(Stage(owed, guarantee, any_above=True, refusal=Passed.GUARANTEE))
    return stages


def _passed(
    taker: Taker, candidates: Candidates, may: Bools, gives: Bools, refusal: Passed
) -> Ints:
    """Say who may be touched: lower classes of the own tenant, and others who have too much."""
    others = np.where(may, np.where(gives, int(Passed.CHOSEN), int(refusal)), int(Passed.TAKER))
    lower = candidates.class_priority < taker.class_priority
    own = np.where(lower, int(Passed.CHOSEN), int(Passed.CLASS))
    return np.where(candidates.tenant == taker.tenant, own, others).astype(np.int64)
