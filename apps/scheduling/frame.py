"""What rarely changes about a cluster: its policy, pools, tenants, promises and classes.

Read anew for each tick on wall time; a virtual clock that hurries reads it once a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from apps.backends.models import Cluster, Pool
from apps.backends.port import SeenNode
from apps.common.time import MICROSECOND
from apps.engine import types as engine
from apps.jobs.arrivals import Intake, intake_of
from apps.jobs.models import Job
from apps.queues.models import ClusterPolicy, PriorityClass, Queue
from apps.queues.selectors import policy_of
from apps.quotas.models import Quota
from apps.scheduling.alive import Alive
from apps.tenants.models import Tenant


class StaleFrame(Exception):
    """A job is of a tenant, pool or class that came after the frame was read."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows around a decision, and the engine's columns made of them."""

    policy_row: ClusterPolicy
    policy: engine.Policy
    pools: engine.Pools
    pool_at: dict[int, int]
    tenants: list[Tenant]
    tenant_at: dict[int, int]
    quotas: engine.Quotas
    queue_factors: dict[int, float]
    classes: dict[int, int]
    stays: frozenset[int]  # classes that nobody may evict
    paused: frozenset[int]

    def check(self, tenants: set[int], pools: set[int], classes: set[int]) -> None:
        """Raise StaleFrame unless all of these ids are known."""
        if (
            tenants <= self.tenant_at.keys()
            and pools <= self.pool_at.keys()
            and classes <= self.classes.keys()
        ):
            return
        raise StaleFrame


def duration(seconds: int | None) -> int:
    """Return a duration in the engine's microseconds; None is none."""
    return engine.NONE if seconds is None else seconds * MICROSECOND


def engine_policy(policy: ClusterPolicy, highest_class: int) -> engine.Policy:
    """Return a cluster's policy in the engine's words."""
    return engine.Policy(
        fair_share=policy.fair_share,
        dampening=policy.dampening,
        weights=engine.Weights(
            fair_share=policy.weight_fair_share,
            age=policy.weight_age,
            size=policy.weight_size,
            queue=policy.weight_queue,
            class_=policy.weight_class,
        ),
        max_age=policy.max_age_seconds * MICROSECOND,
        max_class=max(highest_class, 0),
        placement=policy.placement,
        backfill=policy.backfill,
        hold_late=duration(policy.hold_late_seconds),
        gang_timeout=duration(policy.gang_timeout_seconds),
        lend_guarantee=policy.lend_guarantee,
        preemption=policy.preemption,
        mode=policy.mode,
        grace=policy.grace_seconds * MICROSECOND,
        min_runtime=policy.min_runtime_seconds * MICROSECOND,
        max_evictions=policy.max_evictions_per_tick,
        cooldown=policy.cooldown_seconds * MICROSECOND,
        thrash_after=policy.thrash_after,
    )


def _tenants_on(factors: dict[int, float]) -> list[Tenant]:
    """Return the tenants that have a queue on the cluster, with all above them, oldest first."""
    every = {t.pk: t for t in Tenant.objects.order_by("id").defer("path")}
    wanted: set[int] = set()
    for pk in factors:
        at: int | None = pk
        while at is not None and at not in wanted:
            wanted.add(at)
            at = every[at].parent_id
    return [every[pk] for pk in sorted(wanted)]


def _paused(tenants: list[Tenant]) -> frozenset[int]:
    """Return the tenants that are paused or archived, themselves or through one above them."""
    by_id = {t.pk: t for t in tenants}
    known: dict[int, bool] = {}

    def is_paused(tenant: Tenant) -> bool:
        if tenant.pk not in known:
            above = by_id.get(tenant.parent_id) if tenant.parent_id else None
            own = tenant.paused_at is not None or tenant.archived_at is not None
            known[tenant.pk] = own or (above is not None and is_paused(above))
        return known[tenant.pk]

    return frozenset(t.pk for t in tenants if is_paused(t))


