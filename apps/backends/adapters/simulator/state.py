"""A simulated world as held in memory, so that a look costs no query where nothing changed."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from heapq import heappop, heappush

from apps.backends.adapters.simulator.attempts import Live, live
from apps.backends.port import SeenNode
from apps.common.time import from_us


@dataclass(slots=True)
class NodeRow:
    """A node, or the part of it that belongs to one pool."""

    name: str
    pool: str
    gpus: int
    rack: str
    nvlink: str
    state: str
    since: int
    reason: str
    free: int

    def look(self) -> SeenNode:
        """Return it as the cluster reports it."""
        return SeenNode(
            name=self.name,
            pool=self.pool,
            gpus=self.gpus,
            state=self.state,
            since=from_us(self.since),
            rack=self.rack,
            nvlink=self.nvlink,
            reason=self.reason,
        )


@dataclass(slots=True)
class Planned:
    """A change of a node that the world will make by itself."""

    id: int
    at: int
    node: str
    state: str
    reason: str


@dataclass(slots=True)
class State:
    """What is alive in a world; ``horizon`` is the instant up to which everything was settled."""

    horizon: int
    seq: int
    rows: dict[tuple[str, str], NodeRow] = field(default_factory=dict)
    by_name: dict[str, list[NodeRow]] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)
    on_node: dict[str, set[str]] = field(default_factory=dict)
    due: list[tuple[int, int, str]] = field(default_factory=list)  # a heap: end, id, uid
    planned: list[Planned] = field(default_factory=list)  # ascending; the next is first
    seen_nodes: tuple[SeenNode, ...] | None = None

    def add_node(self, row: NodeRow) -> None:
        """Take in a node."""
        self.rows[row.name, row.pool] = row
        self.by_name.setdefault(row.name, []).append(row)
        self.seen_nodes = None

    def add(self, attempt: Live) -> None:
        """Take in a running attempt, and the GPUs it holds."""
        self.live[attempt.uid] = attempt
        for node in attempt.nodes:
            self.on_node.setdefault(node, set()).add(attempt.uid)
            if row := self.rows.get((node, attempt.pool)):
                row.free -= attempt.gpus
        self.expect(attempt)

    def expect(self, attempt: Live) -> None:
        """Note when an attempt changes by itself, anew where that was changed."""
        if (at := attempt.due()) is not None:
            heappush(self.due, (at, attempt.id, attempt.uid))

    def remove(self, attempt: Live) -> None:
        """Let an attempt go, and give its GPUs back."""
        del self.live[attempt.uid]
        for node in attempt.nodes:
            self.on_node[node].discard(attempt.uid)
            if row := self.rows.get((node, attempt.pool)):
                row.free += attempt.gpus

    def next_end(self) -> int | None:
        """Return the next instant at which an attempt ends by itself."""
        while self.due and not self._stands(*self.due[0]):
            heappop(self.due)
        return self.due[0][0] if self.due else None

    def _stands(self, at: int, _: int, uid: str) -> bool:
        attempt = self.live.get(uid)
        return attempt is not None and attempt.due() == at

    def drop(self, attempt: Live, at: int) -> None:
        """Let the last members of a gang go, and give their GPUs back."""
        for node in attempt.nodes[attempt.keep :]:
            if row := self.rows.get((node, attempt.pool)):
                row.free += attempt.gpus
        gone = set(attempt.nodes) - set(attempt.nodes[: attempt.keep])
        for node in gone:
            self.on_node[node].discard(attempt.uid)
        attempt.nodes = attempt.nodes[: attempt.keep]
        attempt.forget()
        attempt.shrunk, attempt.seen = at, None
        self.expect(attempt)

    def next_change(self) -> int | None:
        """Return the next instant at which the world changes by itself."""
        end = self.next_end()
        if not self.planned:
            return end
        at = self.planned[0].at
        return at if end is None else min(end, at)

    def look_at_nodes(self) -> tuple[SeenNode, ...]:
        """Return all nodes, by name and pool."""
        if self.seen_nodes is None:
            self.seen_nodes = tuple(self.rows[key].look() for key in sorted(self.rows))
        return self.seen_nodes


ALIVE = """
    SELECT id, uid, pool, gpus, nodes, workload, started_us, end_us, end_outcome, end_detail,
           checkpoint_us, leaves_us, saves, keep, shrunk_us
    FROM attempt WHERE ended_us IS NULL ORDER BY id
"""


def load(connection: sqlite3.Connection) -> State:
    """Return the state of a world as its database holds it."""
    horizon, seq = connection.execute("SELECT horizon_us, seq FROM clock").fetchone()
    state = State(horizon, seq)
    for name, pool, gpus, rack, nvlink, word, since, reason in connection.execute(
        "SELECT name, pool, gpus, rack, nvlink, state, since_us, reason FROM node"
    ):
        state.add_node(NodeRow(name, pool, gpus, rack, nvlink, word, since, reason, free=gpus))
    for row in connection.execute(ALIVE):
        names = ("id", "uid", "pool", "gpus", "nodes", "workload", "started", "end", "outcome")
        asked = ("leaves", "saves", "keep", "shrunk")
        state.add(live(**dict(zip((*names, "detail", "confirmed", *asked), row, strict=True))))
    state.planned = [
        Planned(*row)
        for row in connection.execute(
            "SELECT id, at_us, node, state, reason FROM planned WHERE done = 0 ORDER BY at_us, id"
        )
    ]
    return state
