"""When a job likely starts: the same cycle on a virtual clock, everything ending by its limit.

Usage, quotas and nodes stay as they are, nobody submits, and nobody is evicted who was not asked
yet: it says what the line as it stands comes to if all that runs uses all of its limit.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from apps.engine.cycle import schedule
from apps.engine.types import (
    HOUR,
    NONE,
    Bools,
    Holds,
    Ints,
    Pending,
    Plan,
    Policy,
    Running,
    Snapshot,
)

HORIZON = 7 * 24 * HOUR
STEPS = 200


def likely_starts(
    snapshot: Snapshot, policy: Policy, *, horizon: int = HORIZON, steps: int = STEPS
) -> Ints:
    """Return the instant each pending job would start, -1: not within the horizon or the steps.

    A step is one cycle: at each instant something ends, the snapshot's own first.
    """
    policy = replace(policy, preemption="none")
    starts = np.full(len(snapshot.pending.id), NONE, dtype=np.int64)
    index = {job: k for k, job in enumerate(snapshot.pending.id.tolist())}
    end = snapshot.now + horizon
    for _ in range(steps):
        if not len(snapshot.pending.id):
            break
        plan = schedule(snapshot, policy)
        for job in snapshot.pending.id[plan.starts.job].tolist():
            starts[index[job]] = snapshot.now
        snapshot = carry_out(snapshot, policy, plan)
        upcoming = next_instant(snapshot)
        if upcoming == NONE or upcoming > end:
            break
        snapshot = pass_time(snapshot, upcoming)
    return starts


def next_instant(snapshot: Snapshot) -> int:
    """Return when the next running job ends or has left, or a back-off is over, -1: never."""
    running, backs = snapshot.running, snapshot.pending.no_reserve_before
    instants = [
        int(np.maximum(some[some >= 0], snapshot.now + 1).min())
        for some in (running.ends_by, running.leaving)
        if (some >= 0).any()
    ]
    later = backs[backs > snapshot.now]
    if later.size:
        instants.append(int(later.min()))
    return min(instants, default=NONE)


def pass_time(snapshot: Snapshot, now: int) -> Snapshot:
    """Move the clock; what has a limit has ended by it, and who was asked to leave has left."""
    running = snapshot.running
    stays = (running.ends_by < 0) | (running.ends_by > now)
    left = (running.leaving >= 0) & (running.leaving <= now)
    shrunk = left & (running.shrinking > 0)
    running = _keep_running(_shrink(running, shrunk), stays & (~left | shrunk))
    return replace(snapshot, now=now, running=running)


def carry_out(snapshot: Snapshot, policy: Policy, plan: Plan) -> Snapshot:
    """Apply a plan: what starts runs from now on, what is held is held, who timed out backs off."""
    pending, now = snapshot.pending, snapshot.now
    since, back_off = pending.reserved_since.copy(), pending.no_reserve_before.copy()
    back_off[plan.timed_out] = now + max(policy.gang_timeout, 0)
    since[plan.timed_out] = NONE
    since[plan.holds.job] = np.where(since[plan.holds.job] < 0, now, since[plan.holds.job])
    pending = replace(pending, reserved_since=since, no_reserve_before=back_off)
    waits = np.ones(len(pending.id), dtype=np.bool_)
    waits[plan.starts.job] = False
    return replace(
        snapshot,
        running=_started(snapshot, plan),
        pending=_keep_pending(pending, waits, plan),
    )


def _started(snapshot: Snapshot, plan: Plan) -> Running:
    """Append what starts to what runs."""
    pending, running, jobs, now = snapshot.pending, snapshot.running, plan.starts.job, snapshot.now
    limit = pending.limit[jobs]
    new: dict[str, Ints] = {
        "started": np.full(len(jobs), now, dtype=np.int64),
        "ends_by": np.where(limit >= 0, now + limit, NONE),
        "member_offsets": running.member_offsets[-1] + plan.starts.offsets[1:],
        "member_node": plan.starts.node,
        "min_size": pending.size[jobs],
    }
    for name in ("attempt", "last_checkpoint", "restarted", "demoted", "leaving", "leaving_for"):
        new[name] = np.full(len(jobs), NONE, dtype=np.int64)
    for name in ("evictions", "shrinking"):
        new[name] = np.zeros(len(jobs), dtype=np.int64)
    columns = {
        field.name: np.concatenate(
            [
                getattr(running, field.name),
                new[field.name] if field.name in new else getattr(pending, field.name)[jobs],
            ]
        )
        for field in fields(Running)
    }
    return Running(**columns)


def _shrink(running: Running, shrunk: Bools) -> Running:
    """Drop the last members of the gangs that have shrunk."""
    if not shrunk.any():
        return running
    many = np.diff(running.member_offsets)
    left = np.where(shrunk, many - running.shrinking, many)
    rank = np.arange(len(running.member_node)) - np.repeat(running.member_offsets[:-1], many)
    return replace(
        running,
        size=np.where(shrunk, running.size - running.shrinking, running.size),
        member_offsets=np.concatenate([[0], np.cumsum(left)]).astype(np.int64),
        member_node=running.member_node[rank < np.repeat(left, many)],
        leaving=np.where(shrunk, NONE, running.leaving),
        leaving_for=np.where(shrunk, NONE, running.leaving_for),
        shrinking=np.where(shrunk, 0, running.shrinking),
    )


def _keep_running(running: Running, stays: Bools) -> Running:
    many = np.diff(running.member_offsets)
    columns: dict[str, Any] = {
        field.name: getattr(running, field.name)[stays]
        for field in fields(Running)
        if not field.name.startswith("member_")
    }
    offsets = np.concatenate([[0], np.cumsum(many[stays])]).astype(np.int64)
    return Running(
        **columns,
        member_offsets=offsets,
        member_node=running.member_node[np.repeat(stays, many)],
    )


def _keep_pending(pending: Pending, waits: Bools, plan: Plan) -> Pending:
    """Drop what started, and replace what is held by what the plan holds."""
    columns: dict[str, Any] = {
        field.name: getattr(pending, field.name)[waits]
        for field in fields(Pending)
        if not field.name.startswith(("hold_", "promise_"))
    }
    promised = np.zeros(len(pending.id), dtype=np.bool_)
    promised[plan.leaving.job] = True
    return Pending(
        **columns | {"promised": promised[waits]},
        hold_offsets=_offsets(pending, waits, plan.holds),
        hold_rank=plan.holds.rank,
        hold_node=plan.holds.node,
        promise_offsets=_offsets(pending, waits, plan.promises),
        promise_rank=plan.promises.rank,
        promise_node=plan.promises.node,
    )


def _offsets(pending: Pending, waits: Bools, holds: Holds) -> Ints:
    many = np.zeros(len(pending.id), dtype=np.int64)
    many[holds.job] = np.diff(holds.offsets)
    return np.concatenate([[0], np.cumsum(many[waits])]).astype(np.int64)
