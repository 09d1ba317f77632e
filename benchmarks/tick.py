"""A whole tick on PostgreSQL: observe, decide, write, with 10,000 gangs waiting for 1,000 nodes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NODES, PENDING, TENANTS, TICKS = 1_000, 10_000, 100, 5
LIMIT_SECONDS = 3.0
NOW = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


def _set_up() -> Any:
    """Make a full cluster and a long line: everything that fits runs, 10,000 gangs wait."""
    from apps.backends.models import Cluster, Pool
    from apps.backends.worlds import SimNode, world_of
    from apps.jobs.services import JobSpec, submit_many
    from apps.tenants.services import create_tenant

    rng = random.Random(1)
    cluster = Cluster.objects.create(
        name="bench",
        kind="simulator",
        grade="drive",
        clock_now=NOW,
        clock_until=NOW,
        options={"world": "memory"},
    )
    pool = Pool.objects.create(cluster=cluster, name="gpu")
    world_of(cluster).add_nodes(
        [SimNode(f"n{k:04}", "gpu", 8, rack=f"r{k // 32}") for k in range(NODES)], at=NOW
    )
    tops = [create_tenant(f"top-{k}", parent=None, now=NOW) for k in range(10)]
    tenants = [
        create_tenant(f"team-{k}", parent=tops[k % 10], now=NOW, weight=float(1 + k % 7))
        for k in range(TENANTS)
    ]

    def specs(count: int, what: str) -> list[JobSpec]:
        return [
            JobSpec(
                tenant=rng.choice(tenants),
                cluster=cluster,
                pool=pool,
                name=f"{what}-{k}",
                size=rng.choice([1, 1, 1, 1, 2, 4, 8, 16]),
                gpus_per_member=rng.choice([1, 2, 4, 8]),
                limit_seconds=rng.choice([3_600, 14_400, 86_400]),
                workload={"kind": "simulated", "runtime": 80_000},
            )
            for k in range(count)
        ]

    submit_many(specs(2_000, "first"), at=[NOW - timedelta(hours=2)] * 2_000)
    return cluster, lambda: submit_many(specs(PENDING, "late"), at=[NOW] * PENDING)


def _measure() -> dict[str, float]:
    import django

    django.setup()
    from django.core.management import call_command

    from apps.backends.kinds import backend_of
    from apps.jobs.models import Job
    from apps.scheduling.leases import claim, renew
    from apps.scheduling.services import pass_once

    call_command("migrate", verbosity=0)
    cluster, fill = _set_up()
    backend, lease = backend_of(cluster), claim(cluster)
    if lease is None:
        raise RuntimeError("nobody else ticks this cluster")
    pass_once(cluster, backend, lease, now=NOW)
    fill()
    times, parts = [], []
    for k in range(1, TICKS + 1):
        renew(lease)
        began = time.perf_counter()
        tick = pass_once(cluster, backend, lease, now=NOW + timedelta(seconds=2 * k))
        assert tick is not None
        times.append(time.perf_counter() - began)
        parts.append((tick.observe_ms / 1e3, tick.decide_ms / 1e3))
    middle = sorted(range(TICKS), key=times.__getitem__)[TICKS // 2]
    return {
        "tick": times[middle],
        "first": times[0],
        "observe": parts[middle][0],
        "decide": parts[middle][1],
        "pending": Job.objects.filter(state__in=("PENDING", "RESERVING")).count(),
    }


def run() -> list[dict[str, Any]]:
    """Return the figures, measured in a process of its own beside a private PostgreSQL."""
    from tests.services import private_postgres

    with private_postgres() as server, tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.tick"],
            cwd=ROOT,
            env={
                **os.environ,
                "DATABASE_URL": server.create("bench"),
                "ROLLCALL_DATA": home,
                "DJANGO_SETTINGS_MODULE": "apps.config.settings",
                "LEASE_SECONDS": "600",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found = json.loads(done.stdout.splitlines()[-1])
    line = f"{found['pending']:,.0f} pending, {NODES:,} nodes × 8, PostgreSQL"
    rows = [
        {
            "name": f"tick: whole, {line}, median of {TICKS}",
            "value": round(found["tick"], 3),
            "unit": "s",
            "limit": LIMIT_SECONDS,
            "ok": found["tick"] <= LIMIT_SECONDS,
        }
    ]
    for part in ("observe", "decide", "first"):
        rows.append(
            {
                "name": f"tick: {part}",
                "value": round(found[part], 3),
                "unit": "s",
                "limit": None,
                "ok": True,
            }
        )
    return rows


if __name__ == "__main__":
    print(json.dumps(_measure()))
