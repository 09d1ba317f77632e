"""Grow and prune the tree of tenants, pause its parts, and say who belongs where."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.accounts.models import User
from apps.audit import services as audit
from apps.common.errors import Conflict, Invalid
from apps.common.text import clean_text
from apps.tenants.models import Membership, Role, Tenant
from apps.tenants.selectors import ancestor_paths, subtree_of

PATH_LENGTH = 400


def check_weight(weight: Any, *, field: str = "weight") -> float:
    """Return a weight: a number from 0 on.

    :raises Invalid: for anything else; −1, NaN and infinity among it.
    """
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise Invalid(f"{field} must be a number.", field=field)
    if weight < 0:
        raise Invalid(
            f"{field} must be 0 or more, not {weight:g}; 0 runs only when nobody else waits.",
            field=field,
        )
    return float(weight)


def _check_reason(reason: str, by: User | None) -> str:
    """Return the reason of a change; a person must give one."""
    return clean_text(reason, field="reason", max_length=300, blank=by is None)


def _check_name(name: str, parent: Tenant | None, *, but: Tenant | None = None) -> str:
    name = clean_text(name, field="name", max_length=80)
    if "/" in name:
        raise Invalid("A tenant's name holds no slash: it separates names in paths.", field="name")
    # Archived siblings count: their path is still theirs. No two differ by case alone.
    siblings = Tenant.objects.filter(parent=parent).values_list("pk", "name")
    for pk, sibling in siblings:
        if sibling.casefold() == name.casefold() and (but is None or but.pk != pk):
            raise Conflict(f"There is a tenant {sibling} there already.", field="name")
    path = f"{parent.path}/{name}" if parent else name
    if len(path) > PATH_LENGTH:
        raise Invalid(f"The path would have more than {PATH_LENGTH} characters.", field="name")
    return name


def check_change(tenant: Tenant | None, *, name: str, parent: Tenant | None, weight: float) -> None:
    """Refuse what creating (``tenant`` None) or changing a tenant would refuse.

    :raises DomainError: naming the field; nothing is written.
    """
    if parent is not None:
        _check_parent(tenant, parent)
    _check_name(name, parent, but=tenant)
    check_weight(weight)


def _check_parent(tenant: Tenant | None, parent: Tenant) -> None:
    if tenant is not None and tenant.path in ancestor_paths(parent.path):
        raise Invalid(f"{parent} lies below {tenant}.", field="parent")
    if parent.archived_at is not None:
        raise Invalid(f"{parent} is archived.", field="parent")


def _path(name: str, parent: Tenant | None) -> str:
    return f"{parent.path}/{name}" if parent else name


@transaction.atomic
def create_tenant(
    name: str,
    *,
    now: datetime,
    parent: Tenant | None = None,
    weight: float = 1.0,
    by: User | None = None,
    reason: str = "",
) -> Tenant:
    """Add a tenant below another, or at the top.

    :raises Invalid: naming the field.
    :raises Conflict: if a sibling has that name.
    """
    if parent is not None:
        _check_parent(None, parent)
    name = _check_name(name, parent)
    tenant = Tenant.objects.create(
        parent=parent,
        name=name,
        path=_path(name, parent),
        weight=check_weight(weight),
        created_at=now,
    )
    audit.record(
        "created",
        tenant,
        by=by,
        now=now,
        changes={"path": (None, tenant.path), "weight": (None, tenant.weight)},
        reason=reason,
    )
    return tenant


def _move_paths(tenant: Tenant, path: str) -> None:
    """Give a tenant and all below it their new paths."""
    old = tenant.path
    if len(path) > PATH_LENGTH:
        raise Invalid(f"The path would have more than {PATH_LENGTH} characters.", field="name")
    below = list(subtree_of(tenant).exclude(pk=tenant.pk))
    for other in below:
        other.path = path + other.path[len(old) :]
        if len(other.path) > PATH_LENGTH:
            raise Invalid(
                f"The path of {other.name} would have more than {PATH_LENGTH} characters.",
                field="name",
            )
    tenant.path = path
    tenant.save(update_fields=["name", "parent", "path"])
    Tenant.objects.bulk_update(below, ["path"], batch_size=500)


@transaction.atomic
def rename_tenant(
    tenant: Tenant, name: str, *, by: User | None, now: datetime, reason: str
) -> Tenant:
    """Give a tenant another name; its path and all paths below it follow.

    :raises Conflict: if a sibling has that name.
    """
    reason = _check_reason(reason, by)
    before = tenant.path
    tenant.name = _check_name(name, tenant.parent, but=tenant)
    _move_paths(tenant, _path(tenant.name, tenant.parent))
    audit.record(
        "renamed", tenant, by=by, now=now, changes={"path": (before, tenant.path)}, reason=reason
    )
    return tenant


@transaction.atomic
def move_tenant(
    tenant: Tenant, parent: Tenant | None, *, by: User | None, now: datetime, reason: str
) -> Tenant:
    """Hang a tenant, with all below it, below another one.

    :raises Invalid: if that lies in its own subtree, or is archived.
    """
    reason = _check_reason(reason, by)
    if parent is not None:
        _check_parent(tenant, parent)
    before = tenant.path
    _check_name(tenant.name, parent, but=tenant)
    tenant.parent = parent
    _move_paths(tenant, _path(tenant.name, parent))
    audit.record(
        "moved", tenant, by=by, now=now, changes={"path": (before, tenant.path)}, reason=reason
    )
    return tenant


@transaction.atomic
def set_weight(
    tenant: Tenant,
    weight: float,
    *,
    by: User | None,
    now: datetime,
    reason: str,
    token_name: str = "",
) -> Tenant:
    """Change a tenant's share among its siblings.

    :raises Invalid: below 0, or if a person gives no reason.
    """
    reason = _check_reason(reason, by)
    before, tenant.weight = tenant.weight, check_weight(weight)
    tenant.save(update_fields=["weight"])
    audit.record(
        "weight changed",
        tenant,
        by=by,
        now=now,
        changes={"weight": (before, tenant.weight)},
        reason=reason,
        token_name=token_name,
    )
    return tenant


@transaction.atomic
def pause_tenant(tenant: Tenant, *, by: User | None, now: datetime, reason: str = "") -> Tenant:
    """Keep the jobs of a tenant, and of all below it, from starting; safe to repeat."""
    claimed = Tenant.objects.filter(pk=tenant.pk, paused_at__isnull=True).update(
        paused_at=now, paused_by=by
    )
    tenant.refresh_from_db()
    if claimed:
        audit.record("paused", tenant, by=by, now=now, reason=reason)
    return tenant


@transaction.atomic
def resume_tenant(tenant: Tenant, *, by: User | None, now: datetime, reason: str = "") -> Tenant:
    """Let the jobs of a tenant start again; safe to repeat.

    :raises Conflict: if it is archived.
    """
    if tenant.archived_at is not None:
        raise Conflict(f"{tenant} is archived; it stays paused.", code="archived")
    claimed = Tenant.objects.filter(pk=tenant.pk, paused_at__isnull=False).update(
        paused_at=None, paused_by=None
    )
    tenant.refresh_from_db()
    if claimed:
        audit.record("resumed", tenant, by=by, now=now, reason=reason)
    return tenant


@transaction.atomic
def archive_tenant(tenant: Tenant, *, by: User | None, now: datetime, reason: str) -> Tenant:
    """Take a tenant, with all below it, out of the tree without losing its history.

    Its waiting jobs are paused, what runs ends by itself, new jobs are refused; its usage stays
    with its parent (DOMAIN 11). Safe to repeat.

    :raises Invalid: if a person gives no reason.
    """
    reason = _check_reason(reason, by)
    alive = subtree_of(tenant).filter(archived_at__isnull=True)
    alive.filter(paused_at__isnull=True).update(paused_at=now, paused_by=by)
    archived = list(alive.values_list("path", flat=True))
    alive.update(archived_at=now)
    tenant.refresh_from_db()
    if archived:
        audit.record(
            "archived", tenant, by=by, now=now, changes={"paths": ([], archived)}, reason=reason
        )
    return tenant


@transaction.atomic
def add_member(
    tenant: Tenant, user: User, role: str, *, now: datetime, by: User | None = None
) -> Membership:
    """Give a person a place in a tenant, or another role there; it reaches the whole subtree.

    :raises Invalid: for a role there is not.
    """
    if role not in Role.values:
        raise Invalid(f"role must be one of {', '.join(Role.values)}.", field="role")
    before = Membership.objects.filter(tenant=tenant, user=user).values_list("role", flat=True)
    was = before.first()
    membership, _ = Membership.objects.update_or_create(
        tenant=tenant, user=user, defaults={"role": role}
    )
    if was != role:
        changes = {user.username: (was, role)}
        audit.record("member changed", tenant, by=by, now=now, changes=changes)
    return membership


@transaction.atomic
def remove_member(tenant: Tenant, user: User, *, now: datetime, by: User | None = None) -> None:
    """Take a person's place in a tenant away; safe to repeat."""
    place = Membership.objects.filter(tenant=tenant, user=user).first()
    if place is not None:
        changes = {user.username: (place.role, None)}
        place.delete()
        audit.record("member changed", tenant, by=by, now=now, changes=changes)
