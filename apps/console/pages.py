"""What every page shares: log-in, its address, its scope, its frame, and its exports."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.shortcuts import render
from django.urls import reverse
from django.views import View

from apps.backends.models import Cluster
from apps.common import show
from apps.common.errors import Invalid
from apps.console.people import viewer_of
from apps.console.query import PAGING, Query
from apps.console.scope import PARAMETERS, Scope, Switcher, read_scope, switchers_of, whole_scope
from apps.console.stamps import Stamp, stamp_of
from apps.queues.selectors import policy_beside

REFRESH_SECONDS = 10
CHOICE = "cluster"


@dataclass(frozen=True, slots=True)
class Crumb:
    """A part of the breadcrumb; the last one has no link."""

    text: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Foot:
    """The end of a page: zone, currency and policy in words, and where its rows are exported."""

    words: str
    json_url: str = ""
    csv_url: str = ""
    of: str = ""


@dataclass(frozen=True, slots=True)
class PageInfo:
    """What base.html says around the content. ``refresh`` is seconds, 0: never."""

    key: str
    title: str
    heading: str
    crumbs: tuple[Crumb, ...] = ()
    stamp: Stamp | None = None
    switchers: tuple[Switcher, ...] = ()
    foot: Foot | None = None
    refresh: int = 0
    jump: str = ""


@dataclass(frozen=True, slots=True)
class Export:
    """The rows of a page for machines: columns with units in their names, no totals."""

    name: str
    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]
    facts: dict[str, Any] | None = None  # beside the rows, in JSON only


def foot_words(clusters: Iterable[Cluster], now: datetime) -> str:
    """Return zone, currency and the policies in force, as the end of a page says them."""
    policies = {_policy_words(cluster) for cluster in clusters}
    parts = [f"Times in {show.zone_words(now)}", f"prices in {show.currency_words()}"]
    if len(policies) == 1:
        parts.append(f"policy {policies.pop()}")
    elif policies:
        parts.append(f"policies {' and '.join(sorted(policies))}")
    return " · ".join(parts)


def _policy_words(cluster: Cluster) -> str:
    policy = policy_beside(cluster)
    half_life = policy.half_life_seconds
    decay = f"H = {show.duration(half_life)}" if half_life else "no decay"
    return f"{policy.fair_share}, {decay}"


class Page(LoginRequiredMixin, View):
    """A page, and with ``form`` csv or json the same rows for machines.

    A subclass names ``key`` (its view's name), ``heading``, ``template`` and ``parameters`` (beside
    cluster and pool), and gives ``build()`` → the template's context and ``export()`` → its rows.
    There ``self.query``, ``self.scope``, ``self.viewer`` and ``self.now`` stand ready. Invalid
    raised with a ``field`` becomes a page that names the parameter (400).
    """

    key: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    template: ClassVar[str] = ""
    parameters: ClassVar[frozenset[str]] = frozenset()
    scoped: ClassVar[bool] = True
    refresh: ClassVar[int] = REFRESH_SECONDS
    exports: ClassVar[tuple[str, ...]] = ("json", "csv")
    form: str = "html"
    part: str = ""  # which rows an export gives, where a page has several kinds

    query: Query
    scope: Scope
    now: datetime

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        """Answer with the page, or its rows."""
        self.viewer = viewer_of(request)
        try:
            known = self.parameters | (PARAMETERS if self.scoped else frozenset())
            # An export has all pages: where a page of them starts means nothing to it.
            self.query = Query(request, known if self.form == "html" else known - PAGING)
            self.scope = read_scope(request, self.query) if self.scoped else whole_scope(request)
            self.now = self.scope.now
            if self.form != "html":
                return respond(self.export(), self.form)
            if self.scoped:
                if not self.scope.all_clusters:
                    return render(request, "console/empty.html", empty_installation(request))
                if remembered := self._remembered():
                    return HttpResponseRedirect(remembered)
            context = self.build()
        except Invalid as error:
            if error.field is None:
                raise
            return bad_parameter(request, error, self.form)
        context.setdefault("now", self.now)
        context.setdefault("page", self.info())
        status = context.pop("status", 200)
        return self._keep_choice(render(request, self.template, context, status=status))

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        raise NotImplementedError

    def export(self) -> Export:
        """Return the rows for machines: exactly the filters of the page, all pages."""
        raise NotImplementedError

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return the breadcrumb: scope, page."""
        links = [self.query.url({"pool": None}), self.query.url()]
        scope = [Crumb(text, url) for text, url in zip(self.scope.crumbs(), links, strict=False)]
        return (*scope, Crumb(self.heading))

    def title(self) -> str:
        """Return the unique title: page and scope."""
        return " · ".join([self.heading, self.scope.crumbs()[0]])

    def info(self, **changes: Any) -> PageInfo:
        """Return what base.html says around this page."""
        values: dict[str, Any] = {
            "key": self.key,
            "title": self.title(),
            "heading": self.heading,
            "crumbs": self.crumbs(),
            "stamp": stamp_of(self.scope.clusters),
            "switchers": switchers_of(self.scope, self.query) if self.scoped else (),
            "foot": self.foot(),
            "refresh": self.refresh,
        }
        return PageInfo(**(values | changes))

    def foot(self, of: str = "") -> Foot:
        """Return the end of the page; its links keep the filters."""
        path = self.query.path.rstrip("/") or f"/{self.key}"
        links = {f"{form}_url": self.query.url(path=f"{path}.{form}") for form in self.exports}
        return Foot(foot_words(self.scope.clusters, self.now), of=of, **links)

    def _remembered(self) -> str:
        """Return where to go if a cluster was chosen before in this session, else nothing.

        The address wins, and says what is shown: a remembered choice is put into it.
        """
        before = self.request.COOKIES.get(CHOICE)
        known = {cluster.name for cluster in self.scope.all_clusters}
        if before not in known or len(known) < 2 or "cluster" in self.query or "pool" in self.query:
            return ""
        return self.query.url({"cluster": before})

    def _keep_choice(self, response: HttpResponse) -> HttpResponse:
        """Remember the cluster an address chose until the browser closes."""
        asked = self.query.get("cluster") if self.scoped else None
        if asked is not None and asked != self.request.COOKIES.get(CHOICE):
            response.set_cookie(
                CHOICE, asked, samesite="Lax", httponly=True, secure=self.request.is_secure()
            )
        return response


