"""A simulated cluster that tests tick by hand, on a clock of their own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, Grade, Pool
from apps.backends.worlds import SimNode, World, world_of
from apps.jobs.models import Job
from apps.scheduling import steps
from apps.scheduling.leases import claim, renew
from apps.scheduling.models import Tick
from apps.scheduling.services import pass_once
from tests.factories import NOW


class Blow(Exception):
    """What a killed process does not survive."""


@dataclass
class Playground:
    """A cluster with a world in memory; ``tick`` moves its clock and passes once."""

    cluster: Cluster
    pool: Pool

    @property
    def world(self) -> World:
        return world_of(self.cluster)

    def tick(self, seconds: float = 0) -> Tick:
        """Tick at so many seconds after NOW."""
        now = self.at(seconds)
        self.cluster.refresh_from_db()
        self.cluster.lease_until = None
        Cluster.objects.filter(pk=self.cluster.pk).update(lease_until=None, not_before=None)
        lease = claim(self.cluster, holder="test")
        assert lease is not None
        renew(lease, clock_now=now)
        self.cluster.clock_now = now
        tick = pass_once(self.cluster, backend_of(self.cluster), lease, now=now)
        assert tick is not None
        return tick

    def tick_cut_off(self, step: str, seconds: float) -> None:
        """Tick as a process that is killed at a step of it."""

        def strike(name: str) -> None:
            if name == step:
                raise Blow

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "reached", strike)
            with pytest.raises(Blow):
                self.tick(seconds)

    @staticmethod
    def at(seconds: float) -> datetime:
        return NOW + timedelta(seconds=seconds)

    @staticmethod
    def state(job: Job) -> str:
        return Job.objects.get(pk=job.pk).state


def make_playground(nodes: int = 2, gpus: int = 4, name: str = "play") -> Playground:
    """Make a cluster of so many nodes in one pool called gpu."""
    cluster = Cluster.objects.create(
        name=name, kind="simulator", clock_now=NOW, created_at=NOW, options={"world": "memory"},
        grade=Grade.DRIVE,
    )  # fmt: skip
    pool = Pool.objects.create(cluster=cluster, name="gpu")
    world_of(cluster).add_nodes([SimNode(f"n{k}", "gpu", gpus) for k in range(nodes)], at=NOW)
    return Playground(cluster, pool)
