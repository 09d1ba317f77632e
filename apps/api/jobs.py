"""Jobs: submit once, list, show, cancel, hold, release, and why one waits."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import Prefetch, QuerySet
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import Endpoint, caller, only_subtree, page_schema, paged, shared
from apps.api.errors import Forbidden, NotFound, shown
from apps.api.evictions import Confirmation, EvictionShown, of_job, told
from apps.api.jobs_shown import JobDetail, JobShown
from apps.api.previews import DryRun, PreviewShown, preview_shown
from apps.api.serializers import Paging, Strict, Text
from apps.api.submissions import (
    IDEMPOTENCY_KEY,
    KEY,
    Answer,
    Submission,
    Submitted,
    place_of,
    spec_of,
)
from apps.api.why import ExplainShown, why_of
from apps.backends.services import request_tick
from apps.jobs import evictions, services
from apps.jobs.models import Attempt, Job, Member
from apps.jobs.selectors import jobs_visible_to, may_cancel, may_hold, never_fits_of
from apps.jobs.specs import NAME_LENGTH
from apps.jobs.states import JobState
from apps.scheduling.preview import preview

SUBMITTED_OR_PREVIEWED = PolymorphicProxySerializer(
    component_name="SubmittedOrPreviewed",
    serializers=[Submitted, PreviewShown],
    resource_type_field_name=None,
)


class Reason(Strict):
    """A hold's or a cancellation's reason."""

    reason = Text(max_length=300, required=False, allow_blank=True, default="")


class Nothing(Strict):
    """A body that may be left out, and holds nothing."""


class JobFilter(Paging):
    """What narrows a list of jobs."""

    tenant = serializers.CharField(required=False, max_length=400, help_text="And all below it.")
    cluster = serializers.CharField(required=False, max_length=60)
    pool = serializers.CharField(required=False, max_length=60)
    state = serializers.ChoiceField(choices=JobState.choices, required=False)
    name = serializers.CharField(required=False, max_length=NAME_LENGTH, help_text="Exactly.")
    held = serializers.BooleanField(required=False)


def listed(user: User) -> QuerySet[Job]:
    """Return the jobs a user sees, with all a list shows of each: one query."""
    return jobs_visible_to(user).select_related(
        "tenant", "cluster", "pool", "priority_class", "submitted_by", "held_by", "verdict"
    )


def one_job(user: User, pk: str, rows: QuerySet[Job] | None = None) -> Job:
    """Return one job as a list shows it, out of these rows if given; one query.

    :raises NotFound: if there is none, or the caller may not know of it.
    """
    job = (listed(user) if rows is None else rows).filter(pk=pk).first()
    if job is None:
        raise NotFound(f"There is no job {shown(pk)}.")
    return job


def detailed(user: User, pk: str) -> Job:
    """Return one job with all that is known of it; six queries at most."""
    members = Member.objects.select_related("node").order_by("rank")
    attempts = Attempt.objects.order_by("number").prefetch_related(
        Prefetch("members", queryset=members)
    )
    rows = listed(user).prefetch_related("depends_on", Prefetch("attempts", queryset=attempts))
    job = one_job(user, pk, rows)
    job.told_evictions = of_job(job, user)  # type: ignore[attr-defined]  # JobDetail shows it
    return job


class Jobs(Endpoint):
    """Jobs of the tenants the caller sees."""

    lookup_value_regex = "[0-9]{1,18}"
    queries: ClassVar = {"list": JobFilter, "create": DryRun}

    @extend_schema(
        operation_id="list_jobs",
        summary="List jobs, the newest first",
        parameters=[JobFilter],
        responses=page_schema("JobPage", JobShown),
    )
    def list(self, request: Request) -> Response:
        rows = only_subtree(listed(caller(request)), caller(request), self.asked)
        columns = {
            "cluster": "cluster__name",
            "pool": "pool__name",
            "state": "state",
            "name": "name",
        }
        for field, column in columns.items():
            if field in self.asked:
                rows = rows.filter(**{column: self.asked[field]})
        if "held" in self.asked:
            rows = rows.filter(held_at__isnull=not self.asked["held"])
        return paged(request, rows, JobShown, self.asked, descending=True)

    @extend_schema(
        operation_id="submit_job",
        summary="Submit a gang, once; or, with dry_run, only see what would come of it",
        parameters=[KEY, DryRun],
        request=Submission,
        responses={201: Submitted, 200: SUBMITTED_OR_PREVIEWED},
    )
    def create(self, request: Request) -> Response:
        user = caller(request)
        data = self.read(Submission, request)
        place = place_of(data, user)
        spec = spec_of(data, place, user)
        if self.asked.get("dry_run"):
            found = preview(spec, by=user, now=spec.cluster.now(), place=place)
            return Response(PreviewShown(preview_shown(found, user)).data)
        job, created = services.submit_job(
            spec,
            by=user,
            now=spec.cluster.now(),
            idempotency_key=request.headers.get(IDEMPOTENCY_KEY),
            place=place,
        )
        if created:
            request_tick(spec.cluster)
        answer = Answer(
            job=job,
            created=created,
            depends_on=spec.depends_on,
            never_fits=never_fits_of(spec, ceiling=place.ceiling),
        )
        where = request.build_absolute_uri(f"/api/v1/jobs/{job.pk}")
        return Response(
            shared(Submitted).to_representation(answer),
            status=201 if created else 200,
            headers={"Location": where},
        )

    @extend_schema(operation_id="show_job", summary="Show a job", responses=JobDetail)
    def retrieve(self, request: Request, pk: str) -> Response:
        return Response(JobDetail(detailed(caller(request), pk)).data)

    @extend_schema(
        operation_id="cancel_job",
        summary="Cancel a job; safe to repeat",
        request=Reason,
        responses=JobDetail,
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        user, job = caller(request), detailed(caller(request), pk)
        reason = self.read(Reason, request)["reason"]
        if not may_cancel(user, job):
            raise Forbidden(f"Only its submitter or a lead of {job.tenant} may cancel job {pk}.")
        services.cancel_job(job, by=user, now=job.cluster.now(), reason=reason)
        return self._changed(job, user)

    @extend_schema(
        operation_id="hold_job",
        summary="Keep a job from starting; safe to repeat",
        request=Reason,
        responses=JobDetail,
    )
    @action(detail=True, methods=["post"])
    def hold(self, request: Request, pk: str) -> Response:
        user, job = caller(request), detailed(caller(request), pk)
        reason = self.read(Reason, request)["reason"]
        if not may_hold(user, job):
            raise Forbidden(f"Only a lead of {job.tenant} may hold job {pk}.")
        services.hold_job(job, by=user, now=job.cluster.now(), reason=reason)
        return self._changed(job, user)

    @extend_schema(
        operation_id="release_job",
        summary="Let a held job start; safe to repeat",
        request=Nothing,
        responses=JobDetail,
    )
    @action(detail=True, methods=["post"])
    def release(self, request: Request, pk: str) -> Response:
        user, job = caller(request), detailed(caller(request), pk)
        self.read(Nothing, request)
        if not may_hold(user, job):
            raise Forbidden(f"Only a lead of {job.tenant} may release job {pk}.")
        services.release_job(job, by=user, now=job.cluster.now())
        return self._changed(job, user)

    @extend_schema(
        operation_id="confirm_checkpoint",
        summary="Confirm that an attempt that leaves has saved its work; safe to repeat",
        request=Confirmation,
        responses=EvictionShown,
    )
    @action(detail=True, methods=["post"], url_path="confirm-checkpoint")
    def confirm_checkpoint(self, request: Request, pk: str) -> Response:
        user, job = caller(request), one_job(caller(request), pk)
        number = self.read(Confirmation, request)["attempt"]
        if not may_cancel(user, job):
            raise Forbidden(
                f"Only its submitter or a lead of {job.tenant} may confirm for job {pk}."
            )
        now = job.cluster.now()
        left = evictions.confirm_checkpoint(job, attempt_number=number, by=user, now=now)
        request_tick(job.cluster)
        return Response(EvictionShown(told(left, user)).data)

    @extend_schema(
        operation_id="explain_job",
        summary="Explain why a job waits",
        responses=ExplainShown,
    )
    @action(detail=True)
    def explain(self, request: Request, pk: str) -> Response:
        user = caller(request)
        return Response(ExplainShown(why_of(one_job(user, pk), user)).data)

    def _changed(self, job: Job, user: User) -> Response:
        request_tick(job.cluster)
        return Response(JobDetail(detailed(user, str(job.pk))).data)
