"""One attempt in a simulated world: when it will end, how busy it is, what it last saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.backends.port import LaunchRequest, Sample, SeenAttempt
from apps.common.time import MICROSECOND, from_us

LOW = 0.5
"""A stretch less busy than this is one that a pool may call idle, so its start is told."""


def _us(seconds: float) -> int:
    return round(seconds * MICROSECOND)


@dataclass(slots=True)
class Live:
    """A running attempt, as it is held in memory; instants in microseconds."""

    id: int
    uid: str
    pool: str
    gpus: int
    nodes: tuple[str, ...]
    started: int
    end: int | None
    outcome: str
    detail: str
    confirmed: int | None
    every: int | None
    utilisation: float | None
    idle_from: int | None
    idle_to: int | None
    takes: float | str  # seconds from the signal to the saved checkpoint, or never
    # What it was asked: when it gives way (None: not asked), whether its work is saved by then, and
    # how many members stay; 0: it leaves whole.
    leaves: int | None = None
    saves: bool = False
    keep: int = 0
    shrunk: int | None = None
    seen: SeenAttempt | None = None
    seen_checkpoint: int | None = None

    def due(self) -> int | None:
        """Return the next instant at which it changes by itself; None: never."""
        if self.leaves is None or self.end is None:
            return self.end if self.leaves is None else self.leaves
        return min(self.end, self.leaves)

    def checkpoint(self, now: int) -> int | None:
        """Return the instant of the last checkpoint confirmed by ``now``."""
        if self.every is None:
            return self.confirmed
        saved = self.started + (now - self.started) // self.every * self.every
        if saved <= self.started:
            return self.confirmed
        return saved if self.confirmed is None else max(saved, self.confirmed)

    def look(self, now: int) -> SeenAttempt:
        """Return it as the cluster reports it, made anew only where it changed."""
        if self.seen is not None and self.every is None:
            return self.seen
        checkpoint = self.checkpoint(now)
        if self.seen is None or checkpoint != self.seen_checkpoint:
            self.seen_checkpoint = checkpoint
            self.seen = SeenAttempt(
                uid=self.uid,
                state="running",
                nodes=self.nodes,
                started_at=from_us(self.started),
                checkpoint_at=None if checkpoint is None else from_us(checkpoint),
                cluster_ref=str(self.id),
                shrunk_at=None if self.shrunk is None else from_us(self.shrunk),
            )
        return self.seen

    def ask(self, now: int, until: int, keep: int) -> bool:
        """Take in that it is to give way by ``until``; False: it was asked before."""
        if self.leaves is not None or keep >= len(self.nodes):
            return False
        saved = None if isinstance(self.takes, str) else now + _us(self.takes)
        self.saves = saved is not None and saved <= until
        self.leaves = saved if saved is not None and self.saves else max(now, until)
        self.keep = keep
        return True

    def forget(self) -> None:
        """Let it no longer be asked to give way."""
        self.leaves, self.saves, self.keep = None, False, 0

    def confirm(self, saved: int) -> bool:
        """Take in a checkpoint; False when a later one is known."""
        if self.confirmed is not None and saved <= self.confirmed:
            return False
        self.confirmed, self.seen = saved, None
        return True

    def sample(self, now: int, at: datetime) -> Sample:
        """Return its utilisation at ``now``, which is ``at``, and since when it has been low."""
        level, since = self.utilisation, self.started
        if level is None:
            return Sample(self.uid, at, None)
        if self.idle_from is not None and now >= self.idle_from:
            if self.idle_to is None or now < self.idle_to:
                level, since = 0.0, self.idle_from
            else:
                since = self.idle_to
        return Sample(self.uid, at, level, from_us(since) if level < LOW else None)


def true_end(request: LaunchRequest, started: int) -> tuple[int | None, str, str]:
    """Return when an attempt will end (None: never), how, and the cluster's words for it.

    What a checkpoint kept is taken off the runtime; the limit is each attempt's anew. A runtime
    equal to the limit ends by itself; only a longer one is cut off.
    """
    runtime: float | None = request.workload["runtime"]
    if runtime is None:
        runtime = request.limit_seconds
    limit = request.limit_seconds
    if runtime is not None:
        left = max(_us(runtime) - request.kept_seconds * MICROSECOND, 0)
        if limit is None or left <= limit * MICROSECOND:
            return started + left, str(request.workload["outcome"]), ""
    if limit is None:
        return None, "", ""
    return started + limit * MICROSECOND, "timed_out", f"ran into its limit of {limit} s"


def live(
    *,
    id: int,
    uid: str,
    pool: str,
    gpus: int,
    nodes: str,
    workload: str,
    started: int,
    end: int | None,
    outcome: str,
    detail: str,
    confirmed: int | None,
    leaves: int | None = None,
    saves: int = 0,
    keep: int = 0,
    shrunk: int | None = None,
) -> Live:
    """Return a running attempt from the columns of its row."""
    does: Mapping[str, Any] = json.loads(workload)
    idle_from = None if does["idle_after"] is None else started + _us(does["idle_after"])
    idle_to = None
    if idle_from is not None and does["idle_for"] is not None:
        idle_to = idle_from + _us(does["idle_for"])
    return Live(
        id=id,
        uid=uid,
        pool=pool,
        gpus=gpus,
        nodes=tuple(json.loads(nodes)),
        started=started,
        end=end,
        outcome=outcome,
        detail=detail,
        confirmed=confirmed,
        every=None if does["checkpoint_every"] is None else _us(does["checkpoint_every"]),
        utilisation=None if does["unknown"] else does["utilisation"],
        idle_from=idle_from,
        idle_to=idle_to,
        takes=does["checkpoint_takes"],
        leaves=leaves,
        saves=bool(saves),
        keep=keep,
        shrunk=shrunk,
    )
