"""The jump box: a job by id or name, a tenant, a node, a person; only what its reader may see."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views import View

from apps.accounts.models import User
from apps.backends.models import Node
from apps.common import show
from apps.console.marks import badge
from apps.console.pages import Crumb, PageInfo
from apps.console.people import Viewer, viewer_of
from apps.jobs.eviction_facts import either_side, with_sides
from apps.jobs.models import Eviction, Job
from apps.tenants.models import Tenant

LONGEST = 200
MOST = 20
LISTED = 8
EVICTION = re.compile(r"evictions?(?:\s+#?([0-9]{1,18}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that can be jumped to."""

    text: str
    note: str
    url: str


def hits_for(viewer: Viewer, asked: str, *, most: int = MOST) -> list[Hit]:
    """Return what a reader may see under a name, best first; an exact job id alone."""
    asked = asked.strip()
    if not asked or len(asked) > LONGEST or "\x00" in asked:
        return []
    own = Job.objects.filter(viewer.own()).select_related("tenant")
    number = asked.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 19:
        job = own.filter(pk=int(number)).first()
        if job is not None:
            return [_job_hit(job)]
    hits = [hit] if (hit := _eviction_hit(viewer, asked)) is not None else []
    hits += [_tenant_hit(tenant) for tenant in _tenants(viewer, asked, most)]
    hits += [_job_hit(job) for job in own.filter(name__startswith=asked).order_by("-pk")[:most]]
    nodes = Node.objects.filter(
        name__startswith=asked, gone_at__isnull=True, cluster__archived_at__isnull=True
    )
    hits += [_node_hit(node) for node in nodes.select_related("cluster", "pool")[:most]]
    if viewer.is_admin:
        people = User.objects.filter(username__startswith=asked).order_by("username")[:most]
        hits += [_person_hit(person) for person in people]
    return hits[:most]


def _eviction_hit(viewer: Viewer, asked: str) -> Hit | None:
    """Return the page of evictions, or the one whose number is given: ``eviction 911``."""
    found = EVICTION.fullmatch(asked)
    if found is None:
        return None
    if found[1] is None:
        return Hit("Evictions", "page, who made way for whom", reverse("console:evictions"))
    rows = with_sides(Eviction.objects.filter(either_side(viewer.sight)))
    one = rows.defer("considered", "standings").filter(pk=int(found[1])).first()
    if one is None:
        return None
    victim, taker = viewer.told(one.job).text, viewer.told(one.beneficiary).text
    note = f"{show.cut(show.spoken(victim))} for {show.cut(show.spoken(taker))}"
    return Hit(f"Eviction {one.pk}", note, reverse("console:eviction", args=[one.pk]))


def _tenants(viewer: Viewer, asked: str, most: int) -> Any:
    rows = Tenant.objects.filter(viewer.own(""), archived_at__isnull=True)
    return (rows.filter(path__startswith=asked) | rows.filter(name__startswith=asked)).order_by(
        "path"
    )[:most]


def _job_hit(job: Job) -> Hit:
    note = f"{badge(job).label.lower()} · {show.cut(job.tenant.path)} · {job.pk}"
    return Hit(show.cut(show.spoken(job.name)), note, reverse("console:job", args=[job.pk]))


def _tenant_hit(tenant: Tenant) -> Hit:
    url = f"{reverse('console:queue')}?{urlencode({'tenant': tenant.path})}"
    return Hit(show.cut(tenant.path), "tenant, its jobs in line", url)


def _node_hit(node: Node) -> Hit:
    url = f"{reverse('console:overview')}?{urlencode({'cluster': node.cluster.name})}"
    note = f"node of {node.cluster.name} · {show.counted(node.gpus, 'GPU')} {node.pool.name} · {node.state}"
    return Hit(show.cut(node.name), note, url)


def _person_hit(person: User) -> Hit:
    return Hit(
        show.cut(str(person)), "person", reverse("admin:accounts_user_change", args=[person.pk])
    )


class Jump(LoginRequiredMixin, View):
    """One hit redirects, several list; as JSON the first eight for the box itself."""

    form: str = "html"

    def get(self, request: HttpRequest) -> HttpResponse:
        """Find what was asked for."""
        asked = request.GET.get("q", "").strip()
        viewer = viewer_of(request)
        if self.form == "json":
            hits = hits_for(viewer, asked, most=LISTED)
            rows = [{"text": hit.text, "note": hit.note, "url": hit.url} for hit in hits]
            return JsonResponse({"rows": rows})
        hits = hits_for(viewer, asked)
        if len(hits) == 1:
            return redirect(hits[0].url)
        page = PageInfo("jump", "Jump", "Jump", (Crumb("Jump"),), jump=show.cut(asked, LONGEST))
        context = {
            "page": page,
            "hits": hits,
            "asked": show.cut(show.spoken(asked)) if asked else "",
        }
        return render(request, "console/jump.html", context)
