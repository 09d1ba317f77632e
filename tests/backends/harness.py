"""One small cluster of each kind, so that the contract is tested against all of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from apps.backends.models import Cluster
from apps.backends.worlds import SimNode, world_of

T0 = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ("n1", "n2", "n3")
GPUS = 4
POOL = "h100"


def simulated(number: int = 1, *, in_memory: bool = False) -> Cluster:
    """Return a simulated cluster, not stored, with three nodes of four GPUs in its world."""
    cluster = Cluster(
        pk=number,
        name=f"sim-{number}",
        kind="simulator",
        options={"world": "memory"} if in_memory else {},
        created_at=T0,
    )
    world_of(cluster).add_nodes(
        [
            SimNode("n1", POOL, GPUS, rack="r1", nvlink="d1"),
            SimNode("n2", POOL, GPUS, rack="r1"),
            SimNode("n3", POOL, GPUS, rack="r2"),
        ],
        at=T0,
    )
    return cluster


HARNESSES: dict[str, Callable[[], Cluster]] = {"simulator": simulated}
"""Kind: what makes a cluster with NODES of GPUS each in POOL, up and idle."""

REAL: dict[str, str] = {"slurm": "tests/slurm/test_contract.py"}
"""Kind: where it is asked the same, on servers and a clock of its own."""
