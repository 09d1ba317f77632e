"""Quotas in the operators' admin; every change goes through the service."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from apps.backends.services import request_tick
from apps.common.errors import DomainError
from apps.common.readonly import ReadOnlyAdmin
from apps.quotas.models import Account, AccountsLook, AccountValue, Quota
from apps.quotas.services import set_quota


class QuotaForm(forms.ModelForm[Quota]):
    """A promise, and why it is changed."""

    reason = forms.CharField(max_length=300, help_text="Written to the audit.")

    class Meta:
        model = Quota
        fields = ("tenant", "pool", "guarantee", "ceiling", "weight")

    def clean(self) -> dict[str, Any]:
        """Make the change and take it back, to say what the service refuses."""
        data = super().clean() or {}
        if self.errors:
            return data
        try:
            with transaction.atomic():
                set_quota(**self.asked(data), by=None, now=timezone.now())
                transaction.set_rollback(True)
        except DomainError as error:
            self.add_error(error.field if error.field in self.fields else None, error.message)
        return data

    def asked(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return what is asked of the service."""
        kept = {"tenant": self.instance, "pool": self.instance}
        fields = ("tenant", "pool", "guarantee", "ceiling", "weight", "reason")
        return {name: data[name] if name in data else getattr(kept[name], name) for name in fields}


@admin.register(Quota)
class QuotaAdmin(admin.ModelAdmin[Quota]):
    """Promises by tenant and pool."""

    form = QuotaForm
    list_display = ("tenant", "pool", "guarantee", "ceiling", "weight")
    list_filter = ("pool__cluster", "pool")
    search_fields = ("tenant__path", "pool__name")
    list_select_related = ("tenant", "pool__cluster")
    autocomplete_fields = ("tenant",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Return whose promise it is, once made: another tenant's is another row."""
        return () if obj is None else ("tenant", "pool")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: set it to nothing, with a reason."""
        return False

    def save_model(self, request: HttpRequest, obj: Quota, form: QuotaForm, change: bool) -> None:
        """Change it by the service, and ask for a tick."""
        asked: dict[str, Any] = form.asked(form.cleaned_data)
        by: Any = request.user
        quota = set_quota(**asked, by=by, now=timezone.now())
        obj.pk = quota.pk
        obj._state.adding = False
        request_tick(quota.pool.cluster)


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin[Account]):
    """Accounts of clusters as last seen; a weight or a quota is changed beside its tenant."""

    list_display = ("name", "cluster", "parent", "tenant", "users", "seen_at", "gone_at")
    list_filter = ("cluster",)
    search_fields = ("name", "tenant__path")
    list_select_related = ("cluster", "tenant")


@admin.register(AccountValue)
class AccountValueAdmin(ReadOnlyAdmin[AccountValue]):
    """Shares and limits of accounts: as seen, and as wanted."""

    list_display = ("account", "what", "seen", "wanted", "state", "wanted_at", "written_at")
    list_filter = ("what", "is_wanted", "account__cluster")
    search_fields = ("account__name",)
    list_select_related = ("account__cluster",)


@admin.register(AccountsLook)
class AccountsLookAdmin(ReadOnlyAdmin[AccountsLook]):
    """When the accounts of each cluster were read."""

    list_display = ("cluster", "read_at", "tried_at", "trouble")
    list_select_related = ("cluster",)
