"""A small world for the ledger's tests: rows made directly, time in seconds after one instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from apps.backends.models import Cluster, Node, Pool
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job, Member, Reservation
from apps.ledger import intervals
from apps.ledger.models import Price
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.tenants.models import Tenant

START = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = 1_000_000
HOUR = 3_600


@dataclass
class World:
    """One cluster with one pool, and what happens on it."""

    cluster: Cluster
    pool: Pool
    nodes: list[Node] = field(default_factory=list)
    start: datetime = START

    def at(self, seconds: float) -> int:
        """Return the instant so many seconds after the start."""
        return to_us(self.start) + round(seconds * SECOND)

    def when(self, seconds: float) -> datetime:
        """Return the same as a datetime."""
        return self.start + timedelta(seconds=seconds)

    def node(self, gpus: int = 8, *, at: float = 0, pool: Pool | None = None) -> Node:
        """Let a node be seen for the first time."""
        node = Node.objects.create(
            cluster=self.cluster,
            pool=pool or self.pool,
            name=f"n{len(self.nodes):02d}",
            gpus=gpus,
            state_since=self.when(at),
        )
        self.nodes.append(node)
        intervals.node_seen([node], at_us=self.at(at))
        return node

    def turn(self, node: Node, state: str, *, at: float) -> None:
        """Drain a node, lose it or bring it back."""
        node.state = state
        node.save()
        intervals.node_seen([node], at_us=self.at(at))

    def price(self, dollars: float, *, at: float | None = None, pool: Pool | None = None) -> Price:
        """Put a price into the table, from always or from an instant on."""
        return Price.objects.create(
            pool=pool or self.pool,
            from_us=0 if at is None else self.at(at),
            micros_per_gpu_hour=round(dollars * 1_000_000),
        )

    def tenant(self, name: str, parent: Tenant | None = None) -> Tenant:
        """Return a tenant, made on demand."""
        path = f"{parent.path}/{name}" if parent else name
        return Tenant.objects.get_or_create(
            path=path, defaults={"name": name, "parent": parent, "created_at": self.start}
        )[0]

    def job(
        self,
        tenant: str = "vision",
        *,
        size: int = 1,
        gpus: int = 1,
        name: str = "job",
        factor: float = 1.0,
        pool: Pool | None = None,
    ) -> Job:
        """Submit a job, without its story."""
        kind = PriorityClass.objects.get_or_create(
            name=f"factor {factor}", defaults={"usage_factor": factor}
        )[0]
        return Job.objects.create(
            name=name,
            tenant=self.tenant(tenant),
            cluster=self.cluster,
            pool=pool or self.pool,
            priority_class=kind,
            size=size,
            gpus_per_member=gpus,
            submitted_at=self.start,
            state_since=self.start,
        )

    def run(
        self,
        job: Job,
        nodes: Sequence[Node],
        *,
        at: float,
        until: float | None = None,
        first_look: float = 0,
    ) -> Attempt:
        """Let a job start on these nodes, one member each, and maybe end."""
        attempt = Attempt.objects.create(
            job=job,
            number=job.attempts.count() + 1,
            created_at=self.when(at),
            started_at=self.when(at),
        )
        Member.objects.bulk_create(
            Member(attempt=attempt, rank=rank, node=node) for rank, node in enumerate(nodes)
        )
        loaded = Attempt.objects.select_related("job").prefetch_related("members")
        intervals.open_members([loaded.get(pk=attempt.pk)], first_look_us=self.at(first_look))
        if until is not None:
            self.end(attempt, at=until)
        return attempt

    def end(self, attempt: Attempt, *, at: float) -> None:
        """Let the cluster report an attempt's exact end."""
        intervals.close_members({attempt.pk: self.at(at)})

    def reserve(self, job: Job, *, at: float) -> Reservation:
        """Begin to reserve for a job."""
        return Reservation.objects.create(job=job, attempt_number=1, since=self.when(at))

    def hold(self, reservation: Reservation, rank: int, node: Node, *, at: float) -> None:
        """Hold one member's GPUs."""
        intervals.open_holds(reservation, [(rank, node)], at_us=self.at(at))

    def close(self, reservation: Reservation, *, at: float, outcome: str) -> None:
        """End a reservation."""
        intervals.close_holds(reservation, at_us=self.at(at))
        reservation.ended_at = self.when(at)
        reservation.outcome = outcome
        reservation.save()

    def policy(self, *, half_life: int | None, window: int | None = None) -> None:
        """Set how usage fades, in seconds."""
        ClusterPolicy.objects.update_or_create(
            cluster=self.cluster,
            defaults={"half_life_seconds": half_life, "window_seconds": window},
        )


def make_world(name: str = "atlas", *, start: datetime = START, fraction: str = "1/1") -> World:
    """Return a cluster that was looked at for the first time at the start."""
    numerator, denominator = map(int, fraction.split("/"))
    cluster = Cluster.objects.create(
        name=name, kind="simulator", grade="drive", first_look_at=start, clock_now=start
    )
    pool = Pool.objects.create(
        cluster=cluster,
        name="h100",
        fraction_numerator=numerator,
        fraction_denominator=denominator,
    )
    return World(cluster, pool, start=start)
