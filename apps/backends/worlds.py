"""The hands on a simulated cluster's world: what a demo, a test or a scenario makes happen there.

Rollcall itself learns of a world only through the port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Protocol, cast

from apps.backends.kinds import KINDS
from apps.backends.models import Cluster
from apps.backends.port import LaunchRequest
from apps.common.errors import Invalid


@dataclass(frozen=True, slots=True)
class SimNode:
    """A node to be put into a world; one with GPUs of two pools is two of these."""

    name: str
    pool: str
    gpus: int
    rack: str = ""
    nvlink: str = ""
    state: str = "up"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A failure, drain or repair that the world will bring; the same ``key`` is planned once."""

    at: datetime
    node: str
    state: str
    reason: str = ""
    key: str | None = None


class World(Protocol):
    """What may be done to a simulated cluster from outside; each call is atomic."""

    def add_nodes(self, nodes: Sequence[SimNode], *, at: datetime) -> None:
        """Put nodes in; one that is there already stays as it is."""

    def set_node_state(self, name: str, state: str, *, at: datetime, reason: str = "") -> None:
        """Bring a node up, drain it (what runs goes on), or down: what runs there is lost."""

    def plan(self, changes: Sequence[NodeChange]) -> None:
        """Make the world change nodes by itself, each at its instant."""

    def adopt(
        self,
        request: LaunchRequest,
        *,
        started_at: datetime,
        last_checkpoint: datetime | None = None,
    ) -> None:
        """Let an attempt run that started earlier, on nodes whatever their state and room."""

    def finish(self, uid: str, outcome: str, *, at: datetime, detail: str = "") -> bool:
        """End a running attempt at an instant as succeeded, failed, cancelled, …; False: gone."""

    def checkpoint(self, uid: str, *, at: datetime) -> bool:
        """Confirm a checkpoint of a running attempt, at an instant since its start; False: gone."""


def _module_of(cluster: Cluster) -> object:
    module = KINDS[cluster.kind].world
    if not module:
        raise Invalid(f"{cluster} is no simulated cluster.", field="cluster")
    return import_module(module)


def world_of(cluster: Cluster) -> World:
    """Return a simulated cluster's world, made on demand.

    :raises Invalid: if the cluster is a real one.
    """
    return cast("World", _module_of(cluster).world_of(cluster))  # type: ignore[attr-defined]  # by kind


def forget_world(cluster: Cluster) -> None:
    """Erase a simulated cluster's world; the next call finds a new, empty one.

    :raises Invalid: if the cluster is a real one.
    """
    _module_of(cluster).forget_world(cluster)  # type: ignore[attr-defined]  # reached by kind
