"""The submit form: one gang, checked where it is typed, sent once."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views import View

from apps.backends.kinds import KINDS, workload_fields
from apps.backends.models import Pool
from apps.backends.services import request_tick
from apps.common import show
from apps.common.errors import DomainError, Invalid
from apps.console.money_seen import sees_money
from apps.console.option_fields import field_of
from apps.console.pages import Crumb, PageInfo, empty_installation
from apps.console.people import Viewer, viewer_of
from apps.console.query import DURATION, SECONDS
from apps.console.submit_preview import Panel, panel_of
from apps.jobs.models import TopologyChoice
from apps.jobs.selectors import never_fits_of
from apps.jobs.services import JobSpec, submit_job
from apps.queues.models import PriorityClass
from apps.scheduling.preview import preview
from apps.tenants.models import Tenant

TOPOLOGIES = [
    (TopologyChoice.NONE, "anywhere"),
    (TopologyChoice.RACK, "all members in one rack"),
    (TopologyChoice.NVLINK, "all members in one NVLink domain"),
]


class DurationField(forms.CharField):
    """Seconds, typed as 90s, 10m, 4h or 7d; empty: None."""

    def clean(self, value: Any) -> int | None:
        """Return whole seconds."""
        text = super().clean(value)
        if not text:
            return None
        found = DURATION.fullmatch(text)
        if found is None:
            raise forms.ValidationError("A duration is such as 90s, 10m, 4h or 7d.")
        return int(found[1]) * SECONDS[found[2]]


class PoolChoice(forms.ModelChoiceField[Pool]):
    """A pool with its cluster."""

    def label_from_instance(self, obj: Any) -> str:
        """Return both names."""
        return f"{obj.cluster.name} / {obj.name}"


class SubmitForm(forms.Form):
    """A submission; the rules themselves are the service's."""

    name = forms.CharField(max_length=100_000, strip=True)
    tenant = forms.ModelChoiceField(Tenant.objects.none(), empty_label=None)
    pool = PoolChoice(Pool.objects.none(), label="Cluster and pool", empty_label=None)
    size = forms.IntegerField(
        initial=1, label="Members", help_text="A gang starts whole, or not at all."
    )
    gpus_per_member = forms.IntegerField(initial=1, label="GPUs per member")
    topology = forms.ChoiceField(choices=TOPOLOGIES, required=False, label="Placement")
    limit = DurationField(
        required=False,
        label="Time limit",
        help_text="Such as 4h. Past it the job is stopped; without one nothing can be promised behind it.",
    )
    priority_class = forms.ModelChoiceField(
        PriorityClass.objects.none(), required=False, label="Class", empty_label="default"
    )
    nice = forms.IntegerField(
        initial=0, required=False, help_text="Taken off its priority; below 0 it is added."
    )
    held = forms.BooleanField(required=False, label="Hold it at first")
    runtime = DurationField(
        required=False, label="Really takes", help_text="Empty: as long as its limit."
    )
    outcome = forms.ChoiceField(
        choices=[("succeeded", "succeeds"), ("failed", "fails")], required=False, label="Ends so"
    )
    checkpoint_every = DurationField(required=False, label="Checkpoint every")
    utilisation = forms.FloatField(
        required=False, initial=0.9, label="Utilisation", help_text="From 0 to 1."
    )
    key = forms.CharField(widget=forms.HiddenInput, max_length=64)

    BASICS = ("name", "tenant", "pool")
    SHAPE = ("size", "gpus_per_member", "topology", "limit")
    ORDER = ("priority_class", "nice")
    SIMULATED = ("runtime", "outcome", "checkpoint_every", "utilisation")
    # The service's names for what the form calls otherwise.
    FIELDS = {"cluster": "pool", "limit_seconds": "limit"}  # noqa: RUF012  as Django declares it

    def __init__(self, viewer: Viewer, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        tenants = Tenant.objects.filter(viewer.own(""), archived_at__isnull=True)
        pools = Pool.objects.filter(cluster__archived_at__isnull=True).select_related("cluster")
        self._choose("tenant", tenants.order_by("path"))
        self._choose("pool", pools.order_by("cluster__name", "name"))
        self._choose("priority_class", PriorityClass.objects.all())
        self.fields["key"].initial = uuid.uuid4().hex
        self.kinds = set(pools.values_list("cluster__kind", flat=True))
        for kind in sorted(self.kinds):
            for option in workload_fields(kind):
                self.fields[option.name] = field_of(option)

    def _choose(self, field: str, rows: Any) -> None:
        choice = self.fields[field]
        assert isinstance(choice, forms.ModelChoiceField)  # noqa: S101  declared above
        choice.queryset = rows

    def parts(self, names: tuple[str, ...]) -> list[forms.BoundField]:
        """Return some fields, for a template."""
        return [self[name] for name in names]

    def workloads(self) -> list[tuple[str, list[forms.BoundField]]]:
        """Return what is asked for by kind of cluster, under the kind's name."""
        asked = [(KINDS[kind].label, workload_fields(kind)) for kind in sorted(self.kinds)]
        return [
            (label, [self[field.name] for field in fields]) for label, fields in asked if fields
        ]

    def spec(self) -> JobSpec:
        """Return what the form asks of the service."""
        asked = self.cleaned_data
        pool: Pool = asked["pool"]
        names = [field.name for field in workload_fields(pool.cluster.kind)]
        if pool.cluster.kind == "simulator":
            names = list(self.SIMULATED)
        workload = {name: asked[name] for name in names if asked.get(name) not in (None, "")}
        return JobSpec(
            tenant=asked["tenant"],
            cluster=pool.cluster,
            pool=pool,
            name=asked["name"],
            size=asked["size"],
            gpus_per_member=asked["gpus_per_member"],
            topology=asked["topology"] or TopologyChoice.NONE,
            limit_seconds=asked["limit"],
            priority_class=asked["priority_class"],
            nice=asked["nice"] or 0,
            workload=workload,
            held=asked["held"],
        )

    def refuse(self, error: DomainError) -> None:
        """Put a service's refusal where its value was typed."""
        field = (error.field or "").removeprefix("workload.")
        field = self.FIELDS.get(field, field)
        self.add_error(field if field in self.fields and field != "key" else None, error.message)


class Submit(LoginRequiredMixin, View):
    """Submit one job."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Show the form; what a link names is filled in."""
        form = SubmitForm(viewer_of(request), initial=self._initial(request))
        return self._page(request, form)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Submit once, however often the form is sent."""
        form = SubmitForm(viewer_of(request), request.POST)
        if not form.is_valid():
            return self._page(request, form, status=422)
        spec = form.spec()
        user: Any = request.user
        try:
            if "preview" in request.POST:
                return self._previewed(request, form, spec)
            job, _ = submit_job(
                spec,
                by=user,
                now=spec.cluster.now(),
                idempotency_key=f"form-{form.cleaned_data['key']}",
            )
        except DomainError as error:
            if error.code == "idempotency_conflict":
                error = Invalid("This form was sent before with other values. Open it anew.")
            form.refuse(error)
            return self._page(request, form, status=422)
        request_tick(spec.cluster)
        messages.success(request, submitted_words(spec))
        if never := never_fits_of(spec):
            whose = f"the ceiling of {never.tenant}" if never.tenant else f"{spec.pool.name}"
            messages.warning(
                request,
                f"It never fits: needs {show.counted(never.needed, spec.pool.unit)}; {whose} has"
                f" {show.whole(never.most)} for such a gang.",
            )
        return redirect("console:job", job.pk)

    def _previewed(self, request: HttpRequest, form: SubmitForm, spec: JobSpec) -> HttpResponse:
        """Show what would come of it beside the form, which goes on as it was typed."""
        viewer = viewer_of(request)
        found = preview(spec, by=viewer.user, now=spec.cluster.now())
        panel = panel_of(found, viewer, money=sees_money(viewer), wall=timezone.now())
        return self._page(request, form, panel=panel)

    def _initial(self, request: HttpRequest) -> dict[str, Any]:
        names = [*SubmitForm.BASICS, *SubmitForm.SHAPE, *SubmitForm.ORDER, *SubmitForm.SIMULATED]
        names += [option.name for kind in KINDS for option in workload_fields(kind)]
        return {name: request.GET[name] for name in names if name in request.GET}

    def _page(
        self,
        request: HttpRequest,
        form: SubmitForm,
        status: int = 200,
        panel: Panel | None = None,
    ) -> HttpResponse:
        tenants, pools = form.fields["tenant"], form.fields["pool"]
        if not pools.queryset.exists():  # type: ignore[attr-defined]  # a ModelChoiceField
            return render(request, "console/empty.html", empty_installation(request))
        crumbs = (Crumb("Queue", reverse("console:queue")), Crumb("Submit a job"))
        context = {
            "page": PageInfo("submit", "Submit a job", "Submit a job", crumbs),
            "form": form,
            "panel": panel,
            "may": tenants.queryset.exists(),  # type: ignore[attr-defined]  # likewise
            "simulated": "simulator" in form.kinds,
            "basics": form.parts(form.BASICS),
            "shape": form.parts(form.SHAPE),
            "order": form.parts(form.ORDER),
            "simulation": form.parts(form.SIMULATED),
            "workloads": form.workloads(),
        }
        return render(request, "console/submit.html", context, status=status)


def submitted_words(spec: JobSpec) -> str:
    """Return what has been done."""
    name = show.cut(show.spoken(spec.name))
    return f"{name} is in line for {show.counted(spec.gpus, spec.pool.unit)} on {spec.cluster} / {spec.pool.name}."
