"""Usage: where each tenant stands, and where the GPU time of a range went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import Endpoint, caller, visible_tenant
from apps.api.serializers import Instant, Query
from apps.backends.models import Cluster, Pool
from apps.backends.selectors import clusters_in_use
from apps.common.errors import Invalid
from apps.common.time import from_us, to_us
from apps.ledger.reports import Report, Row, Shown
from apps.ledger.selectors import five_parts
from apps.scheduling.models import Standing
from apps.tenants.models import Role, Tenant
from apps.tenants.selectors import in_subtree, sight_of

DAY = timedelta(days=1)
LONGEST = timedelta(days=366)


class UsageFilter(Query):
    """What usage to report; none: all the caller sees, the last 24 hours of every cluster."""

    cluster = serializers.CharField(required=False, max_length=60)
    pool = serializers.CharField(required=False, max_length=60, help_text="Needs a cluster.")
    tenant = serializers.CharField(required=False, max_length=400, help_text="And all below it.")
    since = Instant(required=False, help_text="[24 hours before until]")
    until = Instant(required=False, help_text="[the cluster's now]; the range is half-open.")


class StandingShown(serializers.Serializer[Any]):
    """Where a tenant stands on a cluster, as the newest tick saw it; shares are among siblings."""

    cluster = serializers.CharField(source="cluster.name")
    tenant = serializers.CharField(source="tenant.path")
    tick = serializers.IntegerField(source="tick_id")
    usage = serializers.FloatField(help_text="Decayed, weighted GPU-hours, with all below it.")
    share = serializers.FloatField()
    usage_share = serializers.FloatField()
    level = serializers.FloatField(allow_null=True, help_text="share / usage_share.")
    level_state = serializers.CharField(help_text="Why there is no level: no_usage, zero_weight.")
    factor = serializers.FloatField(allow_null=True)
    rank = serializers.IntegerField(allow_null=True, help_text="1 is first.")
    pools = serializers.DictField(help_text="pool: guarantee, ceiling, used, entitlement, …")


class AmountShown(serializers.Serializer[Any]):
    """As every page shows it: rounded once, at the total; parts add up to it."""

    gpu_hours = serializers.CharField()
    money = serializers.CharField(allow_null=True, help_text="null: no price, or not for you.")


class PartsShown(serializers.Serializer[Any]):
    """The five parts; busy holds unknown, unallocated is free and stranded."""

    busy = AmountShown()
    unknown = AmountShown()
    held_idle = AmountShown()
    gang_wait = AmountShown()
    unallocated = AmountShown()
    free = AmountShown()
    stranded = AmountShown()
    unavailable = AmountShown()


class TenantPartsShown(serializers.Serializer[Any]):
    """What one tenant's own jobs held."""

    tenant = serializers.CharField(allow_null=True, help_text="null: all tenants not named here.")
    busy = AmountShown()
    unknown = AmountShown()
    held_idle = AmountShown()
    gang_wait = AmountShown()
    total = AmountShown()


