"""The tree of tenants: paths, pauses, archives, places."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.common.errors import Conflict, Invalid
from apps.tenants.models import Membership, Tenant
from apps.tenants.selectors import (
    ancestors_of,
    may_submit,
    role_in,
    subtree_of,
    tenants_led_by,
    tenants_visible_to,
)
from apps.tenants.services import (
    add_member,
    archive_tenant,
    create_tenant,
    move_tenant,
    pause_tenant,
    remove_member,
    rename_tenant,
    resume_tenant,
    set_weight,
)
from tests.factories import NOW, join, make_tenant, make_user

BY: dict[str, Any] = {"by": None, "now": NOW, "reason": ""}


def paths() -> list[str]:
    """All paths there are."""
    return list(Tenant.objects.order_by("path").values_list("path", flat=True))


@pytest.fixture
def tree(db: None) -> None:
    """Three levels, and a name that begins like another."""
    for path in ("nlp", "nlp/eval", "nlp/eval/long", "nlp-2", "ops"):
        make_tenant(path)


@pytest.mark.parametrize("name", ["", " ", "a/b", "x" * 81, "a\x00", "a\nb", None, 7, "\ud800"])
def test_a_bad_name_is_refused(name: Any, tree: None) -> None:
    with pytest.raises(Invalid) as refusal:
        create_tenant(name, now=NOW)

    assert refusal.value.field == "name"


@pytest.mark.parametrize("name", ["צוות", "🚀", "<b>", "O'Neil & Söhne", "a%b_c"])
def test_any_name_a_person_may_write_is_kept(name: str, tree: None) -> None:
    made = create_tenant(name, parent=Tenant.objects.get(path="nlp"), now=NOW)
    make_tenant(f"nlp/{name}/x")

    assert made.path == f"nlp/{name}"
    assert set(subtree_of(made).values_list("path", flat=True)) == {made.path, f"{made.path}/x"}


@pytest.mark.parametrize("name", ["nlp", "NLP", "Nlp"])
def test_siblings_never_differ_by_case_alone(name: str, tree: None) -> None:
    with pytest.raises(Conflict):
        create_tenant(name, now=NOW)


@pytest.mark.parametrize("weight", [-1, -0.001, float("nan"), float("inf"), "1", True, None])
def test_a_bad_weight_is_refused(weight: Any, tree: None) -> None:
    for change in (
        lambda: create_tenant("new", weight=weight, now=NOW),
        lambda: set_weight(Tenant.objects.get(path="ops"), weight, **BY),
    ):
        with pytest.raises(Invalid) as refusal:
            change()
        assert refusal.value.field == "weight"
    assert not Tenant.objects.filter(path="new").exists()
    assert Tenant.objects.get(path="ops").weight == 1.0


def test_a_subtree_is_itself_and_all_below(tree: None) -> None:
    nlp = Tenant.objects.get(path="nlp")

    assert [t.path for t in subtree_of(nlp)] == ["nlp", "nlp/eval", "nlp/eval/long"]
    assert [t.path for t in ancestors_of(Tenant.objects.get(path="nlp/eval/long"))] == [
        "nlp",
        "nlp/eval",
        "nlp/eval/long",
    ]


def test_a_rename_reaches_all_below(tree: None) -> None:
    rename_tenant(Tenant.objects.get(path="nlp"), "language", **BY)

    assert paths() == ["language", "language/eval", "language/eval/long", "nlp-2", "ops"]
    assert Entry.objects.get(verb="renamed").changes == {"path": ["nlp", "language"]}


def test_a_rename_to_the_same_word_in_another_case_is_fine(tree: None) -> None:
    rename_tenant(Tenant.objects.get(path="nlp"), "NLP", **BY)

    assert "NLP/eval" in paths()


def test_a_move_takes_all_below_along(tree: None) -> None:
    move_tenant(Tenant.objects.get(path="nlp/eval"), Tenant.objects.get(path="ops"), **BY)

    assert paths() == ["nlp", "nlp-2", "ops", "ops/eval", "ops/eval/long"]


def test_a_tenant_never_hangs_below_itself(tree: None) -> None:
    with pytest.raises(Invalid) as refusal:
        move_tenant(Tenant.objects.get(path="nlp"), Tenant.objects.get(path="nlp/eval/long"), **BY)

    assert refusal.value.field == "parent"
    assert "nlp/eval/long" in paths()


def test_a_path_too_long_is_refused_before_anything_is_written(db: None) -> None:
    at = None
    for _ in range(4):
        at = create_tenant("x" * 80, parent=at, now=NOW)
    assert at is not None
    make_tenant(f"{at.path}/" + "y" * 71)
    make_tenant("short")

    with pytest.raises(Invalid):
        move_tenant(Tenant.objects.get(path="x" * 80), Tenant.objects.get(path="short"), **BY)

    assert Tenant.objects.get(name="y" * 71).path.startswith("x" * 80)


def test_a_pause_is_written_once_and_a_resume_ends_it(tree: None, root: User) -> None:
    nlp = Tenant.objects.get(path="nlp")

    pause_tenant(nlp, by=root, now=NOW)
    pause_tenant(nlp, by=root, now=NOW + timedelta(hours=1))
    assert nlp.paused_at == NOW

    resume_tenant(nlp, by=root, now=NOW)
    assert nlp.paused_at is None
    assert list(Entry.objects.filter(verb__in=("paused", "resumed")).values_list("verb")) == [
        ("resumed",),
        ("paused",),
    ]


def test_an_archive_takes_the_subtree_and_pauses_it(tree: None, root: User) -> None:
    nlp = Tenant.objects.get(path="nlp")

    archive_tenant(nlp, by=root, now=NOW, reason="team dissolved")

    gone = Tenant.objects.filter(archived_at=NOW, paused_at=NOW)
    assert {t.path for t in gone} == {"nlp", "nlp/eval", "nlp/eval/long"}
    assert Entry.objects.get(verb="archived").reason == "team dissolved"
    with pytest.raises(Conflict):
        resume_tenant(nlp, by=root, now=NOW)
    with pytest.raises(Invalid):
        create_tenant("new", parent=nlp, now=NOW)


def test_a_person_must_give_a_reason(tree: None, root: User) -> None:
    nlp = Tenant.objects.get(path="nlp")
    for change in (
        lambda: archive_tenant(nlp, by=root, now=NOW, reason=" "),
        lambda: rename_tenant(nlp, "x", by=root, now=NOW, reason=""),
        lambda: set_weight(nlp, 2, by=root, now=NOW, reason=""),
        lambda: move_tenant(nlp, None, by=root, now=NOW, reason=""),
    ):
        with pytest.raises(Invalid) as refusal:
            change()
        assert refusal.value.field == "reason"
    assert Tenant.objects.get(path="nlp").archived_at is None


class TestPlaces:
    def test_the_strongest_place_above_counts(self, tree: None) -> None:
        user = join(make_user("u"), Tenant.objects.get(path="nlp"), "lead")
        join(user, Tenant.objects.get(path="nlp/eval"), "member")

        assert role_in(user, Tenant.objects.get(path="nlp/eval/long")) == "lead"
        assert role_in(user, Tenant.objects.get(path="nlp-2")) is None
        assert may_submit(user, Tenant.objects.get(path="nlp/eval"))
        assert not may_submit(user, Tenant.objects.get(path="ops"))

    def test_what_is_seen_is_the_union(self, tree: None, root: User) -> None:
        user = join(make_user("u"), Tenant.objects.get(path="nlp/eval"))
        join(user, Tenant.objects.get(path="ops"), "lead")

        assert [t.path for t in tenants_visible_to(user)] == ["nlp/eval", "nlp/eval/long", "ops"]
        assert [t.path for t in tenants_led_by(user)] == ["ops"]
        assert len(tenants_visible_to(root)) == 5

    def test_nobody_sees_anything(self, tree: None) -> None:
        from django.contrib.auth.models import AnonymousUser

        assert not tenants_visible_to(AnonymousUser()).exists()

    def test_a_role_is_changed_and_taken_away(self, tree: None) -> None:
        nlp, user = Tenant.objects.get(path="nlp"), make_user("u")
        for role in ("member", "lead", "lead"):
            add_member(nlp, user, role, now=NOW)
        assert Membership.objects.get().role == "lead"

        remove_member(nlp, user, now=NOW)

        changes = Entry.objects.filter(verb="member changed").order_by("id")
        assert [entry.changes for entry in changes] == [
            {"u": [None, "member"]},
            {"u": ["member", "lead"]},
            {"u": ["lead", None]},
        ]

    def test_a_role_that_is_none_is_refused(self, tree: None) -> None:
        with pytest.raises(Invalid):
            add_member(Tenant.objects.get(path="nlp"), make_user("u"), "owner", now=NOW)
