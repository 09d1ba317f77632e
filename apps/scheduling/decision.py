"""What the engine saw and answered, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

from apps.engine.types import Holds, Plan
from apps.scheduling.snapshot import Seen


@dataclass(frozen=True, slots=True)
class Decision:
    """A snapshot with what its indexes stand for, and the plan."""

    seen: Seen
    plan: Plan

    def places(self, table: Holds) -> dict[int, dict[int, int]]:
        """Return a table of places of the plan in the database's words: job id → rank → node id."""
        seen, found = self.seen, dict[int, dict[int, int]]()
        for k, job in enumerate(table.job.tolist()):
            low, high = int(table.offsets[k]), int(table.offsets[k + 1])
            ranks, nodes = table.rank[low:high].tolist(), table.node[low:high].tolist()
            found[seen.pending_ids[job]] = {
                rank: seen.node_ids[node] for rank, node in zip(ranks, nodes, strict=True)
            }
        return found
