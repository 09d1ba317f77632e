"""A submission: what a body may ask, what it names, and what it is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from apps.accounts.models import User
from apps.api.endpoints import shared, visible_tenant
from apps.api.jobs_shown import JobShown
from apps.api.serializers import LARGEST_ID, Flag, Instant, Strict, Text, WholeNumber
from apps.backends.models import Cluster
from apps.common.errors import Invalid
from apps.jobs.models import Job, TopologyChoice
from apps.jobs.places import Place, find_place
from apps.jobs.selectors import NeverFits, jobs_visible_to
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
    " body answers with the same job; with another body it is refused (409). A dry run does not"
    " look at it.",
)