# Answers for machines ------------------------------------------------------------------------------


class _Echo:
    """A file that gives back what is written to it."""

    def write(self, value: str) -> str:
        return value


def _safe_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{value}"
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else value


def respond(export: Export, form: str) -> HttpResponseBase:
    """Answer with rows as CSV, streamed, or as JSON."""
    if form == "json":
        rows = [dict(zip(export.columns, row, strict=True)) for row in export.rows]
        return JsonResponse({**(export.facts or {}), "rows": rows})

    def lines() -> Iterator[str]:
        writer = csv.writer(_Echo())
        yield writer.writerow(export.columns)
        for row in export.rows:
            yield writer.writerow([_safe_cell(value) for value in row])

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{export.name}.csv"'
    return response


def bad_parameter(request: HttpRequest, error: Invalid, form: str = "html") -> HttpResponse:
    """Name what an address asks that cannot be."""
    if form != "html":
        body = {"code": error.code, "message": error.message, "field": error.field}
        return JsonResponse({"error": body}, status=400)
    page = PageInfo("", "Not understood", "Not understood")
    left = request.GET.copy()
    left.pop(error.field or "", None)
    without = f"{request.path}?{left.urlencode()}" if left else request.path
    context = {"page": page, "error": error, "without": without}
    return render(request, "console/bad_parameter.html", context, status=400)


def empty_installation(request: HttpRequest) -> dict[str, Any]:
    """Return the three steps to a first number, with what is done already."""
    from apps.quotas.models import Quota
    from apps.tenants.models import Tenant

    viewer = viewer_of(request)
    steps: list[tuple[str, str, bool]] = []
    if viewer.is_admin:
        steps = [
            ("Add a cluster", reverse("console:cluster-new"), False),
            (
                "Create a tenant",
                reverse("admin:tenants_tenant_changelist"),
                Tenant.objects.exists(),
            ),
            ("Set a quota", reverse("admin:quotas_quota_changelist"), Quota.objects.exists()),
        ]
    return {"page": PageInfo("", "Start", "Start"), "steps": steps}
