"""Philly's 82,247 jobs through engine, tick, simulator and ledger, without the web.

Needs the trace: ``TRACE=path``, or ``../shared/traces/philly/philly.csv.gz`` beside the project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ROOT.parent / "shared" / "traces" / "philly" / "philly.csv.gz"
LIMIT_MINUTES = 15.0
CLUSTER = "philly"


def trace() -> Path:
    """Return where the trace should be."""
    return Path(os.environ.get("TRACE") or BESIDE)


def environment(home: str) -> dict[str, str]:
    """Return what a process needs that keeps its database in ``home``."""
    return {
        **os.environ,
        "ROLLCALL_DATA": home,
        "ROLLCALL_MODE": "demo",
        "DJANGO_SETTINGS_MODULE": "apps.config.settings",
    }


def check(cluster: Any) -> dict[str, int]:
    """Return what must hold at the end: each job ended once, each GPU's time stands once."""
    from django.db.models import Count

    from apps.jobs.models import Job, Move
    from apps.jobs.states import TERMINAL
    from apps.ledger.models import Interval
    from apps.ledger.usage import rebuild_usage

    ended = Move.objects.filter(after__in=sorted(TERMINAL)).values("job").annotate(n=Count("id"))
    drift = max((abs(row.gpu_hours) for row in rebuild_usage(cluster)), default=0.0)
    return {
        "jobs": Job.objects.count(),
        "ended": Job.objects.filter(state__in=sorted(TERMINAL)).count(),
        "ended_once": ended.filter(n=1).count(),
        "open_intervals": Interval.objects.filter(end_us__isnull=True).exclude(kind="node").count(),
        "drift_micro_gpu_hours": round(drift * 1e6),
        "ticks": cluster.ticks.count(),
    }


def _measure(path: str, most: float) -> dict[str, Any]:
    import django

    django.setup()
    from django.core.management import call_command

    from apps.backends.models import Cluster
    from apps.scheduling.services import tick

    call_command("migrate", verbosity=0)
    call_command("load_demo", trace=Path(path), force=True, verbosity=0, stdout=sys.stderr)
    cluster = Cluster.objects.get(name=CLUSTER)
    began = time.perf_counter()
    while cluster.clock_now != cluster.clock_until and time.perf_counter() - began < most:
        tick(cluster)
        cluster.refresh_from_db()
    tick(cluster)
    return {"minutes": (time.perf_counter() - began) / 60, **check(cluster)}


def run() -> list[dict[str, Any]]:
    """Return the figures, measured in a process of its own on a SQLite of its own."""
    path = trace()
    if not path.exists():
        print(f"philly: skipped, there is no trace at {path} (TRACE=path)")
        return []
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.philly", str(path), "3600"],
            cwd=ROOT,
            env=environment(home),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError("the replay failed")
    found = json.loads(done.stdout.splitlines()[-1])
    minutes, jobs = found["minutes"], found["jobs"]
    return [
        {
            "name": f"philly: {jobs:,} jobs on 100 nodes × 8, {found['ticks']:,} ticks kept",
            "value": round(minutes, 2),
            "unit": "min",
            "limit": LIMIT_MINUTES,
            "ok": minutes <= LIMIT_MINUTES,
        },
        {
            "name": "philly: jobs that did not end exactly once",
            "value": jobs - found["ended_once"],
            "unit": "jobs",
            "limit": 0,
            "ok": jobs == found["ended_once"] == found["ended"],
        },
        {
            "name": "philly: usage rebuilt from intervals differs from usage kept",
            "value": found["drift_micro_gpu_hours"],
            "unit": "µGPUh",
            "limit": 0,
            "ok": found["drift_micro_gpu_hours"] == 0,
        },
    ]


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], float(sys.argv[2]))))
