"""Clusters in the operators' admin."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends import secrets
from apps.backends.models import Cluster, LineLook, Node, Pool, UserToken
from apps.backends.services import request_tick
from apps.common.readonly import ReadOnly, ReadOnlyAdmin

SEEN = (
    "first_look_at",
    "history_from",
    "observed_at",
    "trouble",
    "look_seconds",
    "failed_looks",
    "lease_holder",
    "lease_fence",
    "lease_until",
)


class ClusterForm(forms.ModelForm[Cluster]):
    """A cluster; of a secret it shows that it is set, and left so it stays."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["options"] = secrets.shown(self.instance.kind, self.instance.options)

    def clean_options(self) -> Any:
        """Put back each secret that was left as it is shown."""
        options, before = self.cleaned_data["options"], self.instance.options
        if not isinstance(options, dict):
            return options
        return secrets.kept(self.cleaned_data.get("kind", ""), options, before)


def _told(cluster: Cluster, names: list[str]) -> dict[str, str]:
    """Return what columns hold, in words that may be written down."""
    row = Cluster.objects.filter(pk=cluster.pk).values("kind", *names).first() or {}
    if "options" in row:
        row["options"] = secrets.shown(row["kind"], row["options"])
    return {name: str(row[name]) for name in names if name in row}


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin[Cluster]):
    """Clusters; what a tick writes is read-only. One is archived, never deleted."""

    form = ClusterForm
    list_display = ("name", "kind", "grade", "observed_at", "trouble", "archived_at")
    list_filter = ("kind", "grade", ("archived_at", admin.EmptyFieldListFilter))
    search_fields = ("name",)
    readonly_fields = (*SEEN, "not_before", "tick_requested_at", "cursor", "created_at")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: history hangs on it."""
        return False

    def save_model(self, request: HttpRequest, obj: Cluster, form: Any, change: bool) -> None:
        """Save, write down who did, and ask for a tick."""
        before = _told(obj, form.changed_data)
        super().save_model(request, obj, form, change)
        told = _told(obj, form.changed_data)
        assert isinstance(request.user, User)  # noqa: S101  the admin lets in nobody else
        audit.record(
            "changed" if change else "added",
            obj,
            by=request.user,
            now=obj.now(),
            changes=audit.differences(before, told),
        )
        request_tick(obj)


@admin.register(Pool)
class PoolAdmin(admin.ModelAdmin[Pool]):
    """Pools: made by a look, weighed by operators."""

    list_display = ("name", "cluster", "fraction", "usage_weight", "idle_below")
    list_filter = ("cluster",)
    search_fields = ("name",)
    readonly_fields = ("cluster", "name")
    list_select_related = ("cluster",)

    @admin.display(description="fraction of a GPU")
    def fraction(self, pool: Pool) -> str:
        """Return what part of a GPU one unit is."""
        return f"{pool.fraction_numerator}/{pool.fraction_denominator}"

    has_add_permission = ReadOnly.has_add_permission
    has_delete_permission = ReadOnly.has_delete_permission


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin[Node]):
    """Nodes as last seen."""

    list_display = ("name", "pool", "gpus", "foreign_gpus", "state", "state_since", "gone_at")
    list_filter = ("cluster", "pool", "state", ("gone_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "rack")
    list_select_related = ("pool__cluster",)


@admin.register(LineLook)
class LineLookAdmin(ReadOnlyAdmin[LineLook]):
    """When each cluster's own line was read; what it told of each job is on that job's page."""

    exclude = ("places",)
    list_display = ("cluster", "read_at", "tried_at", "trouble", "no_terms")
    list_select_related = ("cluster",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[LineLook]:
        """Leave what was told of up to 20,000 jobs unread."""
        return super().get_queryset(request).defer("places")


@admin.register(UserToken)
class UserTokenAdmin(ReadOnlyAdmin[UserToken]):
    """Who has entered a token of their own for which cluster, and until when it lets them in."""

    list_display = ("user", "cluster", "entered_at", "until")
    list_select_related = ("user", "cluster")
    exclude = ("sealed",)
