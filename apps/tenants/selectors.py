"""The tree of tenants, and who may see and do what in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import or_
from typing import Any, Literal

from django.db.models import Q, QuerySet

from apps.accounts.models import User
from apps.common.statements import Joined, placeholders
from apps.tenants.models import Membership, Role, Tenant

RoleName = Literal["admin", "lead", "member"]
RANKS: dict[str, int] = {"member": 1, "lead": 2, "admin": 3}

COVERED = """
    (%s OR EXISTS (
        SELECT 1 FROM tenants_membership place
        JOIN tenants_tenant above ON above.id = place.tenant_id
        WHERE place.user_id = %s AND above.path IN ({paths})
    ))
"""
"""That a user sees the tenant at a path in full, as SQL; its values: ``covered_values``."""


def is_admin(user: Any) -> bool:
    """Return whether a user sees and changes the whole installation."""
    return bool(user.is_authenticated and user.is_active and (user.is_admin or user.is_superuser))


def in_subtree(path: str, prefix: str = "") -> Q:
    """Return the condition for a tenant at or below a path.

    ``prefix`` leads to the tenant from another model, as ``"tenant__"``. No two paths differ by
    case alone (the services see to it), so that SQLite, whose LIKE ignores case, answers the same.
    """
    return Q(**{f"{prefix}path": path}) | Q(**{f"{prefix}path__startswith": f"{path}/"})


def subtree_of(tenant: Tenant) -> QuerySet[Tenant]:
    """Return a tenant and all below it, archived ones included."""
    return Tenant.objects.filter(in_subtree(tenant.path))


def ancestor_paths(path: str) -> list[str]:
    """Return the paths above one, the top first, itself last."""
    names = path.split("/")
    return ["/".join(names[: depth + 1]) for depth in range(len(names))]


def ancestors_of(tenant: Tenant) -> QuerySet[Tenant]:
    """Return the tenants above one and itself, the top first."""
    return Tenant.objects.filter(path__in=ancestor_paths(tenant.path)).order_by("path")


def children_of(tenant: Tenant | None) -> QuerySet[Tenant]:
    """Return the live tenants right below one; None: below the root."""
    return Tenant.objects.filter(parent=tenant, archived_at__isnull=True)


@dataclass(frozen=True, slots=True)
class Sight:
    """What a user may see, read once: all of it, or these subtrees with a role in each."""

    admin: bool = False
    roles: dict[str, str] = field(default_factory=dict)

    def role_at(self, path: str) -> RoleName | None:
        """Return the strongest role at a path."""
        if self.admin:
            return "admin"
        held = [self.roles[above] for above in ancestor_paths(path) if above in self.roles]
        if not held:
            return None
        return "lead" if Role.LEAD in held else "member"

    def covers(self, path: str) -> bool:
        """Return whether the tenant at a path is seen in full."""
        return self.role_at(path) is not None

    def condition(self, prefix: str = "") -> Q:
        """Return the condition for tenants that are seen in full; see ``in_subtree``."""
        if self.admin:
            return Q()
        if not self.roles:
            return Q(pk__in=())
        return reduce(or_, (in_subtree(path, prefix) for path in self.outermost()))

    def outermost(self) -> list[str]:
        """Return the tops of the subtrees, without those that lie in another."""
        return [
            path
            for path in sorted(self.roles)
            if not any(above in self.roles for above in ancestor_paths(path)[:-1])
        ]


def sight_of(user: Any) -> Sight:
    """Return what a user may see; one query, none for an admin.

    A request that has read it keeps it on its own user as ``known_sight``.
    """
    known: Sight | None = getattr(user, "known_sight", None)
    if known is not None:
        return known
    if not user.is_authenticated or not user.is_active:
        return Sight()
    if is_admin(user):
        return Sight(admin=True)
    return Sight(roles=dict(user.memberships.values_list("tenant__path", "role")))


def tenants_visible_to(user: Any) -> QuerySet[Tenant]:
    """Return the tenants a user sees in full: an admin all, others their subtrees."""
    return Tenant.objects.filter(sight_of(user).condition())


def covered_values(user: Any, path: str) -> tuple[Any, ...]:
    """Return the values of ``COVERED``: whether the user sees all, who it is, the paths above."""
    if not user.is_authenticated or not user.is_active:
        return False, 0, *ancestor_paths(path)
    return is_admin(user), user.pk, *ancestor_paths(path)


@cache
def _covered_tenant(depth: int) -> Joined:
    """Return the statement for tenants this deep in the tree."""
    covered = COVERED.format(paths=placeholders(depth))
    return Joined(
        f"SELECT {{tenant}} FROM tenants_tenant tenant WHERE tenant.path = %s AND {covered}",  # noqa: S608  our own
        tenant=Tenant,
    )


def tenant_covered(user: Any, path: str) -> Tenant | None:
    """Return the tenant at a path if the user sees it in full; None: there is none, or not so.

    One query.
    """
    values = covered_values(user, path)
    found = _covered_tenant(path.count("/") + 1).first(path, *values)
    return None if found is None else found[0]


def role_in(user: Any, tenant: Tenant) -> RoleName | None:
    """Return what a user is in a tenant, by its memberships at or above it."""
    return sight_of(user).role_at(tenant.path)


def may_submit(user: Any, tenant: Tenant) -> bool:
    """Return whether a user may submit jobs for a tenant: whoever belongs to it."""
    return role_in(user, tenant) is not None


def members_of(tenants: Iterable[Tenant]) -> QuerySet[Membership]:
    """Return the memberships of tenants, people loaded."""
    return Membership.objects.filter(tenant__in=list(tenants)).select_related("user", "tenant")


def top_name(path: str) -> str:
    """Return the name of the top-level tenant of a path."""
    return path.split("/", 1)[0]


def tenants_led_by(user: User) -> QuerySet[Tenant]:
    """Return the tenants where a user may hold, release and cancel anything."""
    sight = sight_of(user)
    if sight.admin:
        return Tenant.objects.all()
    led = {path: role for path, role in sight.roles.items() if role == Role.LEAD}
    return Tenant.objects.filter(Sight(roles=led).condition())
