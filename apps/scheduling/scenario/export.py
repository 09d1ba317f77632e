"""A stored tick as a scenario file: what it saw is the cluster, what it answered is expected."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from apps.common.time import from_us
from apps.engine.reasons import code_of
from apps.engine.types import MICROSECOND, NONE, NodeState, Policy, Reason, Snapshot, Topology
from apps.engine.types import Verdict as EngineVerdict
from apps.jobs.models import Job
from apps.scheduling.decision import Decision
from apps.scheduling.models import Tick
from apps.scheduling.scenario.left_out import left_out, overdue, seconds_beyond, used_by_node
from apps.scheduling.scenario.toml import key, line, table, value
from apps.scheduling.stored import decision_of

NEVER = 1_000_000
"""As many evictions within an hour as never are."""

DEFAULTS = (
    "Not in a tick, and at their defaults here: prices, half-life and window, usage weights and"
    " factors, and how long jobs really take."
)


@dataclass(frozen=True, slots=True)
class Exported:
    """The text of a file, and what it cannot say, a line each."""

    text: str
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class Names:
    """What the file calls pools, nodes and tenants, by index, and jobs, by id."""

    pools: Sequence[str]
    nodes: Sequence[str]
    tenants: Sequence[str]
    jobs: Mapping[int, str]


def apart(names: Iterable[str]) -> list[str]:
    """Tell names apart that occur more than once; their order stays as it was."""
    found: dict[str, None] = {"root": None}
    seen = Counter(["root"])
    for name in names:
        seen[name] += 1
        # Nothing that prints sorts before an exclamation mark but a blank.
        new = name if seen[name] == 1 else f"{name}!{seen[name]}"
        while new in found:
            new += "!"
        found[new] = None
    return list(found)[1:]


def _names(snapshot: Snapshot, *, keep: bool) -> Names:
    nodes, ids = snapshot.nodes, np.union1d(snapshot.pending.id, snapshot.running.id).tolist()
    by_name = sorted(range(len(nodes.id)), key=lambda k: (nodes.name[k], int(nodes.id[k])))
    if keep:
        known = dict(Job.objects.filter(pk__in=ids).values_list("id", "name"))
        plain = [re.sub(r"[\[\],\s]", "_", nodes.name[k]) for k in by_name]
        called = dict(zip(by_name, apart(plain), strict=True))
        return Names(
            pools=snapshot.pools.name,
            nodes=[called[k] for k in range(len(by_name))],
            tenants=apart(snapshot.tenants.name),
            jobs=dict(zip(ids, apart(known.get(pk, f"job {pk}") for pk in ids), strict=True)),
        )
    width = len(str(len(by_name)))
    called = {k: f"n{place + 1:0{width}d}" for place, k in enumerate(by_name)}
    return Names(
        pools=[f"p{k + 1}" for k in range(len(snapshot.pools.id))],
        nodes=[called[k] for k in range(len(by_name))],
        tenants=[f"t{k + 1}" for k in range(len(snapshot.tenants.id))],
        jobs={pk: f"j{k + 1}" for k, pk in enumerate(ids)},
    )


def _duration(us: int) -> str:
    return "none" if us < 0 else f"{us // MICROSECOND}s"


def _ago(snapshot: Snapshot, at: int) -> str:
    """Return an instant as an offset from now, which it is not after."""
    seconds, rest = divmod(max(snapshot.now - int(at), 0), MICROSECOND)
    part = f".{rest:06d}".rstrip("0") if rest else ""
    return f"-{seconds}{part}s" if seconds or rest else "0s"


def _policy(policy: Policy) -> dict[str, Any]:
    weights = policy.weights
    return {
        "fair_share": policy.fair_share,
        "weights": {
            "fair_share": weights.fair_share,
            "age": weights.age,
            "size": weights.size,
            "queue": weights.queue,
            "class": weights.class_,
        },
        "max_age": _duration(policy.max_age),
        "preemption": policy.preemption,
        "mode": policy.mode,
        "grace": _duration(policy.grace),
        "min_runtime": _duration(policy.min_runtime),
        "max_evictions_per_tick": policy.max_evictions,
        "cooldown": _duration(policy.cooldown),
        "thrash_after": policy.thrash_after or NEVER,
        "placement": policy.placement,
        "backfill": policy.backfill,
        "hold_late": _duration(policy.hold_late),
        "gang_timeout": _duration(policy.gang_timeout),
        "lend_guarantee": policy.lend_guarantee,
    }


def _node(snapshot: Snapshot, names: Names, k: int, used: int) -> dict[str, Any]:
    nodes = snapshot.nodes
    rack, nvlink = int(nodes.rack[k]), int(nodes.nvlink[k])
    state = NodeState(int(nodes.state[k])).name.lower()
    return {
        "pool": names.pools[int(nodes.pool[k])],
        "gpus": max(int(nodes.gpus[k] - max(nodes.foreign[k], 0)), used),
        "rack": f"r{rack + 1}" if rack >= 0 else None,
        "nvlink": f"v{nvlink + 1}" if nvlink >= 0 else None,
        "state": None if state == "up" else state,
    }


def _nodes(snapshot: Snapshot, names: Names, *, ranges: bool) -> list[str]:
    """Return a table for each run of like nodes; those without a GPU of ours are left out."""
    used = used_by_node(snapshot).tolist()
    rows = [
        (names.nodes[k], _node(snapshot, names, k, used[k]))
        for k in sorted(range(len(used)), key=lambda k: names.nodes[k])
    ]
    rows = [(name, values) for name, values in rows if values["gpus"]]
    if not ranges:
        return [table("[[nodes]]", {"name": name, **values}) for name, values in rows]
    found = []
    # Like nodes whose numbers follow each other.
    for (values, _), run in groupby(
        enumerate(rows), key=lambda at: (at[1][1], int(at[1][0][1:]) - at[0])
    ):
        called = [name for _, (name, _) in run]
        first, last = called[0], called[-1]
        name = first if first == last else f"n[{first[1:]}-{last[1:]}]"
        found.append(table("[[nodes]]", {"name": name, **values}))
    return found


def _tenants(snapshot: Snapshot, names: Names) -> list[str]:
    tenants, found = snapshot.tenants, []
    for k, name in enumerate(names.tenants):
        parent = int(tenants.parent[k])
        values = {
            "name": name,
            "parent": names.tenants[parent] if parent >= 0 else None,
            "weight": float(tenants.weight[k]),
            "usage": max(float(tenants.usage[k]), 0.0) or None,
            "archived": bool(tenants.archived[k]) or None,
        }
        lines = [table("[[tenants]]", values)]
        for p, pool in enumerate(names.pools):
            quota = _quota(snapshot, k, p)
            if quota:
                lines.append(f"quota.{key(pool)} = {value(quota)}")
        found.append("\n".join(lines))
    return found


def _quota(snapshot: Snapshot, tenant: int, pool: int) -> dict[str, Any]:
    quotas, found = snapshot.quotas, dict[str, Any]()
    if quotas.guarantee[tenant, pool] > 0:
        found["guarantee"] = int(quotas.guarantee[tenant, pool])
    if quotas.ceiling[tenant, pool] >= 0:
        found["ceiling"] = int(quotas.ceiling[tenant, pool])
    if not math.isnan(quotas.weight[tenant, pool]):
        found["weight"] = float(quotas.weight[tenant, pool])
    return found


def _job(names: Names, rows: Any, k: int) -> dict[str, Any]:
    """Return what waiting and running jobs have in common."""
    return {
        "name": names.jobs[int(rows.id[k])],
        "tenant": names.tenants[int(rows.tenant[k])],
        "pool": names.pools[int(rows.pool[k])],
        "size": int(rows.size[k]),
        "gpus_per_member": int(rows.gpus_per_member[k]),
        "priority": int(rows.class_priority[k]) or None,
        "preemptible": None if rows.preemptible[k] else False,
    }


def _waiting(
    snapshot: Snapshot, names: Names, k: int, depends_on: Mapping[int, list[str]]
) -> dict[str, Any]:
    pending = snapshot.pending
    gate, topology = int(pending.gate[k]), Topology(int(pending.topology[k]))
    first = depends_on.get(int(pending.id[k])) if gate == Reason.DEPENDENCY else None
    cannot = gate == Reason.BEGIN_TIME or (gate == Reason.DEPENDENCY and not first)
    return _job(names, pending, k) | {
        "nice": int(pending.nice[k]) or None,
        "topology": None if topology == Topology.NONE else topology.name.lower(),
        "submitted": _ago(snapshot, pending.submitted[k]),
        "limit": _duration(int(pending.limit[k])),
        "held": gate == Reason.HELD or cannot or None,
        "depends_on": first,
    }


def _running(snapshot: Snapshot, names: Names, k: int, *, late: bool) -> dict[str, Any]:
    running = snapshot.running
    low, high = int(running.member_offsets[k]), int(running.member_offsets[k + 1])
    least, saved = int(running.min_size[k]), int(running.last_checkpoint[k])
    limit = "none"
    if late:
        limit = f"{seconds_beyond(snapshot, k)}s"
    elif running.ends_by[k] != NONE:
        limit = _duration(int(running.ends_by[k] - running.started[k]))
    return _job(names, running, k) | {
        "min_size": least if least < running.size[k] else None,
        "submitted": _ago(snapshot, running.submitted[k]),
        "limit": limit,
        "state": "running",
        "started": _ago(snapshot, running.started[k]),
        "on": [names.nodes[n] for n in running.member_node[low:high].tolist()],
        "last_checkpoint": None if saved == NONE else _ago(snapshot, saved),
    }


def _depends_on(snapshot: Snapshot, names: Names) -> dict[int, list[str]]:
    """Return whom jobs wait for, of those in the file, by id."""
    ids = _dependent(snapshot)
    rows = Job.depends_on.through.objects.filter(from_job__in=ids, to_job__in=list(names.jobs))
    found: dict[int, list[str]] = {}
    for job_id, other in rows.order_by("to_job_id").values_list("from_job_id", "to_job_id"):
        found.setdefault(job_id, []).append(names.jobs[other])
    return found


def _dependent(snapshot: Snapshot) -> list[int]:
    ids: list[int] = snapshot.pending.id[snapshot.pending.gate == Reason.DEPENDENCY].tolist()
    return ids


def _stand_in(
    snapshot: Snapshot, names: Names, depends_on: dict[int, list[str]]
) -> tuple[dict[int, list[str]], list[str]]:
    """Let who waits for jobs that are not in the tick wait for one that is, if it can; say so."""
    unmet = [pk for pk in _dependent(snapshot) if pk not in depends_on]
    free = {*names.jobs} - {*_dependent(snapshot)}
    if not unmet:
        return depends_on, []
    told = f"{len(unmet):,} waiting for what is not in the tick: "
    if not free:
        return depends_on, [told + "given as held"]
    other = names.jobs[min(free)]
    return depends_on | {pk: [other] for pk in unmet}, [told + "given as waiting for another job"]


def _jobs(snapshot: Snapshot, names: Names, depends_on: Mapping[int, list[str]]) -> list[str]:
    """Return a table for each job, by id: the order of the file is that of ids."""
    late = overdue(snapshot).tolist()
    rows = [
        (int(pk), _waiting(snapshot, names, k, depends_on))
        for k, pk in enumerate(snapshot.pending.id)
    ]
    rows += [
        (int(pk), _running(snapshot, names, k, late=late[k]))
        for k, pk in enumerate(snapshot.running.id)
        if snapshot.running.size[k]
    ]
    return [table("[[jobs]]", row) for _, row in sorted(rows, key=lambda row: row[0])]


def _events(snapshot: Snapshot, policy: Policy, names: Names) -> list[str]:
    """Return what the tables cannot say: tenants that are paused, and the highest class."""
    pending, tenants = snapshot.pending, snapshot.tenants
    paused = np.unique(pending.tenant[pending.gate == Reason.PAUSED]).tolist()
    found = [
        table("[[events]]", {"at": "0s", "pause": names.tenants[k]})
        for k in paused
        if not tenants.archived[k]
    ]
    classes = [*pending.class_priority.tolist(), *snapshot.running.class_priority.tolist()]
    if policy.max_class > max(classes, default=0) and names.tenants and names.pools:
        job = {
            "name": apart([*names.jobs.values(), "highest"])[-1],
            "tenant": names.tenants[0],
            "pool": names.pools[0],
            "priority": policy.max_class,
        }
        found.append(
            "# It never comes: its class is the highest there is, of which the others are a part.\n"
            + table("[[events]]", {"at": "36500d", "submit": job})
        )
    return found


def _expect(decision: Decision, names: Names) -> list[str]:
    plan, running = decision.plan, decision.seen.snapshot.running
    ids = decision.seen.pending_ids

    def called(indexes: Iterable[int]) -> list[str]:
        return [names.jobs[ids[k]] for k in indexes]

    holds = plan.holds.job[np.diff(plan.holds.offsets) > 0].tolist()
    evicts = [names.jobs[int(running.id[v])] for v in plan.evictions.victim.tolist()]
    lines = [
        "[expect]",
        line("starts", called(plan.starts.job.tolist())),
        line("evicts", evicts),
        line("reserves", called(holds)),
        line("order", called(plan.order.tolist())),
    ]
    waits = {
        names.jobs[ids[k]]: code_of(int(plan.verdicts.reason[k]))
        for k in plan.order.tolist()
        if plan.verdicts.verdict[k] != EngineVerdict.START
    }
    if waits:
        lines.append(table("[expect.waits]", waits))
    return lines


def export(tick: Tick, *, keep_names: bool = False) -> Exported:
    """Return a stored tick as the text of a scenario; names are replaced unless kept.

    :raises NothingStored: if its columns are gone.
    """
    decision = decision_of(tick)
    snapshot, policy = decision.seen.snapshot, decision.seen.policy
    names = _names(snapshot, keep=keep_names)
    depends_on, stands_in = _stand_in(snapshot, names, _depends_on(snapshot, names))
    told = [*left_out(snapshot, policy), *stands_in]
    of = f" of {tick.cluster.name}" if keep_names else ""
    now = from_us(snapshot.now)
    instant = f"{now:%Y-%m-%dT%H:%M:%S.%f}".rstrip("0").rstrip(".") + "Z"
    head = [f"# {DEFAULTS}", *(f"# Other than in the tick: {one}." for one in told)]
    blocks = [
        "\n".join(head),
        line("title", f"A tick{of} at {now:%Y-%m-%d %H:%M:%S} UTC, as it was decided"),
        line("source", f"tick {tick.pk}"),
        f"now = {instant}",
        table("[policy]", _policy(policy)),
        *(table("[[pools]]", {"name": name}) for name in names.pools),
        *_nodes(snapshot, names, ranges=not keep_names),
        *_tenants(snapshot, names),
        *_jobs(snapshot, names, depends_on),
        *_events(snapshot, policy, names),
        *_expect(decision, names),
    ]
    return Exported("\n".join(blocks) + "\n", told)
