"""The JSON answer of a scenario, from what production stored: rows, the Tick's plan, the ledger."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from apps.common.time import HOUR_US, MICROSECOND, from_us, to_us
from apps.engine.decay import back_at_share_in
from apps.engine.types import NONE, TERMS, Plan
from apps.jobs.models import Attempt, Job, Move
from apps.jobs.states import TERMINAL, WAITING
from apps.ledger.models import Interval, IntervalKind, Price
from apps.ledger.rollup import tally
from apps.queues.selectors import policy_of
from apps.scheduling.gates import AHEAD_CODES, gate_of
from apps.scheduling.models import Tick, Verdict
from apps.scheduling.publish import standing_rows
from apps.scheduling.scenario.given_way import alarms_of, evictions_of
from apps.scheduling.scenario.setup import Stage
from apps.scheduling.scenario.words import money_text, stamp
from apps.scheduling.stored import decision_of
from apps.tenants.models import Tenant

Answer = dict[str, Any]

# The ledger's states, as the five parts of the answer.
PARTS = {
    "busy": "busy",
    "unknown": "busy",
    "held_idle": "held_idle",
    "gang_wait": "gang_wait",
    "free": "unallocated",
    "stranded": "unallocated",
    "unavailable": "unavailable",
}
GATES = frozenset({"held", "dependency", "begin_time", "paused"})
FIVE = ("busy", "held_idle", "gang_wait", "unallocated", "unavailable")


def _starts(stage: Stage) -> list[dict[str, Any]]:
    """Return the attempts that were started since now, in order."""
    rows = Attempt.objects.filter(job__cluster=stage.cluster, started_at__isnull=False)
    rows = rows.exclude(pk__in=stage.adopted)
    return [
        {
            "job": attempt.job.name,
            "members": [member.node.name for member in attempt.members.all()],
            "at": stamp(attempt.started_at or attempt.created_at),
        }
        for attempt in rows.select_related("job").prefetch_related("members__node").order_by("id")
    ]


def _reserves(stage: Stage) -> list[dict[str, Any]]:
    """Return what is held now: the node of each member that holds, by rank."""
    rows = Interval.objects.filter(
        cluster=stage.cluster, kind=IntervalKind.HOLD, end_us__isnull=True
    ).select_related("job", "node", "reservation")
    found: dict[int, dict[str, Any]] = {}
    for row in rows.order_by("job_id", "rank"):
        if row.job is None or row.node is None or row.reservation is None or row.rank is None:
            continue
        entry = found.setdefault(
            row.job.pk,
            {
                "job": row.job.name,
                "members": [],
                "since": stamp(row.reservation.since),
            },
        )
        entry["members"].append(row.node.name)
    return list(found.values())


def _reason(
    stage: Stage,
    verdict: Verdict,
    job: Job,
    names: dict[int, str],
    tenants: dict[int, str],
    ahead: list[str],
) -> dict[str, Any]:
    """Return a reason with what its code carries (SCENARIO.md), names for ids."""
    detail = {**verdict.detail, **gate_of(job, verdict.code)}
    reason: dict[str, Any] = {"code": verdict.code}
    if verdict.needed is not None:
        reason["needed"] = verdict.needed
    if verdict.available is not None:
        reason["available"] = verdict.available
    if "tenant" in detail:
        reason["tenant"] = tenants[detail["tenant"]]
    if "for" in detail:
        reason["for"] = names[detail["for"]]
    if "jobs" in detail:
        reason["jobs"] = [names[pk] for pk in detail["jobs"]]
    if "until_us" in detail:
        reason["until"] = stamp(from_us(detail["until_us"]))
    elif verdict.code == "reserved":
        reason |= {"until": None, "until_state": "never"}
    if "since" in detail:
        reason["since"] = stamp(detail["since"])
    if verdict.code == "no_nodes":
        reason["pool"] = job.pool.name
    if verdict.code == "paused" and "what" in detail:
        paths = {tenant.path: name for name, tenant in stage.tenants.items()}
        detail["what"] = paths.get(detail["what"], detail["what"])
    for key in ("most", "domain", "who", "what"):
        if key in detail:
            reason[key] = detail[key]
    if verdict.code in GATES:
        reason = {**dict.fromkeys(("who", "since", "what")), **reason}
    if verdict.code in AHEAD_CODES:
        reason["ahead"] = ahead
    return reason


def _gpu_hours(job: Job, now_us: int) -> float:
    """Return the raw GPU-hours of all attempts, each from its start."""
    total = 0
    for attempt in job.attempts.all():
        if attempt.started_at is not None:
            end = to_us(attempt.ended_at) if attempt.ended_at else now_us
            total += (end - to_us(attempt.started_at)) * job.gpus
    return total / HOUR_US


def _jobs(stage: Stage, tick: Tick, plan: Plan, pending: list[int]) -> dict[str, Any]:
    at = {job_id: k for k, job_id in enumerate(pending)}
    verdicts = {v.job_id: v for v in Verdict.objects.filter(cluster=stage.cluster)}
    jobs = list(
        Job.objects.filter(cluster=stage.cluster)
        .select_related("pool", "held_by")
        .prefetch_related("attempts", "depends_on")
        .order_by("id")
    )
    names = {job.pk: job.name for job in jobs}
    tenants = {tenant.pk: name for name, tenant in stage.tenants.items()}
    pools = {job.pk: job.pool_id for job in jobs}
    line = [(pending[k], pools[pending[k]]) for k in plan.order.tolist()]
    found = {}
    for job in jobs:
        k = at.get(job.pk)
        terms = None if k is None else plan.verdicts.terms[k].tolist()
        waits = job.state in WAITING and job.pk in verdicts
        ahead = _ahead(line, job, names, verdicts) if waits else []
        found[job.name] = {
            "state": job.state,
            "terminal": job.state in TERMINAL,
            "attempt": job.attempt_number,
            "priority": None if k is None else float(plan.verdicts.priority[k]),
            "terms": None if terms is None else dict(zip(TERMS, terms, strict=True)),
            "reason": _reason(stage, verdicts[job.pk], job, names, tenants, ahead)
            if waits
            else None,
            "gpu_hours": _gpu_hours(job, to_us(tick.at)),
            "retries_used": job.retries_used,
        }
    return found


def _ahead(
    line: list[tuple[int, int]], job: Job, names: dict[int, str], verdicts: dict[int, Verdict]
) -> list[str]:
    """Return the waiting jobs of its pool before it, in order."""
    found = []
    for job_id, pool_id in line:
        if job_id == job.pk:
            break
        if pool_id == job.pool_id and job_id in verdicts:
            found.append(names[job_id])
    return found


def _standing(stage: Stage, plan: Plan, tick: Tick) -> dict[str, Any]:
    seen = decision_of(tick).seen
    half_life = policy_of(stage.cluster).half_life_seconds
    found = {}
    names = {tenant.pk: name for name, tenant in stage.tenants.items()}
    rows = {row.tenant_id: row for row in standing_rows(stage.cluster, seen, plan, tick.pk)}
    for tenant_id, row in rows.items():
        entry: dict[str, Any] = {
            "usage": row.usage,
            "usage_share": row.usage_share,
            "share": row.share,
            "level": row.level,
            "factor": row.factor,
            "rank": row.rank,
            "back_at_share_in": _back(stage, row, rows, half_life),
            "pools": row.pools,
        }
        if row.level_state:
            entry["level_state"] = row.level_state
        if entry["factor"] is None:
            entry["factor_state"] = "not_ranked"
        if entry["back_at_share_in"] is None:
            entry["back_at_share_state"] = "never"
        found[names[tenant_id]] = entry
    return found


def _back(stage: Stage, row: Any, rows: dict[int, Any], half_life: int | None) -> float | None:
    """Return the seconds until a tenant is back at its share, if siblings' usage stays."""
    tenants = {tenant.pk: tenant for tenant in stage.tenants.values()}
    parent = tenants[row.tenant_id].parent_id
    archived = set(Tenant.objects.filter(archived_at__isnull=False).values_list("id", flat=True))
    siblings = sum(
        other.usage
        for pk, other in rows.items()
        if pk != row.tenant_id and pk not in archived and tenants[pk].parent_id == parent
    )
    wait = back_at_share_in(
        row.usage, siblings, row.share, None if half_life is None else half_life * MICROSECOND
    )
    return None if wait is None else wait / MICROSECOND


