"""A snapshot from a scenario's dictionary, and the first decision in the scenario's words.

Pure: the engine alone, no tick, no database. Enough of SCENARIO.md to check a first decision.
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from apps.engine.cycle import schedule
from apps.engine.types import (
    HOUR,
    MICROSECOND,
    TERMS,
    Mode,
    Nodes,
    NodeState,
    Pending,
    Plan,
    Policy,
    Pools,
    Quotas,
    Reason,
    Running,
    Snapshot,
    Tenants,
    Topology,
    Verdict,
    Weights,
)

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def micros(value: Any, now: int = 0) -> int:
    """Read a duration (``"none"``: -1), or an instant beside ``now``."""
    if isinstance(value, datetime):
        return round(value.timestamp() * MICROSECOND)
    if value == "none":
        return -1
    match = re.fullmatch(r"(-?)([\d.]+)([smhd])", value)
    assert match, value
    sign = -1 if match[1] else 1
    return now + sign * round(float(match[2]) * UNITS[match[3]] * MICROSECOND)


def expand(name: str) -> list[str]:
    """Spell out a range as Slurm writes it."""
    match = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", name)
    if not match:
        return [name]
    low, high, width = int(match[2]), int(match[3]), len(match[2])
    return [f"{match[1]}{n:0{width}d}{match[4]}" for n in range(low, high + 1)]


def ints(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)


def load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def jobs_of(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """Spell out ``count``; ids follow the file."""
    jobs = []
    for job in scenario.get("jobs", []):
        many = job.get("count")
        names = [job["name"]] if many is None else [f"{job['name']}-{n + 1}" for n in range(many)]
        for name in names:
            jobs.append({**job, "name": name, "id": len(jobs) + 1})
    return jobs


def snapshot_of(scenario: dict[str, Any]) -> tuple[Snapshot, Policy]:
    """Build what the engine is given at the scenario's ``now``."""
    now = micros(scenario.get("now", NOW))
    pools = [p["name"] for p in scenario["pools"]]
    nodes = [{**n, "name": name} for n in scenario["nodes"] for name in expand(n["name"])]
    node_at = {n["name"]: i for i, n in enumerate(nodes)}
    tenants = scenario["tenants"]
    tenant_at = {t["name"]: i for i, t in enumerate(tenants)}
    jobs = jobs_of(scenario)
    pending = [j for j in jobs if j.get("state", "pending") == "pending"]
    running = [j for j in jobs if j.get("state") == "running"]

    def codes(key: str) -> Any:
        known: dict[str, int] = {}
        return ints(
            known.setdefault(n[key], len(known)) if n.get(key, "none") != "none" else -1
            for n in nodes
        )

    def quota(tenant: dict[str, Any], pool: str, key: str, default: Any) -> Any:
        value = tenant.get("quota", {}).get(pool, {}).get(key, default)
        return -1 if value == "none" else value

    snapshot = Snapshot(
        now=now,
        pools=Pools(id=ints(range(1, len(pools) + 1)), name=tuple(pools)),
        nodes=Nodes(
            id=ints(range(1, len(nodes) + 1)),
            name=tuple(n["name"] for n in nodes),
            pool=ints(pools.index(n["pool"]) for n in nodes),
            gpus=ints(n["gpus"] for n in nodes),
            state=ints(NodeState[n.get("state", "up").upper()] for n in nodes),
            rack=codes("rack"),
            nvlink=codes("nvlink"),
            foreign=ints(0 for _ in nodes),
        ),
        tenants=Tenants(
            id=ints(range(1, len(tenants) + 1)),
            name=tuple(t["name"] for t in tenants),
            parent=ints(tenant_at.get(t.get("parent", "root"), -1) for t in tenants),
            weight=np.array([float(t.get("weight", 1)) for t in tenants]),
            usage=np.array([float(t.get("usage", 0)) for t in tenants]),
            archived=np.array([t.get("archived", False) for t in tenants], dtype=np.bool_),
        ),
        quotas=Quotas(
            guarantee=ints([quota(t, p, "guarantee", 0) for p in pools] for t in tenants),
            ceiling=ints([quota(t, p, "ceiling", -1) for p in pools] for t in tenants),
            weight=np.array(
                [[float(quota(t, p, "weight", np.nan)) for p in pools] for t in tenants]
            ),
        ),
        pending=_pending(pending, jobs, now, tenant_at, pools, node_at),
        running=_running(running, now, tenant_at, pools, node_at),
    )
    return snapshot, policy_of(scenario, jobs)


