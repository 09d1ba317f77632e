"""People in the operators' admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from apps.accounts.models import Token, User
from apps.accounts.services import revoke_token
from apps.common.readonly import ReadOnlyAdmin


@admin.register(User)
class PersonAdmin(UserAdmin[User]):
    """People and service accounts; the tenants app adds where they belong."""

    list_display = ("username", "email", "is_admin", "is_staff", "is_active", "last_login")
    list_filter = ("is_admin", "is_staff", "is_active", "memberships__tenant")
    fieldsets = (
        *(UserAdmin.fieldsets or ()),
        ("Rollcall", {"fields": ("is_admin", "keys_enabled")}),
    )


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin[Token]):
    """Tokens: whose, and how lately used. No secret is kept, and no digest shown."""

    list_display = ("prefix", "name", "user", "created_at", "last_used_at", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter),)
    search_fields = ("name", "prefix", "user__username")
    list_select_related = ("user",)
    fields = ("prefix", "name", "user", "created_at", "last_used_at", "revoked_at")
    actions = ("revoke",)

    @admin.action(description="Revoke the chosen tokens", permissions=["revoke"])
    def revoke(self, request: HttpRequest, tokens: QuerySet[Token]) -> None:
        """Take tokens back for good."""
        now = timezone.now()
        for token in tokens:
            revoke_token(token, now=now)
        self.message_user(request, f"{len(tokens)} revoked.", messages.SUCCESS)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Return whether an operator may revoke tokens."""
        user: Any = request.user
        return bool(user.has_perm("accounts.change_token"))
