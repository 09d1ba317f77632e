"""The simulator behind the port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import perf_counter
from typing import Any

from apps.backends.adapters.simulator import workload as workloads
from apps.backends.adapters.simulator.worlds import world_of
from apps.backends.models import Cluster
from apps.backends.port import (
    Capabilities,
    Finding,
    LaunchRequest,
    LaunchResult,
    Observation,
    Sample,
)

CAPABILITIES = Capabilities(
    grade="drive",
    can=frozenset(
        {
            "observe",
            "launch",
            "stop",
            "utilisation",
            "racks",
            "nvlink",
            "ask_to_leave",
            "shrink",
            "stay",
            "demote",
        }
    ),
    cannot={
        "isolation": "Nothing runs on simulated nodes, so nothing needs to be kept apart.",
        "history": "A simulated cluster has no past that Rollcall did not see.",
    },
)


class SimulatorBackend:
    """A simulated cluster, reached as any other; keeps nothing but its cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def capabilities(self) -> Capabilities:
        """Return what a simulated cluster can and cannot do."""
        return CAPABILITIES

    def check_workload(self, workload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the workload with defaults filled in; raise Invalid naming the field."""
        return workloads.check(workload)

    def observe(self, cursor: str, *, now: datetime) -> Observation:
        """Return what is true in the world at ``now``.

        A cursor that this world never gave starts from its beginning.
        """
        began = perf_counter()
        seen = world_of(self._cluster).look(cursor, now)
        return replace(seen, cost_ms=(perf_counter() - began) * 1_000)

    def launch(self, request: LaunchRequest, *, now: datetime) -> LaunchResult:
        """Start all members or none; one that exists already is success."""
        return world_of(self._cluster).launch(request, now)

    def stop(self, uid: str, *, now: datetime) -> None:
        """End an attempt; one that is gone already is success."""
        world_of(self._cluster).stop(uid, now)

    def ask_to_leave(self, uid: str, *, until: datetime, now: datetime) -> None:
        """Tell an attempt to save its work and go, by ``until`` at the latest."""
        world_of(self._cluster).ask(uid, until=until, now=now)

    def shrink(self, uid: str, *, keep: int, until: datetime, now: datetime) -> None:
        """Have all members of an attempt but the first ``keep`` leave, by ``until`` at the latest."""
        world_of(self._cluster).ask(uid, until=until, now=now, keep=keep)

    def stay(self, uid: str, *, now: datetime) -> bool:
        """Take back what an attempt was asked; False: too late, it is gone."""
        return world_of(self._cluster).stay(uid, now)

    def demote(self, uid: str, *, now: datetime) -> None:
        """Let an attempt run on: nothing in a simulated world is above it."""

    def utilisation(self, *, now: datetime) -> Sequence[Sample]:
        """Return the newest sample of each running attempt."""
        return world_of(self._cluster).samples(now)


def open_backend(cluster: Cluster) -> SimulatorBackend:
    """Return the backend of a simulated cluster."""
    return SimulatorBackend(cluster)


def preflight(cluster: Cluster, *, now: datetime) -> Sequence[Finding]:
    """Return that a simulated cluster needs nothing, and what is in its world."""
    nodes = world_of(cluster).look("", now).nodes
    if not nodes:
        said = "Its world has no nodes yet, so no job can start."
        return [Finding("world", "warning", said)]
    gpus = sum(node.gpus for node in nodes)
    said = f"It is simulated here and needs nothing: {len(nodes)} nodes with {gpus} GPUs."
    return [Finding("world", "ok", said)]