def _pending(
    pending: list[dict[str, Any]],
    jobs: list[dict[str, Any]],
    now: int,
    tenant_at: dict[str, int],
    pools: list[str],
    node_at: dict[str, int],
) -> Pending:
    holds = [j.get("holds", {}) for j in pending]  # not of the format: rank -> node
    lengths = [len(h) for h in holds]
    return Pending(
        id=ints(j["id"] for j in pending),
        tenant=ints(tenant_at[j["tenant"]] for j in pending),
        pool=ints(pools.index(j["pool"]) for j in pending),
        size=ints(j.get("size", 1) for j in pending),
        gpus_per_member=ints(j.get("gpus_per_member", 1) for j in pending),
        submitted=ints(micros(j.get("submitted", "0s"), now) for j in pending),
        limit=ints(micros(j.get("limit", "none")) for j in pending),
        class_priority=ints(j.get("priority", 0) for j in pending),
        nice=ints(j.get("nice", 0) for j in pending),
        queue_factor=np.zeros(len(pending)),
        topology=ints(Topology[j.get("topology", "none").upper()] for j in pending),
        gate=ints(
            Reason.HELD if j.get("held") else Reason.DEPENDENCY if j.get("depends_on") else 0
            for j in pending
        ),
        broken=np.array([j.get("broken", False) for j in pending], dtype=np.bool_),
        reserved_since=ints(
            micros(j["reserved_since"], now) if "reserved_since" in j else -1 for j in pending
        ),
        no_reserve_before=ints(
            micros(j["no_reserve_before"], now) if "no_reserve_before" in j else 0 for j in pending
        ),
        hold_offsets=ints(np.cumsum([0, *lengths])),
        hold_rank=ints(int(rank) for h in holds for rank in h),
        hold_node=ints(node_at[node] for h in holds for node in h.values()),
        preemptible=np.array([j.get("preemptible", True) for j in pending], dtype=np.bool_),
    )


def _running(
    running: list[dict[str, Any]],
    now: int,
    tenant_at: dict[str, int],
    pools: list[str],
    node_at: dict[str, int],
) -> Running:
    started = [micros(j["started"], now) for j in running]
    limits = [micros(j.get("limit", "none")) for j in running]
    return Running(
        id=ints(j["id"] for j in running),
        tenant=ints(tenant_at[j["tenant"]] for j in running),
        pool=ints(pools.index(j["pool"]) for j in running),
        size=ints(j.get("size", 1) for j in running),
        gpus_per_member=ints(j.get("gpus_per_member", 1) for j in running),
        started=ints(started),
        ends_by=ints(s + m if m >= 0 else -1 for s, m in zip(started, limits, strict=True)),
        class_priority=ints(j.get("priority", 0) for j in running),
        member_offsets=ints(np.cumsum([0, *(len(j["on"]) for j in running)])),
        member_node=ints(node_at[n] for j in running for n in j["on"]),
        submitted=ints(
            micros(j["submitted"], now) if "submitted" in j else s
            for j, s in zip(running, started, strict=True)
        ),
        preemptible=np.array([j.get("preemptible", True) for j in running], dtype=np.bool_),
        min_size=ints(j.get("min_size", j.get("size", 1)) for j in running),
        last_checkpoint=ints(
            micros(j["last_checkpoint"], now) if "last_checkpoint" in j else -1 for j in running
        ),
    )


def policy_of(scenario: dict[str, Any], jobs: list[dict[str, Any]]) -> Policy:
    """Read [policy]."""
    given = scenario.get("policy", {})
    weights = given.get("weights", {})
    names = {"fair_share": "fair_share", "age": "age", "size": "size", "class": "class_"}
    return Policy(
        fair_share=given.get("fair_share", "fair_tree"),
        weights=Weights(**{names[k]: float(v) for k, v in weights.items() if k in names}),
        max_age=micros(given.get("max_age", "7d")),
        max_class=max([j.get("priority", 0) for j in jobs], default=0),
        preemption=given.get("preemption", "none"),
        mode=given.get("mode", "kill"),
        grace=micros(given.get("grace", "60s")),
        min_runtime=micros(given.get("min_runtime", "0s")),
        max_evictions=given.get("max_evictions_per_tick", 0),
        cooldown=micros(given.get("cooldown", "0s")),
        thrash_after=given.get("thrash_after", 3),
        placement=given.get("placement", "pack"),
        backfill=given.get("backfill", "easy"),
        hold_late=micros(given.get("hold_late", "none")),
        gang_timeout=micros(given.get("gang_timeout", "none")),
        lend_guarantee=given.get("lend_guarantee", True),
    )


