"""Jobs as the API shows them: in a list, and with all that is known of one."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.api.evictions import EvictionShown
from apps.jobs.models import Attempt, Job, TopologyChoice
from apps.jobs.states import WAITING, JobState
from apps.scheduling.advised import nice_of


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
    foreign_ref = serializers.CharField(
        help_text="What the cluster calls a job that was submitted to it, not here; empty: ours."
    )
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


class AdvisedShown(serializers.Serializer[Any]):
    """The nice that a job of the cluster's own line was given, so that it follows our order."""

    nice = serializers.IntegerField(source="asked")
    original = serializers.IntegerField(help_text="What it had before; it has it back in the end.")
    at = serializers.DateTimeField(source="asked_at")
    by_hand_at = serializers.DateTimeField(
        allow_null=True, help_text="Since when it is left alone, as somebody changed it there."
    )


class JobDetail(JobShown):
    """A job with all that is known of it."""

    advised = serializers.SerializerMethodField(help_text="null: it was given none.")

    depends_on = serializers.SerializerMethodField()
    workload = serializers.DictField()
    attempts = AttemptShown(many=True)
    evictions = EvictionShown(
        many=True, source="told_evictions", help_text="On either side; the newest 100."
    )

    @extend_schema_field(AdvisedShown(allow_null=True))
    def get_advised(self, job: Job) -> dict[str, Any] | None:
        nice = nice_of(job) if job.foreign_ref and job.state in WAITING else None
        return None if nice is None else AdvisedShown(nice).data

    def get_depends_on(self, job: Job) -> list[int]:
        return sorted(needed.pk for needed in job.depends_on.all())