class LedgerShown(serializers.Serializer[Any]):
    """Where the GPU time of what was observed of the range went."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    currency = serializers.CharField()
    capacity = AmountShown(help_text="The five parts add up to it.")
    parts = PartsShown()
    tenants = TenantPartsShown(many=True)


class UsageShown(serializers.Serializer[Any]):
    """Standings now, and the ledger of a range."""

    standings = StandingShown(many=True)
    ledger = LedgerShown()


def standings_of(user: User, tenant: Tenant | None, clusters: list[Cluster]) -> QuerySet[Standing]:
    """Return the standings of the tenants a user sees; names loaded."""
    rows = Standing.objects.filter(
        sight_of(user).condition("tenant__"), cluster__in=clusters, tenant__archived_at=None
    )
    if tenant is not None:
        rows = rows.filter(in_subtree(tenant.path, "tenant__"))
    return rows.select_related("cluster", "tenant").order_by("cluster__name", "tenant__path")


def sees_money(user: User) -> bool:
    """Return whether a user is told what things cost: admins, leads, others by the settings."""
    sight = sight_of(user)
    leads = sight.admin or Role.LEAD in sight.roles.values()
    return leads or bool(settings.MEMBERS_SEE_MONEY and sight.roles)


def range_of(asked: Mapping[str, Any], clusters: Iterable[Cluster]) -> tuple[int, int]:
    """Return the range asked for, in microseconds.

    :raises Invalid: if it is empty, or longer than a year.
    """
    now = max((cluster.now() for cluster in clusters), default=None)
    until: datetime | None = asked.get("until") or now
    if until is None:
        return 0, 0
    since: datetime = asked.get("since") or until - DAY
    if since >= until:
        raise Invalid("since must be before until.", field="since")
    if until - since > LONGEST:
        raise Invalid("A report spans at most 366 days.", field="since")
    return to_us(since), to_us(until)


def amount(shown: Shown, money: bool) -> dict[str, Any]:
    """Return a shown figure as text, as every page writes it but for the thousands' commas."""
    told = str(shown.money) if money and shown.money is not None else None
    return {"gpu_hours": str(shown.gpu_hours), "money": told}


def ledger_of(report: Report, names: Mapping[int, str], *, money: bool) -> dict[str, Any]:
    """Return a report as the API tells it."""
    parts = {name: part.shown for name, part in {**report.parts, **report.five}.items()}
    return {
        "since": from_us(report.since_us),
        "until": from_us(report.until_us),
        "currency": settings.CURRENCY,
        "capacity": amount(report.total, money),
        "parts": {name: amount(shown, money) for name, shown in parts.items()},
        "tenants": [tenant_row(row, names, money=money) for row in report.by_tenant],
    }


def tenant_row(row: Row[int | None], names: Mapping[int, str], *, money: bool) -> dict[str, Any]:
    """Return what one tenant held; ``busy`` holds ``unknown``, as in the parts."""
    told: dict[str, Any] = {"tenant": None if row.key is None else names[row.key]}
    cells = {**row.cells, "busy": row.part("busy"), "total": row.total}
    for name in ("busy", "unknown", "held_idle", "gang_wait", "total"):
        told[name] = amount(cells[name], money)
    return told


class UsageReport(Endpoint):
    """What the tenants the caller sees have used."""

    queries: ClassVar = {"show": UsageFilter}

    @extend_schema(
        operation_id="show_usage",
        summary="Show where tenants stand, and where the GPU time of a range went",
        parameters=[UsageFilter],
        responses=UsageShown,
    )
    def show(self, request: Request) -> Response:
        user = caller(request)
        clusters, pool = self._scope()
        tenant = visible_tenant(user, self.asked["tenant"]) if "tenant" in self.asked else None
        rows = Tenant.objects.filter(sight_of(user).condition())
        if tenant is not None:
            rows = rows.filter(in_subtree(tenant.path))
        named = list(rows)
        since, until = range_of(self.asked, clusters)
        report = five_parts(clusters, since, until, pool=pool, tenants=named)
        names = {one.pk: one.path for one in named}
        answer = {
            "standings": standings_of(user, tenant, clusters),
            "ledger": ledger_of(report, names, money=sees_money(user)),
        }
        return Response(UsageShown(answer).data)

    def _scope(self) -> tuple[list[Cluster], Pool | None]:
        clusters = list(clusters_in_use())
        if "cluster" in self.asked:
            clusters = [one for one in clusters if one.name == self.asked["cluster"]]
            if not clusters:
                raise Invalid("There is no such cluster.", field="cluster")
        if "pool" not in self.asked:
            return clusters, None
        if "cluster" not in self.asked:
            raise Invalid("Several clusters may have that pool: name one.", field="cluster")
        pool = Pool.objects.filter(cluster=clusters[0], name=self.asked["pool"]).first()
        if pool is None:
            raise Invalid(f"{clusters[0]} has no such pool.", field="pool")
        return clusters, pool
