"""What the frame of every page needs: navigation, the reader, theme and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from apps.common import show
from apps.console.people import Viewer, viewer_of
from apps.console.scope import clusters_of
from apps.console.stamps import lateness
from apps.jobs.models import Job
from apps.jobs.states import WAITING, JobState

THEMES = ("light", "dark")
COUNT_CAP = 10_000
WEEK = timedelta(days=7)
SHEETS = tuple(
    f"css/{name}.css"
    for name in ("tokens", "base", "shell", "header", "marks", "parts", "table", "forms")
)
SCRIPTS = tuple(
    f"js/{name}.js"
    for name in ("refresh", "keys", "jump", "disclosure", "focus", "announce", "countdown")
)


@dataclass(frozen=True, slots=True)
class NavEntry:
    """A line of the navigation."""

    text: str
    url: str
    current: bool = False
    key: str = ""
    count: str | None = None
    counted: str = ""
    note: str = ""
    late: str = ""


@dataclass(frozen=True, slots=True)
class NavGroup:
    """Lines under a label; the first group has none."""

    label: str
    entries: tuple[NavEntry, ...]


@dataclass(frozen=True, slots=True)
class Person:
    """Who is logged in."""

    name: str
    role: str


@dataclass(frozen=True, slots=True)
class Shell:
    """The frame's own facts."""

    theme: str
    keys: bool
    nav: tuple[NavGroup, ...]
    person: Person | None
    sheets: tuple[str, ...] = SHEETS
    scripts: tuple[str, ...] = SCRIPTS


def _capped(count: int) -> str:
    return f"{show.whole(COUNT_CAP)}+" if count > COUNT_CAP else show.whole(count)


def _counts(viewer: Viewer) -> tuple[str, str]:
    """Return how many of the reader's own jobs wait, and how many of those gather GPUs."""
    waiting = Job.objects.filter(viewer.own(), state__in=sorted(WAITING)).order_by()
    counted = waiting[: COUNT_CAP + 1].aggregate(
        waiting=Count("pk"), gathering=Count("pk", filter=Q(state=JobState.RESERVING))
    )
    return _capped(counted["waiting"]), _capped(counted["gathering"])


def _entry(request: HttpRequest, text: str, view: str, key: str, **more: Any) -> NavEntry | None:
    """Return an entry, or None while its page does not exist."""
    try:
        url = reverse(f"console:{view}")
    except NoReverseMatch:
        return None
    match = request.resolver_match
    current = bool(match and match.namespace == "console" and match.url_name == view)
    return NavEntry(text, url, current, key, **more)


def _groups(request: HttpRequest, viewer: Viewer) -> tuple[NavGroup, ...]:
    waiting, gathering = _counts(viewer)
    now = [
        _entry(request, "Overview", "overview", "o"),
        _entry(request, "Queue", "queue", "q", count=waiting, counted="jobs wait"),
        _entry(request, "Waterfall", "waterfall", "w", count=gathering, counted="gangs gather"),
    ]
    back = [_entry(request, "Idle cost", "idle", "i")] if viewer.is_lead else []
    back.append(_entry(request, "Evictions", "evictions", "e"))
    groups: list[tuple[str, Sequence[NavEntry | None]]] = [("", now), ("Looking back", back)]
    groups.append(("Clusters", _clusters(request)))
    if viewer.is_admin:
        groups.append(("Admin", [NavEntry("Django admin", reverse("admin:index"))]))
    return tuple(
        NavGroup(label, tuple(entry for entry in entries if entry is not None))
        for label, entries in [*groups, ("Automation", [_docs()])]
        if any(entry is not None for entry in entries)
    )


def _clusters(request: HttpRequest) -> list[NavEntry]:
    wall = timezone.now()
    match = request.resolver_match
    here = match.kwargs.get("name") if match and match.url_name == "cluster" else None
    every = _entry(request, "All clusters", "clusters", "c")
    return (
        []
        if every is None
        else [every]
        + [
            NavEntry(
                cluster.name,
                reverse("console:cluster", args=[cluster.name]),
                current=cluster.name == here,
                note=cluster.get_kind_display(),
                late=lateness(cluster, wall),
            )
            for cluster in clusters_of(request)
        ]
    )


def _docs() -> NavEntry | None:
    for view in ("api:docs", "api:swagger"):
        try:
            return NavEntry("API", reverse(view))
        except NoReverseMatch:
            continue
    return None


def theme_of(request: HttpRequest) -> str:
    """Return the theme someone chose in this browser, or nothing: as the system says."""
    theme = request.COOKIES.get("theme", "")
    return theme if theme in THEMES else ""


def _shell(request: HttpRequest) -> Shell:
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return Shell(theme_of(request), keys=False, nav=(), person=None)
    viewer = viewer_of(request)
    return Shell(
        theme_of(request),
        keys=user.keys_enabled,
        nav=_groups(request, viewer),
        person=Person(str(user), viewer.role_words),
    )


def shell(request: HttpRequest) -> dict[str, Any]:
    """Return what base.html reads; nothing is queried where no page of ours is drawn."""
    return {"shell": SimpleLazyObject(lambda: _shell(request))}
