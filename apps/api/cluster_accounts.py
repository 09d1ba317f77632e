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


class AccountShown(serializers.Serializer[Any]):
    """An account, the tenant it stands for, and both sides' numbers."""

    name = serializers.CharField()
    parent = serializers.CharField(  # type: ignore[assignment]  # DRF takes it off the class
        help_text="Empty at the top."
    )
    tenant = serializers.CharField(allow_null=True, help_text="null: it is no tenant's yet.")
    users = serializers.IntegerField(help_text="Those right in it.")
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


class SettledAsked(Strict):
    """What becomes of an account that is not there as it is wanted here."""

    account = Text(max_length=255)
    keep = serializers.ChoiceField(
        choices=KEEP, help_text="ours: written again; theirs: taken as it is."
    )
    reason = Text(max_length=300)
