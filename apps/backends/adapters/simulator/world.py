"""A simulated world: what really happens on it, and the hands that may change it.

All it says is a function of what was done to it and of the instant it is asked about: ends, node
failures and repairs that came due since it was last asked are settled first, in the order of their
own exact instants. Every call is one transaction; ``kill -9`` leaves it before or after, never
between.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import RLock

from apps.backends.adapters.simulator.attempts import Live, live, true_end
from apps.backends.adapters.simulator.state import NodeRow, Planned, State, load
from apps.backends.adapters.simulator.store import connect
from apps.backends.adapters.simulator.workload import check
from apps.backends.port import (
    BackendError,
    LaunchRequest,
    LaunchResult,
    Observation,
    Sample,
    SeenAttempt,
)
from apps.backends.worlds import NodeChange, SimNode
from apps.common.errors import Invalid
from apps.common.time import from_us, to_us

NODE_STATES = ("up", "drained", "down")


class World:
    """One simulated cluster's truth; safe to share between threads."""

    def __init__(self, path: Path | None) -> None:
        self.inode = 0
        self._lock = RLock()
        self._connection = connect(path)
        self._state: State | None = None
        self._version = -1

    def close(self) -> None:
        """Let the database go."""
        with self._lock:
            self._connection.close()

    # What Rollcall sees, through the port -----------------------------------------------------

    def look(self, cursor: str, now: datetime) -> Observation:
        """Return all that is alive at ``now`` and all that ended after the cursor."""
        with self._lock, self._failing():
            at, state = self._settled(to_us(now))
            since = int(cursor) if cursor.isdecimal() and int(cursor) <= state.seq else 0
            attempts = [] if since == state.seq else self._ended(since, state.seq)
            attempts += [attempt.look(at) for attempt in state.live.values()]
            return Observation(from_us(at), str(state.seq), state.look_at_nodes(), attempts)

    def samples(self, now: datetime) -> list[Sample]:
        """Return the utilisation of each running attempt."""
        with self._lock, self._failing():
            at, state = self._settled(to_us(now))
            when = from_us(at)
            return [attempt.sample(at, when) for attempt in state.live.values()]

    def launch(self, request: LaunchRequest, now: datetime) -> LaunchResult:
        """Start a gang whole at ``now``, or refuse it and say why."""
        request = replace(request, workload=check(request.workload))
        with self._changing(to_us(now)) as (at, state):
            known = self._connection.execute(
                "SELECT id, started_us FROM attempt WHERE uid = ?", (request.uid,)
            ).fetchone()
            if known is not None:
                return LaunchResult("exists", from_us(known[1]), cluster_ref=str(known[0]))
            if refusal := _refusal(request, state):
                return LaunchResult("refused", detail=refusal)
            attempt = self._insert(request, at, None, state)
            return LaunchResult("started", from_us(at), cluster_ref=str(attempt.id))

    def stop(self, uid: str, now: datetime) -> None:
        """End an attempt at ``now``; one that is gone or was never there is left as it is."""
        with self._changing(to_us(now)) as (at, state):
            if attempt := state.live.get(uid):
                self._end(state, attempt, at, "stopped", "")

    def ask(self, uid: str, *, until: datetime, now: datetime, keep: int = 0) -> None:
        """Ask an attempt, or all its members but the first ``keep``, to leave by ``until``."""
        with self._changing(to_us(now)) as (at, state):
            attempt = state.live.get(uid)
            if attempt is not None and attempt.ask(at, to_us(until), keep):
                state.expect(attempt)
                self._keep(attempt)

    def stay(self, uid: str, now: datetime) -> bool:
        """Take back what an attempt was asked; False: it is gone."""
        with self._changing(to_us(now)) as (_, state):
            attempt = state.live.get(uid)
            if attempt is None or attempt.leaves is None:
                return attempt is not None
            attempt.forget()
            state.expect(attempt)
            self._keep(attempt)
            return True

    # What happens to it, from outside ---------------------------------------------------------

    def add_nodes(self, nodes: Sequence[SimNode], *, at: datetime) -> None:
        """Put nodes in; one that is there already stays as it is."""
        for node in nodes:
            _check_state(node.state)
            if node.gpus < 1:
                raise Invalid(f"Node {node.name} needs a GPU at least.", field="gpus")
        with self._changing(to_us(at)) as (since, state):
            for node in nodes:
                if (node.name, node.pool) not in state.rows:
                    columns = (node.name, node.pool, node.gpus, node.rack, node.nvlink)
                    row = NodeRow(*columns, node.state, since, node.reason, free=node.gpus)
                    state.add_node(row)
                    self._connection.execute(
                        "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                        (*columns, node.state, since, node.reason),
                    )

    def set_node_state(self, name: str, state: str, *, at: datetime, reason: str = "") -> None:
        """Bring a node up, drain it (what runs goes on), or down: what runs there is lost."""
        _check_state(state)
        with self._changing(to_us(at)) as (when, world):
            if name not in world.by_name:
                raise Invalid(f"There is no node {name!r}.", field="node")
            self._turn(world, name, state, when, reason)

    def plan(self, changes: Sequence[NodeChange]) -> None:
        """Make the world change nodes by itself, each at its instant."""
        for change in changes:
            _check_state(change.state)
        with self._changing(None) as (horizon, state):
            for change in changes:
                if change.node not in state.by_name:
                    raise Invalid(f"There is no node {change.node!r}.", field="node")
                at = max(to_us(change.at), horizon)
                row = self._connection.execute(
                    "INSERT OR IGNORE INTO planned (key, at_us, node, state, reason)"
                    " VALUES (?, ?, ?, ?, ?) RETURNING id",
                    (change.key, at, change.node, change.state, change.reason),
                ).fetchone()
                if row is not None:
                    planned = Planned(row[0], at, change.node, change.state, change.reason)
                    state.planned.append(planned)
            state.planned.sort(key=lambda change: (change.at, change.id))

    def adopt(
        self,
        request: LaunchRequest,
        *,
        started_at: datetime,
        last_checkpoint: datetime | None = None,
    ) -> None:
        """Let an attempt run that started earlier, on nodes whatever their state and room."""
        request = replace(request, workload=check(request.workload))
        saved = None if last_checkpoint is None else to_us(last_checkpoint)
        with self._changing(None) as (_, state):
            if self._connection.execute(
                "SELECT 1 FROM attempt WHERE uid = ?", (request.uid,)
            ).fetchone():
                return
            if lost := next(
                (n for n in request.nodes if (n, request.pool) not in state.rows), None
            ):
                raise Invalid(f"Node {lost} has no GPUs of {request.pool}.", field="nodes")
            self._insert(request, to_us(started_at), saved, state)

    def finish(self, uid: str, outcome: str, *, at: datetime, detail: str = "") -> bool:
        """End a running attempt at an instant as succeeded, failed, cancelled, …; False: gone."""
        with self._changing(to_us(at)) as (when, state):
            attempt = state.live.get(uid)
            if attempt is not None:
                self._end(state, attempt, when, outcome, detail)
            return attempt is not None

    def checkpoint(self, uid: str, *, at: datetime) -> bool:
        """Confirm a checkpoint of a running attempt, at an instant since its start; False: gone."""
        saved = to_us(at)
        with self._changing(None) as (_, state):
            attempt = state.live.get(uid)
            if attempt is None or saved < attempt.started:
                return False
            if attempt.confirm(saved):
                self._connection.execute(
                    "UPDATE attempt SET checkpoint_us = ? WHERE id = ?", (saved, attempt.id)
                )
            return True

    # How it is kept ---------------------------------------------------------------------------

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Say what a database fails with in the port's one error; forget what was in memory."""
        try:
            yield
        except sqlite3.Error as error:
            self._state = None
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise BackendError(
                f"The simulated world cannot be reached: {error}.", retry=True
            ) from error

    def _current(self) -> State:
        """Return the state in memory, read anew where another process has written since."""
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if self._state is None or version != self._version:
            reading = not self._connection.in_transaction
            if reading:
                self._connection.execute("BEGIN")  # one moment for all of it
            self._state, self._version = load(self._connection), version
            if reading:
                self._connection.execute("COMMIT")
        return self._state

    @contextmanager
    def _changing(self, now: int | None) -> Iterator[tuple[int, State]]:
        """Hold the world for writing, settled up to ``now`` (None: no further than it is)."""
        with self._lock, self._failing():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                state = self._current()
                at = state.horizon if now is None else max(now, state.horizon)
                self._settle(state, at)
                yield at, state
                self._connection.execute(
                    "UPDATE clock SET horizon_us = ?, seq = ?", (state.horizon, state.seq)
                )
                self._connection.execute("COMMIT")
            except BaseException:
                self._state = None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _settled(self, now: int) -> tuple[int, State]:
        """Return the instant that is looked at and the state then; writes only what came due."""
        state = self._current()
        at = max(now, state.horizon)
        due = state.next_change()
        if due is None or due > at:
            state.horizon = at
            return at, state
        with self._changing(at) as settled:
            return settled

    def _settle(self, state: State, now: int) -> None:
        """Let happen what came due up to and at ``now``: at one instant ends, then nodes."""
        while (at := state.next_change()) is not None and at <= now:
            if state.next_end() == at:
                self._come_due(state, state.live[state.due[0][2]], at)
            else:
                change = state.planned.pop(0)
                self._turn(state, change.node, change.state, at, change.reason)
                self._connection.execute("UPDATE planned SET done = 1 WHERE id = ?", (change.id,))
        state.horizon = now

    def _come_due(self, state: State, attempt: Live, at: int) -> None:
        """End an attempt as it would by itself, or let it give way as it was asked."""
        if attempt.end == at:
            self._end(state, attempt, at, attempt.outcome, attempt.detail)
            return
        if attempt.saves:
            attempt.confirm(at)
        if attempt.keep:
            state.drop(attempt, at)
            self._keep(attempt)
        else:
            self._end(state, attempt, at, "stopped", "")

    def _keep(self, attempt: Live) -> None:
        """Write down what an attempt was asked, and what has come of it."""
        self._connection.execute(
            "UPDATE attempt SET leaves_us = ?, saves = ?, keep = ?, shrunk_us = ?, nodes = ?,"
            " checkpoint_us = ? WHERE id = ?",
            (
                *(attempt.leaves, attempt.saves, attempt.keep, attempt.shrunk),
                *(json.dumps(attempt.nodes), attempt.confirmed, attempt.id),
            ),
        )

    def _insert(
        self, request: LaunchRequest, started: int, checkpoint: int | None, state: State
    ) -> Live:
        end, outcome, detail = true_end(request, started)
        nodes = json.dumps(request.nodes)
        workload = json.dumps(dict(request.workload))
        row = self._connection.execute(
            "INSERT INTO attempt (uid, name, tenant, pool, gpus, nodes, workload, started_us,"
            " end_us, end_outcome, end_detail, checkpoint_us)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (
                *(request.uid, request.name, request.tenant, request.pool),
                *(request.gpus_per_member, nodes, workload, started),
                *(end, outcome, detail, checkpoint),
            ),
        ).fetchone()
        attempt = live(
            id=row[0],
            uid=request.uid,
            pool=request.pool,
            gpus=request.gpus_per_member,
            nodes=nodes,
            workload=workload,
            started=started,
            end=end,
            outcome=outcome,
            detail=detail,
            confirmed=checkpoint,
        )
        state.add(attempt)
        return attempt

    def _end(self, state: State, attempt: Live, at: int, outcome: str, detail: str) -> None:
        state.remove(attempt)
        state.seq += 1
        at = max(at, attempt.started)
        self._connection.execute(
            "UPDATE attempt SET ended_us = ?, outcome = ?, detail = ?, seq = ?, checkpoint_us = ?"
            " WHERE id = ?",
            (at, outcome, detail, state.seq, attempt.checkpoint(at), attempt.id),
        )

    def _turn(self, state: State, name: str, word: str, at: int, reason: str) -> None:
        """Change a node; the whole of each gang with a member on one that goes down is lost."""
        if all(row.state == word for row in state.by_name[name]):
            return
        for row in state.by_name[name]:
            row.state, row.since, row.reason = word, at, reason
        state.seen_nodes = None
        self._connection.execute(
            "UPDATE node SET state = ?, since_us = ?, reason = ? WHERE name = ?",
            (word, at, reason, name),
        )
        if word == "down":
            uids = state.on_node.get(name, set())
            for attempt in sorted((state.live[uid] for uid in uids), key=lambda a: a.id):
                self._end(state, attempt, at, "lost", f"node {name} went down")

    def _ended(self, since: int, until: int) -> list[SeenAttempt]:
        return [
            SeenAttempt(
                uid=uid,
                state="ended",
                nodes=tuple(json.loads(nodes)),
                started_at=from_us(started),
                ended_at=from_us(ended),
                outcome=outcome,
                detail=detail,
                checkpoint_at=None if checkpoint is None else from_us(checkpoint),
                cluster_ref=str(id),
            )
            for id, uid, nodes, started, ended, outcome, detail, checkpoint in (
                self._connection.execute(
                    "SELECT id, uid, nodes, started_us, ended_us, outcome, detail, checkpoint_us"
                    " FROM attempt WHERE seq > ? AND seq <= ? ORDER BY seq",
                    (since, until),
                )
            )
        ]


def _check_state(word: str) -> None:
    if word not in NODE_STATES:
        raise Invalid(f"A node is {', '.join(NODE_STATES)}, not {word!r}.", field="state")


def _refusal(request: LaunchRequest, state: State) -> str:
    """Return why a gang cannot start on the nodes it was given; empty: it can."""
    if not request.nodes or request.gpus_per_member < 1:
        return "a gang needs a member, and a member a GPU"
    for name in sorted(set(request.nodes)):
        row = state.rows.get((name, request.pool))
        if row is None:
            return f"there is no node {name} with GPUs of {request.pool}"
        if row.state != "up":
            return f"node {name} is {row.state}"
        needed = request.nodes.count(name) * request.gpus_per_member
        if needed > row.free:
            return f"node {name} has {row.free} GPUs of {request.pool} free, not {needed}"
    return ""
