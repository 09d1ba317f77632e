"""Usage: where each tenant stands, and what its GPU time was and cost."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import Endpoint, caller, only_subtree
from apps.api.serializers import Query
from apps.scheduling.models import Standing
from apps.tenants.selectors import sight_of


class UsageFilter(Query):
    """What usage to report; none: all the caller sees, the last 24 hours."""

    cluster = serializers.CharField(required=False, max_length=60)
    tenant = serializers.CharField(required=False, max_length=400, help_text="And all below it.")


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


class UsageShown(serializers.Serializer[Any]):
    """Standings now."""

    standings = StandingShown(many=True)


def standings_of(user: User) -> QuerySet[Standing]:
    """Return the standings of the tenants a user sees; names loaded."""
    return (
        Standing.objects.filter(sight_of(user).condition("tenant__"), tenant__archived_at=None)
        .select_related("cluster", "tenant")
        .order_by("cluster__name", "tenant__path")
    )


class UsageReport(Endpoint):
    """What the tenants the caller sees have used."""

    queries: ClassVar = {"show": UsageFilter}

    @extend_schema(
        operation_id="show_usage",
        summary="Show where tenants stand and what they used",
        parameters=[UsageFilter],
        responses=UsageShown,
    )
    def show(self, request: Request) -> Response:
        user = caller(request)
        rows = only_subtree(standings_of(user), user, self.asked)
        return Response(UsageShown({"standings": rows}).data)
