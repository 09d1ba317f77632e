"""The audit in the operators' admin: read, never written."""

from __future__ import annotations

from django.contrib import admin

from apps.audit.models import Entry
from apps.common.readonly import ReadOnlyAdmin


@admin.register(Entry)
class EntryAdmin(ReadOnlyAdmin[Entry]):
    """Who changed what, when and why."""

    list_display = ("at", "actor", "verb", "object_kind", "object_name", "reason")
    list_filter = ("verb", "object_kind")
    search_fields = ("object_name", "reason", "actor__username")
    date_hierarchy = "at"
    list_select_related = ("actor",)
