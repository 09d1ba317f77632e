"""Add a cluster, change how it is reached, and say how far it is controlled: for admins."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin, UserPassesTestMixin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views import View

from apps.backends import services
from apps.backends.kinds import KINDS, check_options, preflight
from apps.backends.models import Cluster, Grade
from apps.common.errors import DomainError
from apps.console.cluster_facts import finding_rows, findings_words
from apps.console.cluster_forms import KIND_LABELS, ClusterForm, GradeForm, HistoryForm
from apps.console.pages import Crumb, PageInfo
from apps.console.people import viewer_of
from apps.console.scope import Option, Segment
from apps.console.views_clusters import cluster_or_404
from apps.scheduling.history import start_history_import

USUAL_KIND = "slurm"


class ForAdmins(LoginRequiredMixin, UserPassesTestMixin, View):
    """A page of admins alone: anybody else who is logged in gets a 403."""

    def test_func(self) -> bool:
        """Return whether the reader is an admin."""
        return viewer_of(self.request).is_admin

    def handle_no_permission(self) -> Any:
        """Ask who is not logged in to log in; refuse others."""
        self.raise_exception = self.request.user.is_authenticated
        return super().handle_no_permission()


class ClusterFormView(ForAdmins):
    """What adding and changing share: the form, a check of what is typed, and saving it."""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Show the form."""
        return self.page(self.form(None, **kwargs))

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Check what is typed, or save it."""
        form = self.form(request.POST, **kwargs)
        if not form.is_valid():
            return self.page(form, status=422)
        try:
            if "check" in request.POST:
                return self.checked(form)
            cluster = self.save(form)
        except DomainError as error:
            form.refuse(error)
            return self.page(form, status=422)
        return redirect(f"{reverse('console:cluster', args=[cluster.name])}?check=yes")

    def checked(self, form: ClusterForm) -> HttpResponse:
        """Show what works of what is typed; nothing is saved."""
        trial = form.trial()
        check_options(trial.kind, trial.options)
        found = preflight(trial, now=timezone.now())
        return self.page(form, findings=finding_rows(found), findings_words=findings_words(found))

    def form(self, data: Any, **kwargs: Any) -> ClusterForm:
        """Return the form of this page."""
        raise NotImplementedError

    def save(self, form: ClusterForm) -> Cluster:
        """Do what the form asks, and say so."""
        raise NotImplementedError

    def page(self, form: ClusterForm, status: int = 200, **more: Any) -> HttpResponse:
        """Draw the page."""
        raise NotImplementedError

    def draw(self, info: PageInfo, form: ClusterForm, status: int, **more: Any) -> HttpResponse:
        """Draw the form under a heading."""
        context = {"page": info, "form": form, "groups": form.groups(), **more}
        return render(self.request, "console/cluster_form.html", context, status=status)


class AddCluster(ClusterFormView):
    """Add a cluster; it is only watched at first."""

    @property
    def kind(self) -> str:
        """Return the kind the address asks for."""
        asked = self.request.GET.get("kind", USUAL_KIND)
        return asked if asked in KINDS else USUAL_KIND

    def form(self, data: Any, **kwargs: Any) -> ClusterForm:
        """Return an empty form, or what was typed."""
        return ClusterForm(self.kind, data)

    def save(self, form: ClusterForm) -> Cluster:
        """Add it."""
        cluster = services.add_cluster(
            form.cleaned_data["name"],
            kind=form.kind,
            options=form.options_given(),
            tick_seconds=form.cleaned_data["tick_seconds"],
            now=timezone.now(),
            by=viewer_of(self.request).user,
        )
        services.request_tick(cluster)
        messages.success(self.request, f"{cluster} is added and only watched from now on.")
        return cluster

    def page(self, form: ClusterForm, status: int = 200, **more: Any) -> HttpResponse:
        """Draw the page."""
        crumbs = (Crumb("Clusters", reverse("console:clusters")), Crumb("Add a cluster"))
        info = PageInfo("cluster-new", "Add a cluster", "Add a cluster", crumbs)
        address = reverse("console:cluster-new")
        kinds = tuple(
            Option(label, f"{address}?kind={kind}", kind == self.kind)
            for kind, label in KIND_LABELS.items()
        )
        return self.draw(info, form, status, segment=Segment("Kind", kinds), **more)


class EditCluster(ClusterFormView):
    """Change how a cluster is reached, and say why."""

    def form(self, data: Any, **kwargs: Any) -> ClusterForm:
        """Return the form of a cluster as it is, or what was typed."""
        self.cluster = cluster_or_404(kwargs["name"])
        return ClusterForm(self.cluster.kind, data, cluster=self.cluster)

    def save(self, form: ClusterForm) -> Cluster:
        """Change it."""
        cluster = services.change_cluster(
            self.cluster,
            by=viewer_of(self.request).user,
            now=timezone.now(),
            reason=form.cleaned_data["reason"],
            options=form.options_given(),
            tick_seconds=form.cleaned_data["tick_seconds"],
        )
        messages.success(self.request, f"{cluster} is reached so from now on.")
        return cluster

    def page(self, form: ClusterForm, status: int = 200, **more: Any) -> HttpResponse:
        """Draw the page."""
        heading = f"Change {self.cluster}"
        info = PageInfo("cluster-edit", heading, heading, crumbs_of(self.cluster, "Change"))
        return self.draw(info, form, status, cluster=self.cluster, **more)


class ChangeGrade(ForAdmins):
    """Say how far a cluster is controlled."""

    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show the grades, and what driving it would lack."""
        cluster = cluster_or_404(name)
        return self._page(cluster, GradeForm(initial={"grade": cluster.grade}))

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Change the grade; to drive it all must be there that this takes, or be waived."""
        cluster = cluster_or_404(name)
        form = GradeForm(request.POST)
        if not form.is_valid():
            return self._page(cluster, form, status=422)
        asked = form.cleaned_data
        rises = asked["grade"] == Grade.DRIVE and not cluster.driven
        now = timezone.now()
        try:
            if rises and not asked["anyway"]:
                services.check_drivable(cluster, now=now)
            cluster = services.change_cluster(
                cluster,
                by=viewer_of(request).user,
                now=now,
                reason=asked["reason"],
                grade=asked["grade"],
            )
        except DomainError as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
            return self._page(cluster, form, status=422, missing=error.field == "grade")
        messages.success(request, DONE[cluster.grade].format(cluster))
        return redirect("console:cluster", cluster.name)

    def _page(
        self, cluster: Cluster, form: GradeForm, status: int = 200, *, missing: bool = False
    ) -> HttpResponse:
        heading = f"Grade of {cluster}"
        context = {
            "page": PageInfo("cluster-grade", heading, heading, crumbs_of(cluster, "Grade")),
            "cluster": cluster,
            "form": form,
            "missing": missing or "anyway" in form.data,
        }
        return render(self.request, "console/cluster_grade.html", context, status=status)


class ImportHistory(ForAdmins):
    """Begin to import what a cluster remembers of runs that are over."""

    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask from when on, and why."""
        cluster = cluster_or_404(name)
        return self._page(cluster, HistoryForm())

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Begin; a worker goes on with it."""
        cluster = cluster_or_404(name)
        form = HistoryForm(request.POST)
        if not form.is_valid():
            return self._page(cluster, form, status=422)
        try:
            start_history_import(
                cluster,
                since=form.begin(),
                by=viewer_of(request).user,
                now=timezone.now(),
                reason=form.cleaned_data["reason"],
            )
        except DomainError as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
            return self._page(cluster, form, status=422)
        messages.success(request, f"The history of {cluster} is being imported.")
        return redirect(f"{reverse('console:cluster', args=[cluster.name])}#history")

    def _page(self, cluster: Cluster, form: HistoryForm, status: int = 200) -> HttpResponse:
        heading = f"History of {cluster}"
        context = {
            "page": PageInfo("cluster-history", heading, heading, crumbs_of(cluster, "History")),
            "cluster": cluster,
            "form": form,
        }
        return render(self.request, "console/cluster_history.html", context, status=status)


DONE: dict[str, str] = {
    Grade.OBSERVE: "{} is only watched from now on; what runs there runs on.",
    Grade.ADVISE: "{} is watched and planned for; nothing on it is started or stopped.",
    Grade.DRIVE: "{} is driven from now on: the next tick may start jobs.",
}


def crumbs_of(cluster: Cluster, last: str) -> tuple[Crumb, ...]:
    """Return the breadcrumb of a page below a cluster's."""
    return (
        Crumb("Clusters", reverse("console:clusters")),
        Crumb(cluster.name, reverse("console:cluster", args=[cluster.name])),
        Crumb(last),
    )
