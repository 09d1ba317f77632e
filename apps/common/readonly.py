"""Parts of the admin where rows are read, and never written."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

Row = TypeVar("Row", bound=Model)


class ReadOnly(Generic[Row]):
    """Refuses to add, change and delete, whoever asks: services write these rows."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse; the rows are still shown."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False


class ReadOnlyAdmin(ReadOnly[Row], admin.ModelAdmin[Row]):
    """A table of rows to look at."""

    list_per_page = 50
    show_full_result_count = False


class ReadOnlyInline(ReadOnly[Row], admin.TabularInline[Row, Model]):
    """Rows beside another one, to look at."""

    extra = 0
    can_delete = False
