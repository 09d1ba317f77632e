"""What tenants are promised and weigh: shown to whoever sees them, changed by admins with a reason."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import Endpoint, admins_only, caller, token_of, visible_tenant
from apps.api.errors import NotFound, shown
from apps.api.serializers import Number, Strict, Text, WholeNumber
from apps.backends.models import Pool
from apps.backends.selectors import clusters_in_use
from apps.backends.services import request_tick
from apps.common.text import bad_character
from apps.quotas.accounts import want_now
from apps.quotas.models import Quota
from apps.quotas.services import set_quota
from apps.tenants.models import Tenant
from apps.tenants.services import PATH_LENGTH, set_weight


class QuotaAsked(Strict):
    """All of a quota, and why it is changed."""

    guarantee = WholeNumber(help_text="GPUs, or slices, that are promised.")
    ceiling = WholeNumber(allow_null=True, help_text="Never above; null: no limit.")
    weight = Number(allow_null=True, help_text="Its part of the rest; null: the tenant's own.")
    reason = Text(max_length=300)


class QuotaShown(serializers.Serializer[Any]):
    """What a tenant is promised in a pool; without a quota nothing is, and nothing is limited."""

    tenant = serializers.CharField(source="tenant.path")
    cluster = serializers.CharField(source="pool.cluster.name")
    pool = serializers.CharField(source="pool.name")
    guarantee = serializers.IntegerField()
    ceiling = serializers.IntegerField(allow_null=True)
    weight = serializers.FloatField(allow_null=True)


class WeightAsked(Strict):
    """A tenant's weight among its siblings, and why it is changed."""

    weight = Number(help_text="0 or more; 0 runs only when nobody else waits.")
    reason = Text(max_length=300)


class WeightShown(serializers.Serializer[Any]):
    """A tenant's weight among its siblings."""

    tenant = serializers.CharField(source="path")
    weight = serializers.FloatField()


class Quotas(Endpoint):
    """The quota of one tenant in one pool."""

    @extend_schema(
        operation_id="show_quota",
        summary="Show what a tenant is promised in a pool",
        responses=QuotaShown,
    )
    def show(self, request: Request, tenant: str, cluster: str, pool: str) -> Response:
        found = _tenant(caller(request), tenant)
        return Response(QuotaShown(_quota(found, _pool(cluster, pool))).data)

    @extend_schema(
        operation_id="set_quota",
        summary="Change what a tenant is promised in a pool; admins only",
        request=QuotaAsked,
        responses=QuotaShown,
    )
    def change(self, request: Request, tenant: str, cluster: str, pool: str) -> Response:
        user = caller(request)
        found = _tenant(user, tenant)
        admins_only(user, f"change what {found} is promised")
        where, asked = _pool(cluster, pool), self.read(QuotaAsked, request)
        how: dict[str, Any] = {"by": user, "now": timezone.now(), "token_name": token_of(request)}
        quota = set_quota(found, where, **how, **asked)
        want_now(found, now=how["now"])
        request_tick(where.cluster)
        return Response(QuotaShown(quota).data)


class Weights(Endpoint):
    """The weight of one tenant."""

    @extend_schema(
        operation_id="set_weight",
        summary="Change a tenant's weight among its siblings; admins only",
        request=WeightAsked,
        responses=WeightShown,
    )
    def change(self, request: Request, tenant: str) -> Response:
        user = caller(request)
        found = _tenant(user, tenant)
        admins_only(user, f"change what {found} is promised")
        asked = self.read(WeightAsked, request)
        how: dict[str, Any] = {"by": user, "now": timezone.now(), "token_name": token_of(request)}
        set_weight(found, **how, **asked)
        want_now(found, now=how["now"])
        for cluster in clusters_in_use():
            request_tick(cluster)
        return Response(WeightShown(found).data)


def _tenant(user: User, path: str) -> Tenant:
    """Return a tenant the caller sees; what no path can be is not asked of the database."""
    if len(path) > PATH_LENGTH or bad_character(path):
        raise NotFound(f"There is no tenant {shown(path)}.")
    return visible_tenant(user, path)


def _pool(cluster: str, pool: str) -> Pool:
    rows = Pool.objects.filter(cluster__archived_at__isnull=True).select_related("cluster")
    found = None
    if not bad_character(cluster + pool):
        found = rows.filter(cluster__name=cluster, name=pool).first()
    if found is None:
        raise NotFound(f"There is no pool {shown(pool)} on {shown(cluster)}.")
    return found


def _quota(tenant: Tenant, pool: Pool) -> Quota:
    return Quota.objects.filter(tenant=tenant, pool=pool).first() or Quota(tenant=tenant, pool=pool)