def _pools(stage: Stage, plan: Plan, names: tuple[str, ...]) -> dict[str, Any]:
    room = plan.room
    return {
        name: {
            "gpus": int(room.gpus[k]),
            "free": int(room.free[k]),
            "held": int(room.held[k]),
            "promised": int(room.promised[k]),
        }
        for k, name in enumerate(names)
    }


def ledger_of(stage: Stage, now_us: int) -> dict[str, Any]:
    """Return GPU-hours and money since the scenario's ``now``, by pool, in the five parts."""
    prices = dict(
        Price.objects.filter(pool__cluster=stage.cluster).values_list("id", "micros_per_gpu_hour")
    )
    names = {pool.pk: name for name, pool in stage.pools.items()}
    hours = {name: dict.fromkeys(FIVE, 0) for name in stage.pools}
    money = {name: dict.fromkeys(FIVE, Fraction(0)) for name in stage.pools}
    for piece in tally(stage.cluster, to_us(stage.scenario.now), now_us):
        name, part = names[piece.pool_id], PARTS.get(piece.state)
        if part is None:  # what more was claimed than there is: no part of the sum
            continue
        hours[name][part] += piece.gpu_us
        if piece.price_id is not None:
            cost = Fraction(piece.gpu_us * prices[piece.price_id], HOUR_US * 1_000_000)
            money[name][part] += cost
    found: dict[str, Any] = {}
    for name in stage.pools:
        parts = {part: hours[name][part] / HOUR_US for part in FIVE}
        found[name] = {
            "capacity": sum(hours[name].values()) / HOUR_US,
            **parts,
            "money": {
                "capacity": money_text(sum(money[name].values(), Fraction(0))),
                **{part: money_text(money[name][part]) for part in FIVE},
            },
        }
    return found


