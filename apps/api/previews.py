"""What a submission would come to, as the API tells it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework import serializers

from apps.accounts.models import User
from apps.api.evictions import Teller, exact
from apps.api.serializers import Query
from apps.api.submissions import WarningShown, warning_of
from apps.api.why import FACTS, AheadShown
from apps.engine import reasons
from apps.jobs.states import EvictionMode
from apps.scheduling.preview import Basis, Preview, Victim
from apps.scheduling.selectors import told_ahead


class DryRun(Query):
    """How a body that is posted is taken."""

    dry_run = serializers.BooleanField(
        default=False, help_text="Only say what would come of it; nothing is written."
    )


class VictimShown(serializers.Serializer[Any]):
    """Who would be asked to give way, as the caller may know it."""

    job = serializers.IntegerField(allow_null=True, help_text="null: another tenant's.")
    name = serializers.CharField()
    tenant = serializers.CharField()
    rule = serializers.CharField()
    mode = serializers.ChoiceField(choices=EvictionMode.choices)
    members = serializers.IntegerField(help_text="That leave.")
    gpus = serializers.IntegerField(help_text="That are given up.")
    leave_by = serializers.DateTimeField(help_text="Demoted: asked to leave from then on.")
    lost_gpu_hours = serializers.CharField(
        help_text="Were it killed now; a gang that shrinks loses nothing. Exact."
    )
    lost_money = serializers.CharField(
        allow_null=True, help_text="Likewise; null: no price, or not for you."
    )


class PreviewShown(serializers.Serializer[Any]):
    """What would come of a submission, were it made now."""

    dry_run = serializers.BooleanField(default=True)
    cluster = serializers.CharField()
    at = serializers.DateTimeField(help_text="The cluster's time of this decision.")
    observed_at = serializers.DateTimeField(
        allow_null=True, help_text="When the cluster was last looked at: it is decided on that."
    )
    would_start = serializers.BooleanField(help_text="By this decision, whole.")
    nodes = serializers.ListField(
        child=serializers.CharField(), help_text="Of each member, by rank; empty: it would wait."
    )
    code = serializers.CharField(help_text="Why it would wait, or starts.")
    sentence = serializers.CharField()
    needed = serializers.IntegerField(allow_null=True)
    available = serializers.IntegerField(allow_null=True)
    facts = serializers.DictField(help_text="What else the reason carries.")
    likely_start = serializers.DateTimeField(allow_null=True)
    basis = serializers.ChoiceField(
        choices=[(basis.value, basis.value) for basis in Basis],
        help_text="What the likely start stands on: this decision (now), that all victims have left"
        " (victims), or that all that runs and waits before it uses all of its limit (limits).",
    )
    position = serializers.IntegerField(help_text="1 is first on its cluster.")
    waiting = serializers.IntegerField(help_text="Jobs that wait there, this one counted.")
    ahead = AheadShown(many=True)
    ahead_count = serializers.IntegerField()
    evicts = VictimShown(many=True)
    currency = serializers.CharField()
    warnings = WarningShown(many=True)


def preview_shown(found: Preview, user: User) -> dict[str, Any]:
    """Return what ``PreviewShown`` shows, other tenants named as the caller may know them."""
    teller, facts = Teller(user), found.facts
    return {
        "dry_run": True,
        "cluster": found.job.cluster.name,
        "at": found.at,
        "observed_at": found.job.cluster.observed_at,
        "would_start": found.starts,
        "nodes": list(found.nodes),
        "code": facts["code"],
        "sentence": reasons.sentence(facts),
        "needed": facts.get("needed"),
        "available": facts.get("available"),
        "facts": {name: facts[name] for name in FACTS if name in facts},
        "likely_start": found.likely,
        "basis": found.basis.value,
        "position": found.position,
        "waiting": found.waiting,
        "ahead": told_ahead(found.ahead, user),
        "ahead_count": found.ahead_count,
        "evicts": [_victim(victim, teller) for victim in found.victims],
        "currency": settings.CURRENCY,
        "warnings": [] if found.never_fits is None else [warning_of(found.job, found.never_fits)],
    }


def _victim(victim: Victim, teller: Teller) -> dict[str, Any]:
    side = teller.side(victim.job, victim.job.attempt_number)
    told = teller.money and teller.tells_money(victim.job)
    price = victim.lost.money if told else None
    return {
        **{name: side[name] for name in ("job", "name", "tenant")},
        "rule": victim.rule,
        "mode": victim.mode,
        "members": victim.members,
        "gpus": victim.gpus,
        "leave_by": victim.leave_by,
        "lost_gpu_hours": exact(victim.lost.gpu_hours),
        "lost_money": None if price is None else exact(price),
    }
