"""Queues, classes and policies in the operators' admin; changes are checked and written down."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone

from apps.audit import services as audit
from apps.backends.services import request_tick
from apps.common.errors import DomainError
from apps.queues.models import ClusterPolicy, PriorityClass, Queue
from apps.queues.services import check_row, check_words, set_policy, set_queue


class PolicyForm(forms.ModelForm[ClusterPolicy]):
    """How a cluster decides, and why that changes."""

    reason = forms.CharField(max_length=300, help_text="Written to the audit.")

    class Meta:
        model = ClusterPolicy
        fields = tuple(field.name for field in ClusterPolicy._meta.fields if field.name != "id")

    def clean(self) -> dict[str, Any]:
        """Say what the service would refuse, in its words."""
        data = super().clean() or {}
        try:
            check_words(data)
        except DomainError as error:
            self.add_error(error.field, error.message)
        return data


@admin.register(ClusterPolicy)
class PolicyAdmin(admin.ModelAdmin[ClusterPolicy]):
    """One policy a cluster."""

    form = PolicyForm
    list_display = ("cluster", "fair_share", "half_life_seconds", "placement", "backfill")
    list_filter = ("fair_share", "backfill")
    list_select_related = ("cluster",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Return whose policy it is, once made."""
        return () if obj is None else ("cluster",)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: a cluster always decides somehow."""
        return False

    def save_model(
        self, request: HttpRequest, obj: ClusterPolicy, form: PolicyForm, change: bool
    ) -> None:
        """Change it by the service, and ask for a tick."""
        asked: dict[str, Any] = {
            name: form.cleaned_data[name]
            for name in form.changed_data
            if name not in ("reason", "cluster")
        }
        by: Any = request.user
        reason = form.cleaned_data["reason"]
        obj.pk = set_policy(obj.cluster, by=by, now=timezone.now(), reason=reason, **asked).pk
        obj._state.adding = False
        request_tick(obj.cluster)


class QueueForm(forms.ModelForm[Queue]):
    """A queue's part of priority and its limits, and why they change."""

    closed = forms.BooleanField(required=False, help_text="No new jobs.")
    reason = forms.CharField(max_length=300, help_text="Written to the audit.")

    class Meta:
        model = Queue
        fields = ("factor", "max_pending")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["closed"].initial = self.instance.closed_at is not None


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin[Queue]):
    """Queues; each is made by its first job."""

    form = QueueForm
    list_display = ("tenant", "cluster", "factor", "max_pending", "closed_at")
    list_filter = ("cluster", ("closed_at", admin.EmptyFieldListFilter))
    search_fields = ("tenant__path",)
    list_select_related = ("tenant", "cluster")
    readonly_fields = ("tenant", "cluster", "closed_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a queue is made on demand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: close it."""
        return False

    def save_model(self, request: HttpRequest, obj: Queue, form: QueueForm, change: bool) -> None:
        """Change it by the service, and ask for a tick."""
        data: dict[str, Any] = {
            name: form.cleaned_data[name] for name in ("factor", "max_pending", "closed", "reason")
        }
        set_queue(Queue.objects.get(pk=obj.pk), by=_by(request), now=timezone.now(), **data)
        request_tick(obj.cluster)


@admin.register(PriorityClass)
class ClassAdmin(admin.ModelAdmin[PriorityClass]):
    """Priority classes; one that jobs use cannot be deleted."""

    list_display = ("name", "priority", "usage_factor", "preemptible")
    search_fields = ("name",)

    def save_model(self, request: HttpRequest, obj: PriorityClass, form: Any, change: bool) -> None:
        """Save, and write down who did."""
        check_row(obj)
        before = {name: form.initial.get(name) for name in form.changed_data}
        super().save_model(request, obj, form, change)
        after = {name: form.cleaned_data[name] for name in form.changed_data}
        audit.record(
            "changed" if change else "added",
            obj,
            by=_by(request),
            now=timezone.now(),
            changes=audit.differences(before, after),
        )


def _by(request: HttpRequest) -> Any:
    return request.user
