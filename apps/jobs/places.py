"""What a submission names, read at once: a query for each would cost more than all the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from apps.backends.models import Cluster, Pool
from apps.common.statements import Joined, placeholders
from apps.queues.models import PriorityClass, Queue
from apps.queues.selectors import DEFAULT_CLASS
from apps.tenants.models import Tenant
from apps.tenants.selectors import COVERED, ancestor_paths, covered_values

NAMED = """
    SELECT {{tenant}}, {{cluster}}, {{pool}}, {{queue}}, {{class}}, (
        SELECT min(quota.ceiling) FROM quotas_quota quota
        JOIN tenants_tenant above ON above.id = quota.tenant_id
        WHERE quota.pool_id = pool.id AND above.path IN ({paths})
    )
    FROM tenants_tenant tenant
    JOIN backends_cluster cluster ON cluster.name = %s AND cluster.archived_at IS NULL
    JOIN backends_pool pool ON pool.cluster_id = cluster.id AND pool.name = %s
    LEFT JOIN queues_queue queue ON queue.tenant_id = tenant.id AND queue.cluster_id = cluster.id
    LEFT JOIN queues_priorityclass class ON class.name = %s
    WHERE tenant.path = %s AND {covered}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job is to wait and run; ``pool.cluster`` is loaded.

    ``queue`` and ``priority_class`` None: there is none yet, or none of that name.
    ``ceiling`` is the lowest of the tenant and all above it, in GPUs; None: they have none.
    """

    tenant: Tenant
    pool: Pool
    queue: Queue | None
    priority_class: PriorityClass | None
    ceiling: int | None


@cache
def _named(depth: int) -> Joined:
    """Return the statement for tenants this deep in the tree."""
    paths = placeholders(depth)
    return Joined(
        NAMED.format(paths=paths, covered=COVERED.format(paths=paths)),
        tenant=Tenant,
        cluster=Cluster,
        pool=Pool,
        queue=Queue,
        **{"class": PriorityClass},
    )


def find_place(
    user: Any, *, tenant: str, cluster: str, pool: str, priority_class: str | None
) -> Place | None:
    """Return what a user's submission names; None: there is no such tenant it sees, or no such pool.

    ``priority_class`` None: the default one. One query.
    """
    paths = ancestor_paths(tenant)
    row = _named(len(paths)).first(
        *paths,
        cluster,
        pool,
        DEFAULT_CLASS if priority_class is None else priority_class,
        tenant,
        *covered_values(user, tenant),
    )
    if row is None:
        return None
    found_tenant, found_cluster, found_pool, queue, named, ceiling = row
    found_pool.cluster = found_cluster
    return Place(found_tenant, found_pool, queue, named, ceiling)
