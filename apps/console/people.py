"""Who reads a page, and what may be told to them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from apps.common import show
from apps.jobs.models import Job
from apps.jobs.selectors import told_of
from apps.tenants.models import Role, Tenant
from apps.tenants.selectors import Sight, sight_of


@dataclass(frozen=True, slots=True)
class Told:
    """A job as a reader may see it: its name with a link, or what stands for it without one."""

    text: str
    url: str = ""
    own: bool = False


class Viewer:
    """The reader of one page; what they may see is read once."""

    def __init__(self, user: Any) -> None:
        self.user = user

    @cached_property
    def sight(self) -> Sight:
        sight = sight_of(self.user)
        self.user.known_sight = sight  # selectors that are asked for this user need not ask again
        return sight

    @property
    def is_admin(self) -> bool:
        return self.sight.admin

    @property
    def is_lead(self) -> bool:
        """Return whether they lead any tenant, or all."""
        return self.sight.admin or Role.LEAD in self.sight.roles.values()

    def sees(self, tenant: Tenant) -> bool:
        """Return whether they see a tenant's jobs in full."""
        return self.sight.covers(tenant.path)

    def own(self, prefix: str = "tenant__") -> Q:
        """Return the condition for rows of tenants they see in full; an admin: all rows."""
        return self.sight.condition(prefix)

    def told(self, job: Job) -> Told:
        """Return what may be told of a job; ``job.tenant`` is loaded."""
        if self.sees(job.tenant):
            return Told(job.name, reverse("console:job", args=[job.pk]), own=True)
        return Told(told_of(self.sight, job))

    @property
    def role_words(self) -> str:
        """Return their place for the foot of the navigation."""
        if self.is_admin:
            return "Admin"
        tops = self.sight.outermost()
        if not tops:
            return "No team yet"
        role = "Lead" if self.sight.roles[tops[0]] == Role.LEAD else "Member"
        more = f" and {len(tops) - 1} more" if len(tops) > 1 else ""
        return f"{role} of {show.cut(tops[0])}{more}"


def viewer_of(request: HttpRequest) -> Viewer:
    """Return the reader of this request, the same object each time."""
    viewer = getattr(request, "_viewer", None)
    if viewer is None:
        viewer = Viewer(request.user)
        request._viewer = viewer  # type: ignore[attr-defined]  # kept for the request's lifetime
    return viewer
