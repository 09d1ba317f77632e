"""Nobody is evicted."""

from __future__ import annotations

from apps.engine.candidates import Candidates, Stage, Taker
from apps.engine.holdings import Holdings


def none(taker: Taker, candidates: Candidates, holdings: Holdings) -> list[Stage]:
    """Let nobody be touched."""
    return []
