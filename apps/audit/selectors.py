"""Read the changes made to an object."""

from __future__ import annotations

from django.db.models import Model, QuerySet

from apps.audit.models import Entry


def entries_about(subject: Model) -> QuerySet[Entry]:
    """Return the changes made to an object, the newest first, with who made them."""
    return Entry.objects.filter(
        object_kind=subject._meta.model_name or "", object_id=subject.pk
    ).select_related("actor")
