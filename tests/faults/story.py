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


def _spec(rng: random.Random, number: int) -> dict[str, Any]:
    size = rng.choice([1, 1, 1, 2, 4, 6])
    limit = rng.choice([240, 600, 1_200])
    return {
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


def set_up(minutes: int) -> None:
    """Make the cluster, its tenants, its price, its failures and its submissions."""
    from apps.backends.models import Cluster, Pool
    from apps.backends.worlds import NodeChange, SimNode, world_of
    from apps.jobs.models import Arrival
    from apps.ledger.prices import set_price
    from apps.queues.models import ClusterPolicy
    from apps.tenants.services import create_tenant

    rng = random.Random(SEED)
    cluster = Cluster.objects.create(
        name="faults", kind="simulator", clock_now=START, clock_until=START, clock_step=STEP
    )
    ClusterPolicy.objects.create(cluster=cluster, gang_timeout_seconds=900)
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
            spec=_spec(rng, number),
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
    from apps.jobs.models import Attempt, Job, Move
    from apps.ledger.models import Interval, UsageAccount

    columns = (
        "kind", "state", "node__name", "job__name", "attempt__number", "rank", "gpus", "start_us",
        "end_us", "usage_factor", "on_drained",
    )  # fmt: skip
    moves = ("job__name", "at", "before", "after", "attempt_number", "what")
    accounts = UsageAccount.objects.order_by("tenant__path").values_list(
        "tenant__path", "gpu_hours"
    )
    return {
        "intervals": sorted(map(repr, Interval.objects.values_list(*columns))),
        "moves": sorted(map(repr, Move.objects.values_list(*moves))),
        "jobs": sorted(map(repr, Job.objects.values_list("name", "state", "attempt_number"))),
        "attempts": Attempt.objects.count(),
        "usage": [(path, round(hours, 9)) for path, hours in accounts],
    }


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.config.settings")
    django.setup()
    if sys.argv[1] == "set-up":
        set_up(int(sys.argv[2]))
    elif sys.argv[1] == "run":
        run(int(sys.argv[2]))
    else:
        json.dump(ledger(), sys.stdout)
