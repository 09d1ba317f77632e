"""Why a job waits, as the API tells it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.accounts.models import User
from apps.jobs.models import Job
from apps.jobs.states import WAITING, JobState
from apps.scheduling.own_lines import on_cluster
from apps.scheduling.selectors import explain


class TermShown(serializers.Serializer[Any]):
    name = serializers.CharField()
    factor = serializers.FloatField(allow_null=True)
    weight = serializers.FloatField(allow_null=True)
    value = serializers.FloatField(help_text="The values add up to the priority.")


class GateShown(serializers.Serializer[Any]):
    gate = serializers.CharField()
    ok = serializers.BooleanField()
    needs = serializers.IntegerField(allow_null=True)
    available = serializers.IntegerField(allow_null=True)
    note = serializers.CharField()


class AheadShown(serializers.Serializer[Any]):
    place = serializers.IntegerField()
    id = serializers.IntegerField(allow_null=True, help_text="null: another tenant's.")
    name = serializers.CharField()
    gpus = serializers.IntegerField()
    note = serializers.CharField()


class SiblingShown(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    share = serializers.FloatField()
    usage_share = serializers.FloatField()
    ratio = serializers.FloatField(allow_null=True, help_text="usage_share / share.")
    mine = serializers.BooleanField()


class WhyShown(serializers.Serializer[Any]):
    """Why a job waits, as its newest tick judged; other tenants as DOMAIN 22 lets them be seen."""

    tick = serializers.IntegerField(source="tick_id")
    at = serializers.DateTimeField(allow_null=True)
    code = serializers.CharField()
    sentence = serializers.CharField()
    facts = serializers.DictField(help_text="What the code carries: tenant, for, until, most, …")
    needed = serializers.IntegerField(allow_null=True)
    available = serializers.IntegerField(allow_null=True)
    priority = serializers.FloatField()
    position = serializers.IntegerField(help_text="1 is first on its cluster.")
    forecast = serializers.DateTimeField(allow_null=True)
    gates = GateShown(many=True)
    terms = TermShown(many=True)
    ahead = AheadShown(many=True)
    ahead_count = serializers.IntegerField()
    standings = SiblingShown(many=True)


class TermBesideShown(serializers.Serializer[Any]):
    name = serializers.CharField(
        help_text="As in terms; job_size, association, site: theirs alone."
    )
    ours = serializers.FloatField(allow_null=True)
    theirs = serializers.FloatField()
    difference = serializers.FloatField(allow_null=True, help_text="ours - theirs.")


class OnClusterShown(serializers.Serializer[Any]):
    """What the cluster's own scheduler has of a job that waits there; asked once a minute."""

    read_at = serializers.DateTimeField(allow_null=True)
    trouble = serializers.CharField(help_text="Why it could not be asked since; empty: it could.")
    no_terms = serializers.CharField(help_text="Why it told no priority; empty: it did.")
    priority = TermBesideShown(allow_null=True)
    terms = TermBesideShown(many=True)
    planned_at = serializers.DateTimeField(allow_null=True, help_text="When it would start it.")
    planned_nodes = serializers.CharField(help_text="Where, as the cluster spells it.")


class ExplainShown(serializers.Serializer[Any]):
    """A job's state, and why it waits if it does."""

    job = serializers.IntegerField()
    state = serializers.ChoiceField(choices=JobState.choices)
    why = WhyShown(allow_null=True, help_text="null: it does not wait, or no tick saw it yet.")
    on_cluster = OnClusterShown(
        allow_null=True, help_text="null: it does not wait there, or the cluster does not tell."
    )


FACTS = ("tenant", "for", "for_id", "jobs", "until", "most", "domain", "who", "since", "what")


def why_of(job: Job, user: User) -> dict[str, Any]:
    """Return what ``ExplainShown`` shows of a job."""
    why = explain(job, user) if job.state in WAITING else None
    if why is not None:
        why["facts"] = {name: why[name] for name in FACTS if name in why}
    terms = why["terms"] if why is not None else ()
    theirs = on_cluster(job, terms, why["priority"] if why is not None else None)
    return {"job": job.pk, "state": job.state, "why": why, "on_cluster": theirs}
