"""Who changed what, when and why."""

from __future__ import annotations

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.audit.selectors import entries_about
from apps.audit.services import differences, record
from apps.common.errors import Invalid
from apps.tenants.models import Tenant
from tests.factories import NOW


def test_an_entry_says_who_what_when_and_why(vision: Tenant, root: User) -> None:
    record(
        "changed", vision, by=root, now=NOW, changes={"weight": (1.0, 2.0)}, reason=" they paid "
    )

    entry = entries_about(vision)[0]
    assert (entry.actor, entry.at, entry.verb, entry.reason) == (root, NOW, "changed", "they paid")
    assert (entry.object_kind, entry.object_name) == ("tenant", "vision")
    assert entry.changes == {"weight": [1.0, 2.0]}


def test_a_name_longer_than_its_column_is_cut(vision: Tenant) -> None:
    vision.path = "x" * 400

    assert len(record("changed", vision, by=None, now=NOW).object_name) == 250


def test_a_reason_too_long_is_refused(vision: Tenant) -> None:
    before = Entry.objects.count()
    with pytest.raises(Invalid) as refusal:
        record("changed", vision, by=None, now=NOW, reason="x" * 301)

    assert refusal.value.field == "reason"
    assert Entry.objects.count() == before


def test_only_what_changed_is_told() -> None:
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == {"b": (2, 3), "c": (None, 4)}
