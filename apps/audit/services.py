"""Write down who changed what, when and why."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.db.models import Model

from apps.audit.models import Entry
from apps.common.text import clean_text

Changes = Mapping[str, tuple[Any, Any]]
"""field: (before, after), in values JSON can hold."""


def record(
    verb: str,
    subject: Model,
    *,
    by: AbstractBaseUser | None,
    now: datetime,
    changes: Changes | None = None,
    reason: str = "",
    token_name: str = "",
) -> Entry:
    """Append one entry about a change just made; call it in the change's own transaction."""
    return Entry.objects.create(
        at=now,
        actor_id=None if by is None else by.pk,
        token_name=token_name,
        verb=verb,
        object_kind=subject._meta.model_name or "",
        object_id=subject.pk,
        object_name=str(subject)[:250],
        changes={field: list(pair) for field, pair in (changes or {}).items()},
        reason=clean_text(reason, field="reason", max_length=300, blank=True),
    )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what changed between two looks at an object."""
    return {
        field: (before.get(field), after.get(field))
        for field in {**before, **after}
        if before.get(field) != after.get(field)
    }
