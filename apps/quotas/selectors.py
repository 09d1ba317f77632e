"""Read promises, and what they add up to in the tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet, Sum

from apps.backends.models import Node, Pool
from apps.quotas.models import Quota
from apps.tenants.models import Tenant
from apps.tenants.selectors import sight_of


def quotas_visible_to(user: Any) -> QuerySet[Quota]:
    """Return the quotas of the tenants a user sees in full; tenant and pool loaded."""
    return Quota.objects.filter(sight_of(user).condition("tenant__")).select_related(
        "tenant", "pool", "pool__cluster"
    )


def pool_gpus(pool: Pool) -> int:
    """Return all GPUs of a pool, those of nodes that are down or drained included."""
    total = Node.objects.filter(pool=pool, gone_at__isnull=True).aggregate(sum=Sum("gpus"))["sum"]
    return int(total or 0)


@dataclass(frozen=True, slots=True)
class Promises:
    """The live tenants and what each is promised in one pool, by tenant id."""

    tenants: Mapping[int, Tenant]
    guarantee: Mapping[int, int]
    ceiling: Mapping[int, int]

    def children(self, parent: int | None) -> list[int]:
        """Return the ids right below a tenant; None: the top."""
        return [pk for pk, tenant in self.tenants.items() if tenant.parent_id == parent]

    def below(self, parent: int | None) -> int:
        """Return what the tenants right below one are promised together."""
        return sum(self.effective(child) for child in self.children(parent))

    def effective(self, tenant: int) -> int:
        """Return a tenant's own guarantee, or its children's sum where it has none."""
        return self.guarantee.get(tenant, 0) or self.below(tenant)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a tenant is promised in a pool and weighs: its weight, and all of its quota there."""

    guarantee: int
    ceiling: int | None
    quota_weight: float | None
    weight: float


def terms_of(tenant: Tenant, pool: Pool) -> Terms:
    """Return the terms of a tenant in a pool; without a quota nothing is promised or limited."""
    quota = Quota.objects.filter(tenant=tenant, pool=pool).first() or Quota()
    return Terms(quota.guarantee, quota.ceiling, quota.weight, tenant.weight)


def promises_in(pool: Pool) -> Promises:
    """Return the promises made in a pool; two queries."""
    tenants = {tenant.pk: tenant for tenant in Tenant.objects.filter(archived_at__isnull=True)}
    rows = Quota.objects.filter(pool=pool, tenant__archived_at__isnull=True)
    guarantee, ceiling = {}, {}
    for tenant, promised, most in rows.values_list("tenant_id", "guarantee", "ceiling"):
        guarantee[tenant] = promised
        if most is not None:
            ceiling[tenant] = most
    return Promises(tenants=tenants, guarantee=guarantee, ceiling=ceiling)
