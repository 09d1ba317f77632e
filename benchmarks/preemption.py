"""Thirty days of Philly on 60 nodes × 8 under each preemption rule: who waits, what is lost, how fair.

Needs the trace, as ``benchmarks.philly`` does, and takes hours: it is run by name alone
(``python -m benchmarks.preemption [RULE[:MODE]…]``), and docs/PREEMPTION.md has its table.

The trace tells when each job came, how long it ran, on how many GPUs, and whose it was. Made here:

* *Promises.* A tenant's guarantee is 0.8 of the pool times its part of the GPU-hours that come in the
  30 days; its weight is the same number, at least 1.
* *Classes.* Of ten jobs one is high, three are low and the rest are normal, by a hash of the name.
* *Checkpoints.* One an hour; once it is asked to leave a job takes 30 s for another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.philly import CLUSTER, ROOT, check, environment, trace

RULES = ("none", "priority", "priority:kill", "reclaim", "reclaim:kill")
"""A rule, and its mode: checkpoint unless it says so."""
NODES, GPUS = 60, 480
FIRST = datetime(2017, 10, 21, tzinfo=UTC)
DAYS = timedelta(days=30)
PROMISED = 0.8
CLASSES = {"high": 100, "normal": 0, "low": -100}
OF_TEN = ("high", "low", "low", "low", *["normal"] * 6)
SIZES = ((1, 1), (2, 8), (9, GPUS))
HOUR_US = 3_600_000_000
POLICY = {
    "grace_seconds": 120,
    "min_runtime_seconds": 1_800,
    "cooldown_seconds": 3_600,
    "max_evictions_per_tick": 64,
    "thrash_after": 3,
}


def class_of(name: str) -> str:
    """Return the class of a job."""
    return OF_TEN[zlib.crc32(name.encode()) % len(OF_TEN)]


def _load(path: str, rule: str) -> Any:
    """Put the 30 days into an empty database; return the cluster."""
    from django.core.management import call_command

    from apps.backends.models import Cluster, Pool
    from apps.jobs.models import Arrival
    from apps.jobs.trace_import import import_trace
    from apps.queues.models import ClusterPolicy, PriorityClass

    call_command("migrate", verbosity=0)
    _, cluster = import_trace(CLUSTER, Path(path), now=FIRST, cluster_name=CLUSTER, nodes=NODES)
    assert cluster is not None
    for name, priority in CLASSES.items():
        PriorityClass.objects.update_or_create(name=name, defaults={"priority": priority})
    Arrival.objects.exclude(at__gte=FIRST, at__lt=FIRST + DAYS).delete()
    asked: Counter[int] = Counter()
    arrivals = list(Arrival.objects.all())
    for row in arrivals:
        spec = row.spec
        asked[row.tenant_id] += int(
            spec["size"] * spec["gpus_per_member"] * spec["workload"]["runtime"]
        )
        row.spec = {
            **spec,
            "priority_class": class_of(spec["name"]),
            "workload": {**spec["workload"], "checkpoint_every": 3_600, "checkpoint_takes": 30},
        }
    Arrival.objects.bulk_update(arrivals, ["spec"], batch_size=500)
    _promise(Pool.objects.get(cluster=cluster), asked)
    name, _, mode = rule.partition(":")
    policy = {"preemption": name, "mode": mode or "checkpoint", **POLICY}
    ClusterPolicy.objects.update_or_create(cluster=cluster, defaults=policy)
    Cluster.objects.filter(pk=cluster.pk).update(
        clock_now=FIRST, clock_until=FIRST + 4 * DAYS, clock_step=600
    )
    return Cluster.objects.get(pk=cluster.pk)


def _promise(pool: Any, asked: Counter[int]) -> None:
    from apps.quotas.models import Quota
    from apps.tenants.models import Tenant

    whole = sum(asked.values())
    for tenant_id, seconds in asked.items():
        part = PROMISED * GPUS * seconds / whole
        Quota.objects.create(tenant_id=tenant_id, pool=pool, guarantee=int(part))
        Tenant.objects.filter(pk=tenant_id).update(weight=max(1.0, part))


def jain(held: Any, entitled: Any) -> float | None:
    """Return (Σx)² / (n·Σx²) of what each holds ÷ what it is entitled to; None: nobody is to any.

    Source: Jain, Chiu, Hawe, DEC-TR-301, 1984.
    """
    some = entitled > 0
    x = held[some] / entitled[some]
    return None if not x.any() else float(x.sum() ** 2 / (len(x) * (x**2).sum()))


def _replay(cluster: Any) -> dict[str, Any]:
    """Tick until all have ended; return what was seen on the way."""
    from apps.backends.kinds import backend_of
    from apps.common.upkeep import refresh_statistics
    from apps.jobs.models import Job
    from apps.scheduling.decide import thin_out
    from apps.scheduling.frame import Frames
    from apps.scheduling.leases import claim, release, renew
    from apps.scheduling.services import next_instant, pass_once
    from apps.scheduling.stored import decision_of

    lease = claim(cluster, holder="benchmark")
    assert lease is not None
    backend, frames = backend_of(cluster), Frames(cluster)
    fair: list[float] = []
    began, count = time.perf_counter(), 0
    while cluster.clock_now is not None:
        tick = pass_once(cluster, backend, lease, now=cluster.clock_now, show=False, frames=frames)
        if tick is not None:
            decision = decision_of(tick)
            standings = decision.plan.standings
            leaf = np.asarray(decision.seen.snapshot.tenants.parent) >= 0
            index = jain(standings.used[leaf, 0], standings.entitlement[leaf, 0])
            if index is not None:
                fair.append(index)
        elif cluster.clock_now > FIRST + DAYS and not Job.objects.filter(ended_at=None).exists():
            break
        following = next_instant(cluster)
        renew(lease, clock_now=following)
        if following == cluster.clock_now:
            break
        cluster.clock_now = following
        count += 1
        if count % 200 == 0:
            refresh_statistics()
            thin_out(cluster, now=cluster.clock_now)
            print(f"{cluster.clock_now} {time.perf_counter() - began:.0f} s", file=sys.stderr)
    release(lease, started=time.time(), period=0.0)
    return {
        "minutes": (time.perf_counter() - began) / 60,
        "days": (cluster.now() - FIRST) / timedelta(days=1),
        "jain": float(np.mean(fair)),
    }


def most_within_an_hour(at_us: list[int]) -> int:
    """Return the most instants that fall within any hour."""
    at_us = sorted(at_us)
    return max(
        (k - bisect_right(at_us, at - HOUR_US) + 1 for k, at in enumerate(at_us)),
        default=0,
    )


def _told(cluster: Any) -> dict[str, Any]:
    """Return what the database says in the end."""
    from apps.common.time import to_us
    from apps.jobs.models import Attempt, Eviction, Job
    from apps.jobs.states import LEAVES

    evictions = list(Eviction.objects.values_list("job_id", "at", "mode", "outcome", "lost_gpu_us"))
    whole = [row for row in evictions if row[2] in LEAVES]
    by_job: defaultdict[int, list[int]] = defaultdict(list)
    for job_id, at, *_ in whole:
        by_job[job_id].append(to_us(at))
    first: dict[int, Any] = dict(
        Attempt.objects.filter(number=1).values_list("job_id", "started_at")
    )
    waits: dict[str, list[float]] = {}
    for pk, size, each, at in Job.objects.values_list(
        "pk", "size", "gpus_per_member", "submitted_at"
    ):
        bucket = next(f"{a}-{b}" for a, b in SIZES if a <= size * each <= b)
        waits.setdefault(bucket, []).append((first[pk] - at).total_seconds() / 60)
    return {
        **check(cluster),
        "evictions": len(whole),
        "outcomes": dict(Counter(row[3] for row in evictions)),
        "jobs_evicted": len(by_job),
        "most_of_a_job": max(map(len, by_job.values()), default=0),
        "most_within_an_hour": max(map(most_within_an_hour, by_job.values()), default=0),
        "lost_gpu_hours": sum(row[4] or 0 for row in evictions) / HOUR_US,
        "open_evictions": sum(not row[3] for row in evictions),
        "waits_minutes": {
            size: {"jobs": len(some), **{f"p{q}": float(np.percentile(some, q)) for q in (50, 95)}}
            for size, some in sorted(waits.items())
        },
    }


def measure(path: str, rule: str) -> dict[str, Any]:
    """Replay under one rule, in this process's own database."""
    import django

    django.setup()
    cluster = _load(path, rule)
    return {"rule": rule, **_replay(cluster), **_told(cluster)}


def main(rules: list[str]) -> int:
    """Replay under each rule in a process and a database of its own; print a line of JSON each."""
    for rule in rules or RULES:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-m", "benchmarks.preemption", "--one", rule]
            if subprocess.run(command, cwd=ROOT, env=environment(home), check=False).returncode:
                return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(str(trace()), sys.argv[2])), flush=True)
    else:
        sys.exit(main(sys.argv[1:]))
