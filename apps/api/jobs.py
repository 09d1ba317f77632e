"""Jobs: submit once, list, show, cancel, hold, release, and why one waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from django.db.models import Prefetch, QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import (
    Endpoint,
    caller,
    only_subtree,
    page_schema,
    paged,
    shared,
    visible_tenant,
)
from apps.api.errors import Forbidden, NotFound, shown
from apps.api.evictions import Confirmation, EvictionShown, of_job, told
from apps.api.serializers import LARGEST_ID, Flag, Instant, Paging, Strict, Text, WholeNumber
from apps.api.why import ExplainShown, why_of
from apps.backends.models import Cluster
from apps.backends.services import request_tick
from apps.common.errors import Invalid
from apps.jobs import evictions, services
from apps.jobs.models import Attempt, Job, Member, TopologyChoice
from apps.jobs.places import Place, find_place
from apps.jobs.selectors import NeverFits, jobs_visible_to, may_cancel, may_hold, never_fits
from apps.jobs.specs import (
    MOST_DEPENDENCIES,
    MOST_GPUS_PER_MEMBER,
    MOST_MEMBERS,
    MOST_NICE,
    MOST_RETRIES,
    NAME_LENGTH,
    TEN_YEARS,
    JobSpec,
)
from apps.jobs.states import WAITING, JobState

IDEMPOTENCY_KEY = "Idempotency-Key"
LONGEST_LIMIT = int(TEN_YEARS.total_seconds()) - 1


class Submission(Strict):
    """A gang to run."""

    name = Text(max_length=NAME_LENGTH)
    tenant = Text(max_length=400, help_text="Its path, as vision/perception.")
    cluster = Text(max_length=60)
    pool = Text(max_length=60)
    size = WholeNumber(min_value=1, max_value=MOST_MEMBERS, default=1, help_text="Members.")
    gpus_per_member = WholeNumber(min_value=1, max_value=MOST_GPUS_PER_MEMBER, default=1)
    min_size = WholeNumber(
        min_value=1, max_value=MOST_MEMBERS, required=False, allow_null=True, help_text="[size]"
    )
    topology = serializers.ChoiceField(choices=TopologyChoice.choices, default="none")
    limit_seconds = WholeNumber(
        min_value=1, max_value=LONGEST_LIMIT, required=False, allow_null=True, help_text="[none]"
    )
    priority_class = Text(max_length=60, required=False, allow_null=True, help_text="[normal]")
    nice = WholeNumber(min_value=-MOST_NICE, max_value=MOST_NICE, default=0)
    begin_at = Instant(required=False, allow_null=True)
    depends_on = serializers.ListField(
        child=WholeNumber(min_value=1, max_value=LARGEST_ID),
        max_length=MOST_DEPENDENCIES,
        default=list,
        help_text="Jobs that must have SUCCEEDED.",
    )
    workload = serializers.DictField(
        default=dict, help_text="What the cluster's kind understands; it refuses what it does not."
    )
    retry_limit = WholeNumber(min_value=0, max_value=MOST_RETRIES, default=0)
    held = Flag(default=False)


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


class HeldShown(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    by = serializers.CharField(allow_null=True)
    reason = serializers.CharField()


class WaitShown(serializers.Serializer[Any]):
    """Why it waits, as the newest tick said."""

    code = serializers.CharField()
    position = serializers.IntegerField(help_text="0 is first on its cluster.")
    needed = serializers.IntegerField(allow_null=True)
    available = serializers.IntegerField(allow_null=True)
    priority = serializers.FloatField()
    tick = serializers.IntegerField(source="tick_id")


class JobShown(serializers.Serializer[Any]):
    """A job as everyone who may see it sees it."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    tenant = serializers.CharField(source="tenant.path")
    cluster = serializers.CharField(source="cluster.name")
    pool = serializers.CharField(source="pool.name")
    size = serializers.IntegerField()
    min_size = serializers.IntegerField()
    gpus_per_member = serializers.IntegerField()
    gpus = serializers.IntegerField(help_text="Of the whole gang.")
    topology = serializers.ChoiceField(choices=TopologyChoice.choices)
    limit_seconds = serializers.IntegerField(allow_null=True)
    priority_class = serializers.CharField(source="priority_class.name")
    nice = serializers.IntegerField()
    begin_at = serializers.DateTimeField(allow_null=True)
    retry_limit = serializers.IntegerField()
    submitted_at = serializers.DateTimeField()
    submitted_by = serializers.SerializerMethodField()
    state = serializers.ChoiceField(choices=JobState.choices)
    state_since = serializers.DateTimeField()
    held = serializers.SerializerMethodField()
    waits = serializers.SerializerMethodField()
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    outcome = serializers.CharField(help_text="How it ended; empty: it has not.")
    attempt_number = serializers.IntegerField()
    retries_used = serializers.IntegerField()

    def get_submitted_by(self, job: Job) -> str | None:
        return None if job.submitted_by is None else job.submitted_by.username

    @extend_schema_field(HeldShown(allow_null=True))
    def get_held(self, job: Job) -> dict[str, Any] | None:
        if job.held_at is None:
            return None
        by = None if job.held_by is None else job.held_by.username
        return HeldShown({"at": job.held_at, "by": by, "reason": job.held_reason}).data

    @extend_schema_field(WaitShown(allow_null=True))
    def get_waits(self, job: Job) -> dict[str, Any] | None:
        verdict = getattr(job, "verdict", None) if job.state in WAITING else None
        return None if verdict is None else WaitShown(verdict).data