def _timeline(stage: Stage) -> list[dict[str, Any]]:
    moves = Move.objects.filter(job__cluster=stage.cluster).select_related("job")
    return [
        {
            "at": stamp(move.at),
            "event": move.what,
            "job": move.job.name,
            "attempt": move.attempt_number,
            "from": move.before,
            "to": move.after,
        }
        for move in moves.order_by("at", "id")
    ]


def answer_of(stage: Stage, tick: Tick) -> Answer:
    """Return the whole answer as it is after a tick."""
    decision = decision_of(tick)
    plan, pending = decision.plan, decision.seen.pending_ids
    names = dict(Job.objects.filter(cluster=stage.cluster).values_list("id", "name"))
    scenario = stage.scenario
    policy = {
        key: None if isinstance(value, float) and math.isinf(value) else value
        for key, value in scenario.policy.items()
    }
    return {
        "title": scenario.title,
        "now": stamp(scenario.now),
        "policy": policy,
        "starts": _starts(stage),
        "reserves": _reserves(stage),
        "evictions": evictions_of(stage),
        "order": [names[pending[k]] for k in plan.order.tolist() if k != NONE],
        "jobs": _jobs(stage, tick, plan, pending),
        "tenants": _standing(stage, plan, tick),
        "pools": _pools(stage, plan, decision.seen.snapshot.pools.name),
        "ledger": ledger_of(stage, to_us(tick.at)),
        "alarms": alarms_of(stage),
        "timeline": _timeline(stage),
    }
