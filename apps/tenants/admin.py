"""Tenants in the operators' admin; every change goes through the services."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from apps.accounts.admin import PersonAdmin
from apps.accounts.models import User
from apps.common.errors import DomainError
from apps.common.readonly import ReadOnlyAdmin
from apps.tenants import services
from apps.tenants.models import Membership, Tenant


class PlaceInline(admin.TabularInline[Membership, User]):
    """Where a person belongs."""

    model = Membership
    extra = 0
    autocomplete_fields = ("tenant",)


class MemberInline(admin.TabularInline[Membership, Tenant]):
    """Who belongs to a tenant."""

    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


PersonAdmin.inlines = (PlaceInline,)


class TenantForm(forms.ModelForm[Tenant]):
    """A tenant as an operator changes it: its place, its name, its weight, and why."""

    reason = forms.CharField(max_length=300, help_text="Written to the audit.")

    class Meta:
        model = Tenant
        fields = ("parent", "name", "weight")

    def clean(self) -> dict[str, Any]:
        """Try the change as the service would make it, and say what it refuses."""
        data = super().clean() or {}
        if self.errors:
            return data
        try:
            services.check_change(
                self.instance if self.instance.pk else None,
                name=data["name"],
                parent=data["parent"],
                weight=data["weight"],
            )
        except DomainError as error:
            self.add_error(error.field if error.field in self.fields else None, error.message)
        return data


@admin.register(Tenant)
class TenantAdmin(admin.ModelAdmin[Tenant]):
    """The tree of tenants. One is archived, never deleted."""

    form = TenantForm
    list_display = ("path", "weight", "paused_at", "archived_at")
    list_filter = (
        ("archived_at", admin.EmptyFieldListFilter),
        ("paused_at", admin.EmptyFieldListFilter),
    )
    search_fields = ("path",)
    readonly_fields = ("path", "created_at", "paused_at", "paused_by", "archived_at")
    inlines = (MemberInline,)
    actions = ("pause", "resume", "archive")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: archiving keeps the history."""
        return False

    def save_model(self, request: HttpRequest, obj: Tenant, form: TenantForm, change: bool) -> None:
        """Make the change by the services, each part that changed."""
        data, now = form.cleaned_data, timezone.now()
        how: dict[str, Any] = {"by": request.user, "now": now, "reason": data["reason"]}
        if not change:
            made = services.create_tenant(
                data["name"], parent=data["parent"], weight=data["weight"], **how
            )
            obj.pk, obj.path, obj.created_at = made.pk, made.path, made.created_at
            obj._state.adding = False
            return
        tenant = Tenant.objects.get(pk=obj.pk)
        if tenant.parent != data["parent"]:
            services.move_tenant(tenant, data["parent"], **how)
        if tenant.name != data["name"]:
            services.rename_tenant(tenant, data["name"], **how)
        if tenant.weight != data["weight"]:
            services.set_weight(tenant, data["weight"], **how)

    @admin.action(description="Pause the chosen tenants", permissions=["change"])
    def pause(self, request: HttpRequest, tenants: QuerySet[Tenant]) -> None:
        """Keep their jobs from starting."""
        for tenant in tenants:
            services.pause_tenant(tenant, by=_who(request), now=timezone.now())

    @admin.action(description="Resume the chosen tenants", permissions=["change"])
    def resume(self, request: HttpRequest, tenants: QuerySet[Tenant]) -> None:
        """Let their jobs start again; archived ones stay paused."""
        for tenant in tenants.filter(archived_at__isnull=True):
            services.resume_tenant(tenant, by=_who(request), now=timezone.now())

    @admin.action(description="Archive the chosen tenants", permissions=["change"])
    def archive(self, request: HttpRequest, tenants: QuerySet[Tenant]) -> None:
        """Take them out of the tree; their history stays."""
        for tenant in tenants:
            services.archive_tenant(
                tenant, by=_who(request), now=timezone.now(), reason="archived in the admin"
            )


@admin.register(Membership)
class MembershipAdmin(ReadOnlyAdmin[Membership]):
    """Who belongs where; changed beside the person or the tenant."""

    list_display = ("user", "tenant", "role")
    list_filter = ("role",)
    search_fields = ("user__username", "tenant__path")
    list_select_related = ("user", "tenant")


def _who(request: HttpRequest) -> User:
    user = request.user
    assert isinstance(user, User)  # noqa: S101  the admin lets in nobody else
    return user