class AttemptShown(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    outcome = serializers.CharField()
    detail = serializers.CharField()
    last_checkpoint_at = serializers.DateTimeField(allow_null=True)
    nodes = serializers.SerializerMethodField(help_text="Of each member, by rank.")

    def get_nodes(self, attempt: Attempt) -> list[str]:
        return [member.node.name for member in attempt.members.all()]


class JobDetail(JobShown):
    """A job with all that is known of it."""

    depends_on = serializers.SerializerMethodField()
    workload = serializers.DictField()
    attempts = AttemptShown(many=True)
    evictions = EvictionShown(
        many=True, source="told_evictions", help_text="On either side; the newest 100."
    )

    def get_depends_on(self, job: Job) -> list[int]:
        return sorted(needed.pk for needed in job.depends_on.all())


class WarningShown(serializers.Serializer[Any]):
    """What is accepted, and will not do what it seems to ask."""

    code = serializers.ChoiceField(choices=["never_fits"])
    message = serializers.CharField()
    needed = serializers.IntegerField()
    most = serializers.IntegerField()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a submission gave."""

    job: Job
    created: bool
    depends_on: tuple[Job, ...]
    never_fits: NeverFits | None


class JustMade(JobShown):
    """A job that no tick has seen: what one said of it is not looked for."""

    def get_waits(self, job: Job) -> dict[str, Any] | None:
        return None


class Submitted(JobShown):
    """A job just submitted, or submitted before with the same key."""

    depends_on = serializers.ListField(child=serializers.IntegerField())
    workload = serializers.DictField()
    warnings = WarningShown(many=True)

    def to_representation(self, instance: Answer) -> dict[str, Any]:
        """Return the job, with what only its submission knows beside it."""
        job = instance.job
        return {
            **shared(JustMade if instance.created else JobShown).to_representation(job),
            "depends_on": sorted({needed.pk for needed in instance.depends_on}),
            "workload": job.workload,
            "warnings": []
            if instance.never_fits is None
            else [warning_of(job, instance.never_fits)],
        }


def warning_of(job: Job, problem: NeverFits) -> dict[str, Any]:
    """Return that a gang can never start, in code, numbers and words."""
    whose = f"the ceiling of {problem.tenant}" if problem.tenant else job.pool.name
    return {
        "code": "never_fits",
        "message": f"Never fits: needs {problem.needed} GPUs; {whose} could give at most"
        f" {problem.most} to a gang of this shape. Lower the size or ask for another pool.",
        "needed": problem.needed,
        "most": problem.most,
    }


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


def place_of(data: dict[str, Any], user: User) -> Place:
    """Return where a submission is to wait and run.

    :raises NotFound: if the caller sees no such tenant.
    :raises Invalid: naming the cluster or the pool.
    """
    place = find_place(
        user,
        tenant=data["tenant"],
        cluster=data["cluster"],
        pool=data["pool"],
        priority_class=data.get("priority_class"),
    )
    if place is not None:
        return place
    visible_tenant(user, data["tenant"])
    if not Cluster.objects.filter(name=data["cluster"], archived_at=None).exists():
        raise Invalid(f"There is no cluster {data['cluster']}.", field="cluster")
    raise Invalid(f"{data['cluster']} has no pool {data['pool']}.", field="pool")


def spec_of(data: dict[str, Any], place: Place, user: User) -> JobSpec:
    """Return what a body asks of a place, its other names resolved as far as the caller sees them.

    :raises Invalid: naming what there is not.
    """
    asked = set(data["depends_on"])
    needed = tuple(jobs_visible_to(user).filter(pk__in=asked)) if asked else ()
    if missing := sorted(asked - {job.pk for job in needed}):
        raise Invalid(f"There is no job {missing[0]}.", field="depends_on")
    asked_class = data.get("priority_class")
    if asked_class is not None and place.priority_class is None:
        raise Invalid(f"There is no priority class {asked_class}.", field="priority_class")
    rest = {
        "name",
        "size",
        "gpus_per_member",
        "topology",
        "nice",
        "workload",
        "retry_limit",
        "held",
    }
    return JobSpec(
        tenant=place.tenant,
        cluster=place.pool.cluster,
        pool=place.pool,
        priority_class=None if asked_class is None else place.priority_class,
        depends_on=needed,
        min_size=data.get("min_size"),
        limit_seconds=data.get("limit_seconds"),
        begin_at=data.get("begin_at"),
        **{field: data[field] for field in rest},
    )


KEY = OpenApiParameter(
    IDEMPOTENCY_KEY,
    location=OpenApiParameter.HEADER,
    description="1 to 120 printable ASCII characters, one tenant's. The same key with the same"
    " body answers with the same job; with another body it is refused (409).",
)


class Jobs(Endpoint):
    """Jobs of the tenants the caller sees."""

    lookup_value_regex = "[0-9]{1,18}"
    queries: ClassVar = {"list": JobFilter}

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
        summary="Submit a gang, once",
        parameters=[KEY],
        request=Submission,
        responses={201: Submitted, 200: Submitted},
    )
    def create(self, request: Request) -> Response:
        user = caller(request)
        data = self.read(Submission, request)
        place = place_of(data, user)
        spec = spec_of(data, place, user)
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
            never_fits=never_fits(
                tenant=spec.tenant,
                pool=spec.pool,
                size=job.size,
                gpus_per_member=job.gpus_per_member,
                topology=job.topology,
                ceiling=place.ceiling,
            ),
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
