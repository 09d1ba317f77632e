"""A cluster's own accounts beside ours, as the API shows them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.serializers import Strict, Text
from apps.quotas.accounts import KEEP
from apps.quotas.models import ValueState, What


class NumbersShown(serializers.Serializer[Any]):
    """Where one side sees an account among those beside it."""

    share = serializers.FloatField(allow_null=True, help_text="NormShares.")
    usage_share = serializers.FloatField(allow_null=True, help_text="EffectvUsage.")
    level = serializers.FloatField(
        allow_null=True, help_text="LevelFS; null: infinite, as there is no usage, or not known."
    )
    factor = serializers.FloatField(
        allow_null=True, help_text="FairShare, theirs the best of the account's users."
    )


class AccountValueShown(serializers.Serializer[Any]):
    """An account's shares, its limit of GPUs, or the guarantee that is noted there of a pool."""

    what = serializers.ChoiceField(choices=What.choices)
    pool = serializers.CharField(allow_null=True, help_text="Of a guarantee; else null.")
    theirs = serializers.IntegerField(
        allow_null=True,
        help_text="As the cluster has it; null: no limit, no guarantee, or the parent's shares.",
    )
    ours = serializers.IntegerField(
        allow_null=True, help_text="As wanted here; null: nothing is, or none is."
    )
    state = serializers.ChoiceField(choices=ValueState.choices)
    since = serializers.DateTimeField(allow_null=True)
    sentence = serializers.CharField()


class AccountUserShown(serializers.Serializer[Any]):
    """A user of an account, as the cluster has it."""

    name = serializers.CharField()
    shares = serializers.IntegerField(allow_null=True, help_text="null: the account's count.")
    gpu_limit = serializers.IntegerField(
        allow_null=True, help_text="GrpTRES, of all their jobs in it together; null: none."
    )
    gpus_per_job = serializers.IntegerField(allow_null=True, help_text="MaxTRES; null: no limit.")
    raw_usage = serializers.FloatField(allow_null=True)
    norm_shares = serializers.FloatField(allow_null=True)
    effective_usage = serializers.FloatField(allow_null=True)
    fair_share = serializers.FloatField(allow_null=True)


class QosShown(serializers.Serializer[Any]):
    """A QOS: by what the cluster itself ranks, limits and evicts."""

    name = serializers.CharField()
    priority = serializers.IntegerField()
    flags = serializers.ListField(child=serializers.CharField())
    preempts = serializers.ListField(
        child=serializers.CharField(), help_text="The QOS whose jobs its own may evict."
    )
    preempt_mode = serializers.CharField(help_text="cluster: as the cluster has it.")
    grace_seconds = serializers.IntegerField()
    together = serializers.CharField(help_text="GrpTRES: of all its jobs; empty: no limit.")
    per_user = serializers.CharField(help_text="MaxTRESPU: of one user's jobs; empty: no limit.")
    per_job = serializers.CharField(help_text="MaxTRESPerJob: of one job; empty: no limit.")
    longest_seconds = serializers.IntegerField(allow_null=True, help_text="MaxWall; null: none.")


class AccountShown(serializers.Serializer[Any]):
    """An account, the tenant it stands for, and both sides' numbers."""

    name = serializers.CharField()
    parent = serializers.CharField(  # type: ignore[assignment]  # DRF takes it off the class
        help_text="Empty at the top."
    )
    tenant = serializers.CharField(allow_null=True, help_text="null: it is no tenant's yet.")
    users = serializers.IntegerField(help_text="How many are right in it.")
    people = AccountUserShown(many=True, help_text="They, the most usage first.")
    people_left = serializers.IntegerField(
        help_text="How many of the least usage are left out, as people has at most 500."
    )
    seen_at = serializers.DateTimeField()
    raw_usage = serializers.FloatField(allow_null=True)
    state = serializers.ChoiceField(
        choices=ValueState.choices, help_text="The worst of its values'."
    )
    theirs = NumbersShown()
    ours = NumbersShown()
    difference = NumbersShown(help_text="Ours less theirs; null where one is not known.")
    values = AccountValueShown(many=True)


class AccountsShown(serializers.Serializer[Any]):
    """A cluster's accounts as last read; an admin sees all, others their tenants'."""

    cluster = serializers.CharField()
    read_at = serializers.DateTimeField(allow_null=True, help_text="null: they never were.")
    trouble = serializers.CharField(help_text="Why they could not be read just now; or empty.")
    accounts = AccountShown(many=True)
    qos = QosShown(many=True, help_text="The highest priority first; everybody is shown all.")


class SettledAsked(Strict):
    """What becomes of an account that is not there as it is wanted here."""

    account = Text(max_length=255)
    keep = serializers.ChoiceField(
        choices=KEEP, help_text="ours: written again; theirs: taken as it is."
    )
    reason = Text(max_length=300)
