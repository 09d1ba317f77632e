"""Cancel, hold and release a job: each a page that says what it does, then one call of a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views import View

from apps.backends.services import request_tick
from apps.common import show
from apps.common.errors import DomainError
from apps.console.marks import badge
from apps.console.pages import Crumb, PageInfo
from apps.jobs import services
from apps.jobs.models import Job
from apps.jobs.selectors import jobs_visible_to, may_cancel, may_hold
from apps.jobs.states import HOLDING, TERMINAL

SHORTEST, LONGEST = 10, 300


class ReasonForm(forms.Form):
    """Why: it stands in the job’s story."""

    reason = forms.CharField(
        min_length=SHORTEST,
        max_length=LONGEST,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=f"{SHORTEST} to {LONGEST} characters; it stands in the job’s story.",
        error_messages={
            "required": f"Say why, in {SHORTEST} characters or more.",
            "min_length": f"Say why, in {SHORTEST} characters or more.",
            "max_length": f"Say why, in {LONGEST} characters at most.",
        },
    )


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing to do to a job, in the words of its page."""

    name: str
    button: str
    done: str
    allowed: Callable[[Any, Job], bool]
    needs_reason: bool


VERBS = {
    verb.name: verb
    for verb in (
        Verb("cancel", "Cancel 1 job", "cancelled", may_cancel, needs_reason=True),
        Verb("hold", "Hold 1 job", "held", may_hold, needs_reason=True),
        Verb("release", "Release 1 job", "released", may_hold, needs_reason=False),
    )
}


def what_it_does(verb: str, job: Job) -> str:
    """Return the sentence of the page: what happens, to whom."""
    name = f"{show.cut(show.spoken(job.name))} of {show.cut(job.tenant.path)}"
    gpus = show.counted(job.gpus, job.pool.unit)
    if verb == "cancel":
        if job.state in HOLDING:
            return f"This stops {name} and gives back its {gpus}."
        return f"This takes {name} out of the line; it will not start."
    if verb == "hold":
        if job.state in HOLDING:
            return f"{name} goes on with its {gpus}, but does not start again once it stops."
        return f"{name} stays in line but does not start until it is released."
    return f"{name} may start again as soon as there is room for its {gpus}."


def what_it_costs(verb: str, job: Job) -> str:
    """Return what is lost by it, or what is kept."""
    if verb == "cancel" and job.state in HOLDING:
        attempt = job.attempts.filter(ended_at__isnull=True, started_at__isnull=False).last()
        if attempt is None or attempt.started_at is None:
            return "It has not started yet: no work is lost."
        since = attempt.last_checkpoint_at or attempt.started_at
        lost = max(timedelta(), job.cluster.now() - since)
        fraction = job.pool.fraction_numerator / job.pool.fraction_denominator
        hours = job.gpus * fraction * lost.total_seconds() / 3600
        kept = "its last checkpoint" if attempt.last_checkpoint_at else "it started"
        return (
            f"The work since {kept}, {show.duration(lost)} on {show.counted(job.gpus, job.pool.unit)},"
            f" is lost: {show.gpu_hours(hours)}. A cancelled job cannot be started again."
        )
    if verb == "cancel":
        return "A cancelled job cannot be started again; submit it anew."
    if verb == "hold":
        return "It keeps its submit time, and loses what it has reserved."
    who = "" if job.held_by is None else f" by {show.cut(str(job.held_by))}"
    why = f": “{job.held_reason}”" if job.held_reason else "."
    return f"It was held{who}{why}"


class Confirm(LoginRequiredMixin, View):
    """Ask once more, with what it does and what it costs; then do it."""

    verb: str = ""
    template: ClassVar[str] = "console/confirm.html"

    def _job(self, request: HttpRequest, pk: int) -> tuple[Job, Verb]:
        """Return the job; another team’s is the same 404 as none, one's own may be a 403."""
        verb = VERBS[self.verb]
        rows = jobs_visible_to(request.user).select_related("tenant", "cluster", "pool", "held_by")
        job = rows.filter(pk=pk).first() if pk < 2**63 else None
        if job is None:
            raise Http404
        if not verb.allowed(request.user, job):
            raise PermissionDenied
        return job, verb

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show what would happen."""
        job, verb = self._job(request, pk)
        if refusal := _refusal(verb, job):
            messages.warning(request, refusal)
            return redirect("console:job", pk)
        return self._page(request, job, verb, ReasonForm() if verb.needs_reason else None)

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Do it."""
        job, verb = self._job(request, pk)
        form = ReasonForm(request.POST) if verb.needs_reason else None
        if form is not None and not form.is_valid():
            return self._page(request, job, verb, form, status=422)
        reason = form.cleaned_data["reason"] if form is not None else ""
        try:
            self._do(job, by=request.user, reason=reason)
        except DomainError as error:
            if form is not None and error.field == "reason":
                form.add_error("reason", error.message)
                return self._page(request, job, verb, form, status=422)
            messages.warning(request, error.message)
            return redirect("console:job", pk)
        request_tick(job.cluster)
        messages.success(request, done_words(verb, job))
        return redirect("console:job", pk)

    def _do(self, job: Job, *, by: Any, reason: str) -> None:
        now = job.cluster.now()
        if self.verb == "cancel":
            services.cancel_job(job, by=by, now=now, reason=reason)
        elif self.verb == "hold":
            services.hold_job(job, by=by, now=now, reason=reason)
        else:
            services.release_job(job, by=by, now=now)

    def _page(
        self,
        request: HttpRequest,
        job: Job,
        verb: Verb,
        form: ReasonForm | None,
        status: int = 200,
    ) -> HttpResponse:
        title = f"{verb.name.capitalize()} {show.cut(show.spoken(job.name))}"
        crumbs = (
            Crumb("Queue", reverse("console:queue")),
            Crumb(job.name, reverse("console:job", args=[job.pk])),
            Crumb(verb.name.capitalize()),
        )
        context = {
            "page": PageInfo("confirm", title, f"{verb.name.capitalize()} job {job.pk}", crumbs),
            "job": job,
            "badge": badge(job),
            "verb": verb,
            "what": what_it_does(verb.name, job),
            "cost": what_it_costs(verb.name, job),
            "form": form,
        }
        return render(request, self.template, context, status=status)


def _refusal(verb: Verb, job: Job) -> str:
    """Return why there is nothing to confirm, or nothing."""
    if job.state in TERMINAL:
        return f"Job {job.pk} has ended: {badge(job).label.lower()}."
    if verb.name == "release" and job.held_at is None:
        return f"Job {job.pk} is not on hold."
    if verb.name == "hold" and job.held_at is not None:
        return f"Job {job.pk} is on hold already."
    return ""


def done_words(verb: Verb, job: Job) -> str:
    """Return what has been done; a job that still holds GPUs leaves when its cluster says so."""
    name = show.cut(show.spoken(job.name))
    if verb.name == "cancel" and job.state not in TERMINAL:
        return f"{name} is asked to stop; it ends when {job.cluster} says so."
    return f"{name} is {verb.done}."
