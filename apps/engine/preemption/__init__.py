"""The table of preemption rules: a name, and who may be touched for whom.

To add one: a file beside this one, and a line in ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from apps.engine.candidates import Candidates, Stage, Taker
from apps.engine.errors import Refused
from apps.engine.holdings import Holdings
from apps.engine.preemption.none import none
from apps.engine.preemption.priority import priority
from apps.engine.preemption.reclaim import reclaim

OWN_TENANT: Final = "priority"
"""The rule that is named for a victim of the beneficiary's own tenant: only its class decides."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may be touched for whom, in stages."""

    stages: Callable[[Taker, Candidates, Holdings], list[Stage]]
    by_share: bool  # it asks for entitlements, and keeps what cannot be evicted within guarantees


RULES: Final[dict[str, Rule]] = {
    "none": Rule(none, by_share=False),
    "priority": Rule(priority, by_share=False),
    "reclaim": Rule(reclaim, by_share=True),
}
LATER: Final = ("fair",)


def rule_of(name: str) -> Rule:
    """Look a rule up.

    :raises Refused: if it is not in the table.
    """
    if name not in RULES:
        hint = "is not built yet" if name in LATER else "is not a preemption rule"
        raise Refused("preemption", name, hint)
    return RULES[name]
