"""Read jobs: who may see them, what may be told of them, and whether they could ever fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db.models import Count, QuerySet

from apps.backends.models import Node, Pool
from apps.jobs.models import Job, TopologyChoice
from apps.jobs.specs import JobSpec
from apps.jobs.states import TERMINAL, WAITING
from apps.quotas.models import Quota
from apps.tenants.models import Tenant
from apps.tenants.selectors import Sight, ancestor_paths, role_in, sight_of, top_name

HIDDEN = "a job of another tenant"


def jobs_visible_to(user: Any) -> QuerySet[Job]:
    """Return the jobs a user sees in full: an admin all, others those of their subtrees."""
    return Job.objects.filter(sight_of(user).condition("tenant__"))


def may_hold(user: Any, job: Job) -> bool:
    """Return whether a user may hold and release a job: a lead of its tenant, or an admin.

    Nobody may what was submitted to the cluster itself.
    """
    return not job.foreign_ref and role_in(user, job.tenant) in ("lead", "admin")


def may_cancel(user: Any, job: Job) -> bool:
    """Return whether a user may cancel a job: its submitter, a lead of its tenant, an admin.

    Nobody may what was submitted to the cluster itself.
    """
    if job.foreign_ref:
        return False
    role = role_in(user, job.tenant)
    if role == "member":
        return bool(job.submitted_by_id == user.pk)
    return role is not None


def told_of(sight: Sight, job: Job) -> str:
    """Return what may be told of a job to someone with this sight; ``job.tenant`` is loaded."""
    if settings.OTHER_TENANTS == "named" or sight.covers(job.tenant.path):
        return job.name
    if settings.OTHER_TENANTS == "size":
        return f"a job of {top_name(job.tenant.path)}"
    return HIDDEN


def name_for(user: Any, job: Job) -> str:
    """Return what ``user`` may be told of a job: its name, its top-level tenant, or nothing.

    DOMAIN 22; for a list use ``names_for``.
    """
    return told_of(sight_of(user), job)


def names_for(user: Any, jobs: Iterable[Job]) -> dict[int, str]:
    """Return what ``user`` may be told of each job, by id; one query, tenants loaded."""
    sight = sight_of(user)
    return {job.pk: told_of(sight, job) for job in jobs}


def waiting_in(tenant: Tenant, cluster_id: int) -> int:
    """Return how many jobs of a tenant wait on a cluster; those in its own queue are not ours."""
    return Job.objects.filter(
        tenant=tenant, cluster_id=cluster_id, state__in=sorted(WAITING), foreign_ref=""
    ).count()


def is_over(job: Job) -> bool:
    """Return whether a job has ended."""
    return job.state in TERMINAL


@dataclass(frozen=True, slots=True)
class NeverFits:
    """A gang larger than could ever be given: what it needs and the most there could be, in GPUs.

    ``tenant`` is the path of the one whose ceiling says so; empty: the pool's nodes do.
    """

    needed: int
    most: int
    tenant: str = ""


Shapes = tuple[tuple[str, str, int, int], ...]
"""(rack, NVLink domain, GPUs, how many) of the nodes of a pool."""


def _shapes(pool_id: int) -> Shapes:
    rows = Node.objects.filter(pool_id=pool_id, gone_at__isnull=True).order_by()
    return tuple(rows.values_list("rack", "nvlink", "gpus").annotate(Count("pk")))


@lru_cache(maxsize=256)
def _shapes_at(pool_id: int, look: datetime) -> Shapes:
    """Return the shapes of a pool's nodes as of a look: nodes change with nothing else."""
    return _shapes(pool_id)


def room_for_gang(pool: Pool, gpus_per_member: int, topology: str) -> int:
    """Return the most members of this many GPUs that a pool's nodes could ever take at once.

    Nodes that are down count: they come back. With a topology it is the best domain's.
    ``pool.cluster`` is loaded.
    """
    look = pool.cluster.observed_at
    domains: dict[str, int] = {}
    alone = everywhere = 0
    for rack, nvlink, gpus, count in (
        _shapes(pool.pk) if look is None else _shapes_at(pool.pk, look)
    ):
        members = gpus // gpus_per_member
        domain = rack if topology == TopologyChoice.RACK else nvlink
        everywhere += members * count
        if domain:
            domains[domain] = domains.get(domain, 0) + members * count
        else:
            alone = max(alone, members)  # a node without one is its own
    if topology == TopologyChoice.NONE:
        return everywhere
    return max(alone, *domains.values(), 0)


def _lowest_ceiling(tenant: Tenant, pool: Pool, needed: int) -> tuple[int, str] | None:
    """Return the lowest ceiling below a need, and whose it is, of a tenant and all above it."""
    rows = Quota.objects.filter(
        pool=pool, tenant__path__in=ancestor_paths(tenant.path), ceiling__lt=needed
    ).order_by("ceiling", "-tenant__path")
    found = rows.values_list("ceiling", "tenant__path").first()
    return None if found is None else (found[0] or 0, found[1])


def never_fits(
    *,
    tenant: Tenant,
    pool: Pool,
    size: int,
    gpus_per_member: int,
    topology: str,
    ceiling: int | None = 0,
) -> NeverFits | None:
    """Return why a gang could never start, or None; before the first look nothing is said.

    ``ceiling`` is the lowest of the tenant and all above it, None if they have none; 0 where the
    caller does not know. At most two queries; ``pool.cluster`` is loaded.
    """
    if pool.cluster.first_look_at is None:
        return None
    needed = size * gpus_per_member
    lowest = None
    if ceiling is not None and ceiling < needed:
        lowest = _lowest_ceiling(tenant, pool, needed)
    most = room_for_gang(pool, gpus_per_member, topology)
    if most < size and (lowest is None or most * gpus_per_member <= lowest[0]):
        return NeverFits(needed=needed, most=most * gpus_per_member)
    if lowest is not None:
        return NeverFits(needed=needed, most=lowest[0], tenant=lowest[1])
    return None


def never_fits_of(spec: JobSpec, *, ceiling: int | None = 0) -> NeverFits | None:
    """Return why what is submitted could never start, as ``never_fits`` does."""
    return never_fits(
        tenant=spec.tenant,
        pool=spec.pool,
        size=spec.size,
        gpus_per_member=spec.gpus_per_member,
        topology=spec.topology,
        ceiling=ceiling,
    )
