"""A small cluster with a hundred submissions, for runs that are compared; run as a command.

``python -m tests.faults.story set-up`` makes it in the present data directory, ``run UNTIL`` ticks
it in this process to a minute, undisturbed, and ``ledger`` prints all that must come out the same.
"""

from __future__ import annotations

import json
import os
import random
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import django

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
STEP = 60
SEED = 7


CLASSES = {"normal": 0, "urgent": 100}


def _spec(rng: random.Random, number: int, mode: str) -> dict[str, Any]:
    size = rng.choice([1, 1, 1, 2, 4, 6])
    limit = rng.choice([240, 600, 1_200])
    spec: dict[str, Any] = {
        "name": f"job-{number}",
        "pool": "gpu",
        "size": size,
        "gpus_per_member": rng.choice([1, 2, 4]) if size < 4 else 2,
        "limit_seconds": limit,
        "retry_limit": rng.choice([0, 0, 1]),
        "workload": {
            "kind": "simulated",
            "runtime": round(limit * rng.uniform(0.3, 1.1), 3),
            "outcome": rng.choice(["succeeded", "succeeded", "failed"]),
            "idle_after": rng.choice([None, 30]),
        },
    }
    return _giving_way(rng, spec) if mode else spec


def _giving_way(rng: random.Random, spec: dict[str, Any]) -> dict[str, Any]:
    """Make half of what comes short and urgent, so that it evicts the rest, some of it elastic."""
    urgent = rng.random() < 0.5
    takes = rng.choice([0, 20, 70, "never"])
    kept = {"checkpoint_every": 600, "checkpoint_takes": takes}
    workload = {**spec["workload"], "runtime": 40 if urgent else 1_800, **kept}
    return {
        **spec,
        "priority_class": "urgent" if urgent else "normal",
        "min_size": rng.choice([spec["size"], max(1, spec["size"] // 2)]),
        "limit_seconds": 60 if urgent else 3_600,
        "workload": workload,
    }


def set_up(minutes: int, mode: str = "") -> None:
    """Make the cluster, its tenants, its price, its failures and its submissions.

    With a ``mode`` the urgent evict by it: half of what comes.
    """
    from apps.backends.models import Cluster, Pool
    from apps.backends.worlds import NodeChange, SimNode, world_of
    from apps.jobs.models import Arrival
    from apps.ledger.prices import set_price
    from apps.queues.models import ClusterPolicy, PriorityClass
    from apps.tenants.services import create_tenant

    rng = random.Random(SEED)
    cluster = Cluster.objects.create(
        name="faults",
        kind="simulator",
        grade="drive",
        clock_now=START,
        clock_until=START,
        clock_step=STEP,
    )
    policy: dict[str, Any] = {"gang_timeout_seconds": 900}
    if mode:
        policy |= {"preemption": "priority", "mode": mode, "grace_seconds": 60}
        for name, priority in CLASSES.items():
            PriorityClass.objects.update_or_create(name=name, defaults={"priority": priority})
    ClusterPolicy.objects.create(cluster=cluster, **policy)
    pool = Pool.objects.create(cluster=cluster, name="gpu", idle_grace_seconds=60)
    set_price(pool, per_gpu_hour=Decimal("2.50"), from_at=START, by=None, now=START, reason="test")
    world = world_of(cluster)
    world.add_nodes([SimNode(f"n{k}", "gpu", 4, rack=f"r{k % 2}") for k in range(6)], at=START)
    world.plan(
        [
            NodeChange(START + timedelta(seconds=610), "n1", "down", "test"),
            NodeChange(START + timedelta(seconds=905), "n1", "up"),
            NodeChange(START + timedelta(seconds=1_205), "n4", "drained", "test"),
            NodeChange(START + timedelta(seconds=1_500), "n4", "up"),
        ]
    )
    tenants = [create_tenant(name, parent=None, now=START) for name in ("a", "b")]
    Arrival.objects.bulk_create(
        Arrival(
            cluster=cluster,
            at=START + timedelta(seconds=rng.randrange(minutes * 60)),
            tenant=rng.choice(tenants),
            spec=_spec(rng, number, mode),
        )
        for number in range(3 * minutes)
    )


def run(minutes: int) -> None:
    """Tick undisturbed to a minute."""
    from apps.backends.models import Cluster
    from apps.scheduling.services import tick

    for minute in range(minutes + 1):
        until = START + timedelta(minutes=minute)
        Cluster.objects.update(clock_until=until)
        while (cluster := Cluster.objects.get()).clock_now != until or minute == 0:
            tick(cluster)
            if minute == 0:
                break
    tick(Cluster.objects.get())


def ledger() -> dict[str, Any]:
    """Return every interval, move and job by name: ids and uids differ from run to run."""
    from apps.jobs.models import Attempt, Eviction, Job, Move
    from apps.ledger.models import Interval, UsageAccount

    columns = (
        "kind", "state", "node__name", "job__name", "attempt__number", "rank", "gpus", "start_us",
        "end_us", "usage_factor", "on_drained",
    )  # fmt: skip
    moves = ("job__name", "at", "before", "after", "attempt_number", "what")
    evictions = (
        "job__name", "attempt__number", "beneficiary__name", "rule", "mode", "outcome", "at",
        "leave_by", "ended_at", "unneeded_at", "members", "gpus", "lost_gpu_us", "lost_micros",
    )  # fmt: skip
    accounts = UsageAccount.objects.order_by("tenant__path").values_list(
        "tenant__path", "gpu_hours"
    )
    return {
        "intervals": sorted(map(repr, Interval.objects.values_list(*columns))),
        "evictions": sorted(map(repr, Eviction.objects.values_list(*evictions))),
        "moves": sorted(map(repr, Move.objects.values_list(*moves))),
        "jobs": sorted(map(repr, Job.objects.values_list("name", "state", "attempt_number"))),
        "attempts": Attempt.objects.count(),
        "usage": [(path, round(hours, 9)) for path, hours in accounts],
    }


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.config.settings")
    django.setup()
    if sys.argv[1] == "set-up":
        set_up(int(sys.argv[2]), *sys.argv[3:])
    elif sys.argv[1] == "run":
        run(int(sys.argv[2]))
    else:
        json.dump(ledger(), sys.stdout)
