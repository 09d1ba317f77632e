"""Ticks, verdicts and standings in the operators' admin: read, never written."""

from __future__ import annotations

from django.contrib import admin

from apps.common.readonly import ReadOnlyAdmin
from apps.scheduling.models import (
    Advice,
    Forecast,
    HistoryImport,
    HistoryReading,
    Nice,
    Standing,
    Tick,
    Verdict,
)


@admin.register(Tick)
class TickAdmin(ReadOnlyAdmin[Tick]):
    """Ticks; ``manage.py replay_tick`` runs one again."""

    list_display = ("id", "cluster", "at", "pending", "running", "starts", "moves", "decide_ms")
    list_filter = ("cluster",)
    list_select_related = ("cluster",)
    exclude = ("snapshot", "plan")


@admin.register(Verdict)
class VerdictAdmin(ReadOnlyAdmin[Verdict]):
    """What the newest tick said of each waiting job."""

    list_display = ("position", "job", "code", "needed", "available", "priority", "tick_id")
    list_filter = ("cluster", "code", "reserves")
    search_fields = ("=job__id", "job__name")
    list_select_related = ("job",)
    ordering = ("cluster", "position")


@admin.register(Standing)
class StandingAdmin(ReadOnlyAdmin[Standing]):
    """Where each tenant stood at the newest tick."""

    list_display = ("tenant", "cluster", "share", "usage_share", "level", "rank", "usage")
    list_filter = ("cluster", "level_state")
    search_fields = ("tenant__path",)
    list_select_related = ("tenant", "cluster")


@admin.register(Forecast)
class ForecastAdmin(ReadOnlyAdmin[Forecast]):
    """When each waiting job likely starts."""

    list_display = ("job", "cluster", "starts_us", "tick_id")
    list_filter = ("cluster",)
    search_fields = ("=job__id", "job__name")
    list_select_related = ("job", "cluster")


@admin.register(Advice)
class AdviceAdmin(ReadOnlyAdmin[Advice]):
    """When each cluster was last given our order of its own line."""

    list_display = ("cluster", "given_at", "trouble", "again_at")
    list_select_related = ("cluster",)


@admin.register(Nice)
class NiceAdmin(ReadOnlyAdmin[Nice]):
    """The nice that jobs of a cluster's own line had, and were given."""

    list_display = ("job", "cluster", "original", "asked", "asked_at", "state")
    list_filter = ("cluster", "state")
    search_fields = ("=job__id",)
    list_select_related = ("job", "cluster")


@admin.register(HistoryImport)
class HistoryImportAdmin(ReadOnlyAdmin[HistoryImport]):
    """Imports of clusters' histories; ``manage.py import_history`` begins one, and goes on."""

    list_display = ("cluster", "since", "until", "done_until", "state", "runs", "known", "problem")
    list_filter = ("cluster", "state")
    list_select_related = ("cluster",)


@admin.register(HistoryReading)
class HistoryReadingAdmin(ReadOnlyAdmin[HistoryReading]):
    """How far each cluster's accounting was read since its first look."""

    list_display = ("cluster", "read_until", "runs", "mended", "problem")
    list_select_related = ("cluster",)