def _quotas(tenant_at: dict[int, int], pool_at: dict[int, int]) -> engine.Quotas:
    shape = (len(tenant_at), len(pool_at))
    guarantee = np.zeros(shape, dtype=np.int64)
    ceiling = np.full(shape, engine.NONE, dtype=np.int64)
    weight = np.full(shape, np.nan, dtype=np.float64)
    for row in Quota.objects.filter(pool_id__in=list(pool_at)):
        if row.tenant_id not in tenant_at:
            continue
        cell = tenant_at[row.tenant_id], pool_at[row.pool_id]
        guarantee[cell] = row.guarantee
        if row.ceiling is not None:
            ceiling[cell] = row.ceiling
        if row.weight is not None:
            weight[cell] = row.weight
    return engine.Quotas(guarantee=guarantee, ceiling=ceiling, weight=weight)


@dataclass(frozen=True, slots=True)
class Guest:
    """A job that is only tried: in no table, and decided on beside those that are."""

    job: Job
    unmet: bool  # it depends on a job that has not succeeded


def frame_of(cluster: Cluster, guest: Guest | None = None) -> Frame:
    """Read the frame of a cluster: six queries.

    A guest's tenant has a place, and its class a rank, even where none of theirs ever was here.
    """
    policy = policy_of(cluster)
    pools = list(Pool.objects.filter(cluster=cluster).order_by("id"))
    factors = dict(Queue.objects.filter(cluster=cluster).values_list("tenant_id", "factor"))
    rows = list(PriorityClass.objects.order_by("id").values_list("id", "priority", "preemptible"))
    if guest is not None:
        job, own = guest.job, guest.job.priority_class
        factors.setdefault(job.tenant_id, Queue._meta.get_field("factor").get_default())
        if own.pk is None:
            rows.append((own.pk, own.priority, own.preemptible))
    tenants = _tenants_on(factors)
    classes = {pk: priority for pk, priority, _ in rows}
    pool_at = {pool.pk: k for k, pool in enumerate(pools)}
    tenant_at = {tenant.pk: k for k, tenant in enumerate(tenants)}
    return Frame(
        policy_row=policy,
        policy=engine_policy(policy, max(classes.values(), default=0)),
        pools=engine.Pools(
            id=np.array([p.pk for p in pools], dtype=np.int64), name=tuple(p.name for p in pools)
        ),
        pool_at=pool_at,
        tenants=tenants,
        tenant_at=tenant_at,
        quotas=_quotas(tenant_at, pool_at),
        queue_factors=factors,
        classes=classes,
        stays=frozenset(pk for pk, _, preemptible in rows if not preemptible),
        paused=_paused(tenants),
    )


@dataclass(slots=True)
class Frames:
    """The frame of a cluster as last read, for as long as a batch of ticks may use it."""

    cluster: Cluster
    last: Frame | None = None
    guest: Guest | None = None
    # What arrivals of a replay name.
    named: Intake | None = None
    # The nodes as the last look showed them, and as the engine's columns.
    looked: Sequence[SeenNode] | None = None
    nodes: engine.Nodes | None = None
    # The attempts that hold GPUs, by id, and the node of each of their members.
    alive: dict[int, Alive] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=dict)

    def get(self) -> Frame:
        """Return the frame, read if there is none."""
        if self.last is None:
            self.last = frame_of(self.cluster, self.guest)
        return self.last

    def forget(self) -> None:
        """Have the next tick read all of it anew."""
        self.last = self.looked = self.nodes = self.named = None
        self.alive.clear()
        self.members.clear()

    def intake(self) -> Intake:
        """Return what arrivals may name, read if it was not."""
        if self.named is None:
            self.named = intake_of(self.cluster)
        return self.named

    def show(self, nodes: Sequence[SeenNode]) -> bool:
        """Take in what a look showed of the nodes; return whether it is news."""
        if self.looked == nodes:
            return False
        self.looked, self.nodes, self.last = nodes, None, None
        return True
