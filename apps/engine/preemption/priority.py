"""Lower classes give way: of the own tenant freely, of others only above their guarantee."""

from __future__ import annotations

import numpy as np

from apps.engine.candidates import Candidates, Stage, Taker
from apps.engine.holdings import Holdings
from apps.engine.types import Passed


def priority(taker: Taker, candidates: Candidates, holdings: Holdings) -> list[Stage]:
    """Let lower classes be touched. Source: DOMAIN §5."""
    if candidates.lowest() >= taker.class_priority:
        return []
    _, on_path = holdings.beside(taker.row)
    spare = holdings.surplus(holdings.guarantee, on_path)[candidates.row]
    least = np.where(candidates.elastic, candidates.unit, candidates.gpus)
    passed = np.full(len(candidates.index), int(Passed.CHOSEN), dtype=np.int64)
    passed[(spare < least) & (candidates.demoted < 0)] = Passed.GUARANTEE
    passed[candidates.class_priority >= taker.class_priority] = Passed.CLASS
    return [Stage(passed, holdings.guarantee, any_above=False, refusal=Passed.GUARANTEE)]
