"""What the engine saw and answered, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

from apps.engine.types import Plan
from apps.scheduling.snapshot import Seen


@dataclass(frozen=True, slots=True)
class Decision:
    """A snapshot with what its indexes stand for, and the plan."""

    seen: Seen
    plan: Plan