def answer(scenario: dict[str, Any]) -> dict[str, Any]:
    """Decide once and say it in the words of the JSON answer."""
    snapshot, policy = snapshot_of(scenario)
    plan = schedule(snapshot, policy)
    return spell(scenario, snapshot, plan)


def spell(scenario: dict[str, Any], snapshot: Snapshot, plan: Plan) -> dict[str, Any]:
    names = {j["id"]: j["name"] for j in jobs_of(scenario)}
    job = [names[i] for i in snapshot.pending.id.tolist()]
    verdicts = plan.verdicts
    starts, holds = plan.starts, plan.holds
    running, asked = [names[i] for i in snapshot.running.id.tolist()], plan.evictions
    tenants = snapshot.tenants.name
    jobs: dict[str, Any] = {}
    for i, name in enumerate(job):
        reason = {"code": Reason(int(verdicts.reason[i])).name.lower()}
        for key in ("needed", "available", "most", "until"):
            value = int(getattr(verdicts, key)[i])
            if value >= 0:
                reason[key] = value
        if verdicts.tenant[i] >= 0:
            reason["tenant"] = tenants[int(verdicts.tenant[i])]
        if verdicts.for_job[i] >= 0:
            reason["for"] = job[int(verdicts.for_job[i])]
        if reason["code"] == "placement":
            reason["domain"] = ["node", "rack", "nvlink"][int(snapshot.pending.topology[i])]
        jobs[name] = {
            "reason": reason,
            "verdict": Verdict(int(verdicts.verdict[i])).name,
            "priority": float(verdicts.priority[i]),
            "terms": dict(zip(TERMS, verdicts.terms[i].tolist(), strict=True)),
        }
    rows = {}
    for t, name in enumerate(tenants):
        s = plan.standings
        level = float(s.level[t])
        rows[name] = {
            "usage": float(s.usage[t]),
            "share": float(s.share[t]),
            "usage_share": float(s.usage_share[t]),
            "level": level,
            "level_state": "no_usage" if np.isinf(level) else "zero_weight" if level == 0 else "",
            "factor": float(s.factor[t]),
            "rank": int(s.rank[t]),
            "pools": {
                pool: {
                    key: int(getattr(s, key)[t, p])
                    for key in ("guarantee", "used", "entitlement", "lent", "borrowed", "ceiling")
                }
                for p, pool in enumerate(snapshot.pools.name)
            },
        }
    return {
        "starts": {
            job[int(j)]: [
                snapshot.nodes.name[int(n)]
                for n in starts.node[starts.offsets[k] : starts.offsets[k + 1]]
            ]
            for k, j in enumerate(starts.job)
        },
        "reserves": {
            job[int(j)]: {
                int(r): snapshot.nodes.name[int(n)]
                for r, n in zip(
                    holds.rank[holds.offsets[k] : holds.offsets[k + 1]],
                    holds.node[holds.offsets[k] : holds.offsets[k + 1]],
                    strict=True,
                )
            }
            for k, j in enumerate(holds.job)
        },
        "evicts": {
            running[int(v)]: {
                "for": job[int(j)],
                "mode": Mode(int(m)).name.lower(),
                "members": int(n),
                "rule": rule,
                "lost_gpu_hours": int(lost) / HOUR,
            }
            for v, j, m, n, rule, lost in zip(
                asked.victim,
                asked.job,
                asked.mode,
                asked.members,
                asked.rule,
                asked.lost,
                strict=True,
            )
        },
        "timed_out": [job[int(j)] for j in plan.timed_out],
        "order": [job[int(j)] for j in plan.order],
        "jobs": jobs,
        "tenants": rows,
        "room": plan.room,
    }
