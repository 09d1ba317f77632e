"""What the steps of the recipe share: what a tick saw, looked over once."""

from __future__ import annotations

from dataclasses import dataclass

from apps.engine.ground import Ground
from apps.engine.quotas import Promises
from apps.engine.tree import Tree
from apps.engine.types import Ints, Policy, Reason, Snapshot

LACKS_ROOM = (
    Reason.CAPACITY, Reason.PLACEMENT, Reason.RESERVED, Reason.LEAVING, Reason.DEFERRED
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """Nodes, use and promises, before the decision."""

    snapshot: Snapshot
    policy: Policy
    tree: Tree
    held: Promises
    free: Ints  # by node
    grounds: list[Ground]
    pool_gpus: Ints
    usable: Ints  # GPUs by pool: of nodes that are up, without work that is not ours
    need: Ints
