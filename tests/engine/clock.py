"""A plan carried out and time passed, without the engine's code: what the shell and a cluster do."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from apps.engine.types import Mode, Pending, Plan, Policy, Running, Snapshot

RAGGED = ("hold_", "promise_", "member_")


def ragged(table: Any, k: int) -> slice:
    return slice(int(table.offsets[k]), int(table.offsets[k + 1]))


def ints(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)


def columns_of(table: Any, rows: Any) -> dict[str, Any]:
    """Pick rows of all columns but the ragged ones."""
    return {
        field.name: getattr(table, field.name)[rows]
        for field in fields(table)
        if not field.name.startswith(RAGGED)
    }


def flat(rows: list[list[int]]) -> tuple[Any, Any]:
    """Return offsets and values of ragged rows."""
    return ints(np.cumsum([0, *(len(r) for r in rows)])), ints(v for r in rows for v in r)


def members_of(running: Running) -> list[list[int]]:
    offsets, nodes = running.member_offsets, running.member_node
    return [nodes[offsets[k] : offsets[k + 1]].tolist() for k in range(len(running.id))]


def last_leaving(running: Running) -> list[int]:
    """Count the last members of each attempt that were asked to leave."""
    return [
        0 if running.leaving[k] < 0 else int(running.shrinking[k] or running.size[k])
        for k in range(len(running.id))
    ]


def apply(
    snapshot: Snapshot, policy: Policy, plan: Plan, evicted: dict[int, int] | None = None
) -> Snapshot:
    """Carry a plan out; ``evicted`` counts evictions by job, to be said of who starts again."""
    now, evicted = snapshot.now, evicted or {}
    running = _asked(snapshot, plan)
    pending, started = snapshot.pending, plan.starts.job
    limit = pending.limit[started]
    again = np.array([int(j) in evicted for j in pending.id[started]], dtype=np.bool_)
    count = len(started)
    new = {
        name: getattr(pending, name)[started]
        for name in (
            "id", "tenant", "pool", "size", "gpus_per_member", "class_priority", "submitted",
            "preemptible",
        )
    } | {
        "started": np.full(count, now),
        "ends_by": np.where(limit >= 0, now + limit, -1),
        "min_size": pending.size[started],
        "restarted": np.where(again, now, -1),
        "evictions": ints(evicted.get(int(j), 0) for j in pending.id[started]),
        "shrinking": np.zeros(count, dtype=np.int64),
    }  # fmt: skip
    old = columns_of(running, slice(None))
    rows = members_of(running)
    rows += [plan.starts.node[ragged(plan.starts, k)].tolist() for k in range(count)]
    offsets, nodes = flat(rows)
    runs = Running(
        **{
            name: np.concatenate([column, new.get(name, np.full(count, -1))]).astype(column.dtype)
            for name, column in old.items()
        },
        member_offsets=offsets,
        member_node=nodes,
    )
    return replace(snapshot, pending=_waits(snapshot, policy, plan), running=runs)


def _asked(snapshot: Snapshot, plan: Plan) -> Running:
    """Mark who was asked, who was lowered and who may stay."""
    running = snapshot.running
    changed = {
        name: getattr(running, name).copy()
        for name in ("leaving", "leaving_for", "shrinking", "demoted")
    }
    changed["leaving"][plan.stays] = -1
    changed["leaving_for"][plan.stays] = -1
    changed["shrinking"][plan.stays] = 0
    rows = plan.evictions
    for victim, job, mode, members, until in zip(
        rows.victim, rows.job, rows.mode, rows.members, rows.until, strict=True
    ):
        changed["leaving_for"][victim] = snapshot.pending.id[job]
        if mode == Mode.DEMOTE:
            changed["demoted"][victim] = snapshot.now
        else:
            changed["leaving"][victim] = until
            changed["shrinking"][victim] = members if mode == Mode.SHRINK else 0
    return replace(running, **changed)


def _waits(snapshot: Snapshot, policy: Policy, plan: Plan) -> Pending:
    """Keep who does not start, with what the plan holds for it and promises to it."""
    pending, now = snapshot.pending, snapshot.now
    stays = np.setdiff1d(np.arange(len(pending.id)), plan.starts.job)
    since, back_off = pending.reserved_since.copy(), pending.no_reserve_before.copy()
    back_off[plan.timed_out] = now + max(policy.gang_timeout, 0)
    since[plan.timed_out] = -1
    held = {int(j): ragged(plan.holds, k) for k, j in enumerate(plan.holds.job)}
    for k in range(len(pending.id)):
        if k in held:
            since[k] = now if since[k] < 0 else since[k]
        elif plan.verdicts.forecast[k] < 0:
            since[k] = -1
    promised = np.zeros(len(pending.id), dtype=np.bool_)
    promised[plan.leaving.job] = True
    tables: dict[str, Any] = {}
    for name, table in (("hold", plan.holds), ("promise", plan.promises)):
        at = {int(j): ragged(table, k) for k, j in enumerate(table.job)}
        some = [at.get(k, slice(0, 0)) for k in stays.tolist()]
        tables[f"{name}_offsets"], tables[f"{name}_rank"] = flat([table.rank[s] for s in some])
        tables[f"{name}_node"] = flat([table.node[s] for s in some])[1]
    kept = columns_of(pending, stays) | {
        "reserved_since": since[stays],
        "no_reserve_before": back_off[stays],
        "promised": promised[stays],
    }
    return Pending(**kept, **tables)


def pass_time(
    shot: Snapshot, pause: int, evicted: dict[int, int] | None = None, *, all_leave: bool = False
) -> Snapshot:
    """Let time pass: what has a limit ends at it, who was asked leaves and waits in line again.

    ``all_leave``: whoever was asked has left, whatever the grace, and nobody else.
    """
    now, running = shot.now + pause, shot.running
    evicted = {} if evicted is None else evicted
    left = (running.leaving >= 0) & (all_leave | (running.leaving <= now))
    shrunk = left & (running.shrinking > 0)
    ended = (running.ends_by >= 0) & (running.ends_by <= now) & (not all_leave)
    rows = [
        nodes[: len(nodes) - int(running.shrinking[k])] if shrunk[k] else nodes
        for k, nodes in enumerate(members_of(running))
    ]
    stays = np.flatnonzero(~ended & (~left | shrunk))
    offsets, nodes = flat([rows[k] for k in stays])
    columns = columns_of(running, stays)
    columns["size"] = ints(len(rows[k]) for k in stays)
    for name, nothing in (("leaving", -1), ("leaving_for", -1), ("shrinking", 0)):
        columns[name] = np.where(shrunk[stays], nothing, columns[name])
    back = np.flatnonzero(~ended & left & ~shrunk)
    for job in running.id[back].tolist():
        evicted[job] = evicted.get(job, 0) + 1
    return replace(
        shot,
        now=now,
        running=Running(**columns, member_offsets=offsets, member_node=nodes),
        pending=_requeued(shot, back),
    )


def _requeued(shot: Snapshot, back: Any) -> Pending:
    """Put evicted jobs in line again, with their old submit time."""
    pending, running, count = shot.pending, shot.running, len(back)
    limit = running.ends_by[back] - running.started[back]
    new = {
        name: getattr(running, name)[back]
        for name in (
            "id", "tenant", "pool", "size", "gpus_per_member", "class_priority", "submitted",
            "preemptible",
        )
    } | {
        "limit": np.where(running.ends_by[back] >= 0, limit, -1),
        "reserved_since": np.full(count, -1),
    }  # fmt: skip
    old = columns_of(pending, slice(None))
    columns = {
        name: np.concatenate([column, new.get(name, np.zeros(count))]).astype(column.dtype)
        for name, column in old.items()
    }
    tables: dict[str, Any] = {}
    for name in ("hold", "promise"):
        offsets = getattr(pending, f"{name}_offsets")
        tables[f"{name}_offsets"] = np.concatenate([offsets, np.full(count, offsets[-1])])
        for column in ("rank", "node"):
            tables[f"{name}_{column}"] = getattr(pending, f"{name}_{column}")
    return Pending(**columns, **tables)
