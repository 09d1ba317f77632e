"""Evictions: list and show who made way for whom, by which rule, and what was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from django.conf import settings
from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import Endpoint, caller, page_schema, paged, visible_tenant
from apps.api.errors import NotFound, shown
from apps.api.serializers import LARGEST_ID, Instant, Paging, Strict, WholeNumber
from apps.api.usage import sees_money
from apps.common import show
from apps.common.errors import Invalid
from apps.common.money import round_half_up, scaled
from apps.engine.preemption import RULES
from apps.jobs.eviction_facts import (
    OUTCOMES,
    candidates_of,
    evictions_visible_to,
    loss_of,
    of_outcome,
    of_tenant,
    stood,
    team_told,
    tenants_in,
    with_sides,
)
from apps.jobs.eviction_words import happened, passed_words, what_it_cost
from apps.jobs.models import Eviction, Job
from apps.jobs.selectors import told_of
from apps.jobs.states import EvictionMode
from apps.tenants.selectors import Sight, sight_of

MOST_OF_A_JOB = 100


class Confirmation(Strict):
    """Which attempt has saved its work."""

    attempt = WholeNumber(min_value=1, max_value=2**31 - 1, help_text="Its number.")


class EvictionFilter(Paging):
    """What narrows a list of evictions; tenant and job may be on either side."""

    cluster = serializers.CharField(required=False, max_length=60)
    pool = serializers.CharField(required=False, max_length=60)
    tenant = serializers.CharField(required=False, max_length=400, help_text="And all below it.")
    job = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_ID)
    rule = serializers.ChoiceField(required=False, choices=[name for name in RULES])
    mode = serializers.ChoiceField(required=False, choices=EvictionMode.choices)
    outcome = serializers.ChoiceField(required=False, choices=[(name, name) for name in OUTCOMES])
    since = Instant(required=False, help_text="Decided then or later.")
    until = Instant(required=False, help_text="Decided before.")


class SideShown(serializers.Serializer[Any]):
    """The job of one side, as the caller may know it (another tenant's has no id)."""

    job = serializers.IntegerField(allow_null=True)
    name = serializers.CharField()
    tenant = serializers.CharField()
    attempt = serializers.IntegerField(allow_null=True)
    gpus = serializers.IntegerField(help_text="Of the whole gang.")


class StoodShown(serializers.Serializer[Any]):
    """Where a side's tenant stood at the decision; GPUs are of the pool."""

    tenant = serializers.CharField()
    share = serializers.FloatField(allow_null=True)
    usage_share = serializers.FloatField(allow_null=True)
    level = serializers.FloatField(allow_null=True, help_text="null: no usage, or weight 0.")
    guarantee = serializers.IntegerField(allow_null=True)
    ceiling = serializers.IntegerField(allow_null=True)
    entitlement = serializers.IntegerField(allow_null=True)
    used_before = serializers.IntegerField(allow_null=True, source="before")
    used_after = serializers.IntegerField(allow_null=True, source="after")
    borrowed = serializers.IntegerField(allow_null=True)
    over_quota = serializers.IntegerField(allow_null=True)


class StandingsShown(serializers.Serializer[Any]):
    victim = StoodShown(allow_null=True)
    beneficiary = StoodShown(allow_null=True)


class CandidateShown(serializers.Serializer[Any]):
    """A job that was looked at, in order, and why it was passed over."""

    place = serializers.IntegerField()
    job = serializers.IntegerField(allow_null=True)
    name = serializers.CharField()
    gpus = serializers.IntegerField()
    lost_gpu_hours = serializers.CharField(
        allow_null=True, help_text="Were it killed at the decision."
    )
    passed = serializers.CharField()
    why = serializers.CharField()


class EvictionShown(serializers.Serializer[Any]):
    """One eviction, as the caller may know it."""

    id = serializers.IntegerField()
    cluster = serializers.CharField()
    pool = serializers.CharField()
    tick = serializers.IntegerField()
    rule = serializers.CharField()
    mode = serializers.ChoiceField(choices=EvictionMode.choices)
    outcome = serializers.ChoiceField(choices=[(name, name) for name in OUTCOMES])
    sentence = serializers.CharField()
    at = serializers.DateTimeField(help_text="When it was decided.")
    asked_at = serializers.DateTimeField(allow_null=True)
    leave_by = serializers.DateTimeField()
    confirmed_at = serializers.DateTimeField(allow_null=True)
    unneeded_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    victim = SideShown()
    beneficiary = SideShown()
    members = serializers.IntegerField(help_text="That leave.")
    gpus = serializers.IntegerField(help_text="That are given up.")
    lost_gpu_hours = serializers.CharField(allow_null=True, help_text="Exact; null: not known yet.")
    lost_money = serializers.CharField(
        allow_null=True, help_text="Exact; null: not known yet, no price, or not for you."
    )
    currency = serializers.CharField()
    within_hour = serializers.IntegerField(
        help_text="Evictions of the victim within an hour, this one counted."
    )
    thrashes = serializers.BooleanField()
    standings = StandingsShown()


class EvictionDetail(EvictionShown):
    """One eviction with the candidates that were considered for it."""

    considered = CandidateShown(many=True)
    considered_counts = serializers.SerializerMethodField(help_text="By code.")

    @extend_schema_field(serializers.DictField(child=serializers.IntegerField()))
    def get_considered_counts(self, told: dict[str, Any]) -> dict[str, int]:
        return dict(Counter(row["passed"] for row in told["considered"]))


def exact(value: Any) -> str:
    """Write an exact amount, to nine decimals."""
    return str(scaled(round_half_up(value, 9), 9))


class Teller:
    """What may be told of evictions to one user."""

    def __init__(self, user: User) -> None:
        self.sight: Sight = sight_of(user)
        self.money = sees_money(user)

    def all(self, evictions: Sequence[Eviction]) -> list[dict[str, Any]]:
        """Return evictions as ``EvictionShown`` shows them; one query for their tenants."""
        paths = tenants_in(evictions)
        return [self.one(eviction, paths) for eviction in evictions]

    def detail(self, eviction: Eviction) -> dict[str, Any]:
        """Return an eviction as ``EvictionDetail`` shows it."""
        (told,) = self.all([eviction])
        candidates = [
            {
                "place": one.place,
                "job": None if one.job is None else one.job.pk,
                "name": one.name,
                "gpus": one.gpus,
                "lost_gpu_hours": None if one.lost is None else exact(one.lost),
                "passed": one.passed,
                "why": passed_words(one.passed),
            }
            for one in candidates_of(eviction, self.sight)
        ]
        return {**told, "considered": candidates}

    def one(self, eviction: Eviction, paths: dict[int, str]) -> dict[str, Any]:
        """Return one eviction; ``paths`` are of the tenants in its standings."""
        loss = loss_of(eviction)
        money = self.money and self.tells_money(eviction.job)
        told = {
            name: getattr(eviction, name)
            for name in (
                "id", "rule", "mode", "at", "asked_at", "leave_by", "confirmed_at", "unneeded_at",
                "ended_at", "members", "gpus", "within_hour", "thrashes",
            )
        }  # fmt: skip
        price = loss.money if loss is not None and money else None
        return {
            **told,
            "cluster": eviction.cluster.name,
            "pool": eviction.job.pool.name,
            "tick": eviction.tick_id,
            "outcome": eviction.outcome or OUTCOMES[0],
            "sentence": self.sentence(eviction, paths, money=money),
            "victim": self.side(eviction.job, eviction.attempt.number),
            "beneficiary": self.side(eviction.beneficiary, eviction.beneficiary_attempt),
            "lost_gpu_hours": None if loss is None else exact(loss.gpu_hours),
            "lost_money": None if price is None else exact(price),
            "currency": settings.CURRENCY,
            "standings": {
                name: self.stood(eviction, name, paths) for name in ("victim", "beneficiary")
            },
        }

    def tells_money(self, victim: Job) -> bool:
        """Return whether the loss is the caller's to know: what others lost is told in GPU-hours."""
        named = settings.OTHER_TENANTS == "named"
        return named or self.sight.covers(victim.tenant.path)

    def side(self, job: Job, attempt: int) -> dict[str, Any]:
        """Return the job of one side."""
        own = self.sight.covers(job.tenant.path)
        return {
            "job": job.pk if own else None,
            "name": told_of(self.sight, job),
            "tenant": team_told(self.sight, job.tenant.path),
            "attempt": attempt if own else None,
            "gpus": job.gpus,
        }

    def stood(self, eviction: Eviction, side: str, paths: dict[int, str]) -> dict[str, Any] | None:
        """Return where the tenant of one side stood."""
        found = stood(eviction, side)
        if found is None or found.tenant_id not in paths:
            return None
        figures = {name: getattr(found, name) for name in found.__slots__ if name != "tenant_id"}
        return {"tenant": team_told(self.sight, paths[found.tenant_id]), **figures}

    def sentence(self, eviction: Eviction, paths: dict[int, str], *, money: bool) -> str:
        """Return what happened and what it cost, in the words of the page."""
        found = stood(eviction, "victim")
        known = found is not None and found.tenant_id in paths
        team = paths[found.tenant_id] if found is not None and known else eviction.job.tenant.path
        said = happened(eviction, found if known else None)
        cost = what_it_cost(eviction, loss_of(eviction), show.iso, money=money)
        return f"{said} {cost}".format(
            victim=told_of(self.sight, eviction.job),
            beneficiary=told_of(self.sight, eviction.beneficiary),
            team=team_told(self.sight, team),
        )


def of_job(job: Job, user: User) -> list[dict[str, Any]]:
    """Return the newest evictions of a job on either side; two queries at most."""
    rows = with_sides(Eviction.objects.filter(Q(job=job) | Q(beneficiary=job)))
    return Teller(user).all(list(rows.order_by("-id")[:MOST_OF_A_JOB]))


def told(eviction: Eviction, user: User) -> dict[str, Any]:
    """Return one eviction that was just changed, with all that an answer shows."""
    (row,) = Teller(user).all(list(with_sides(Eviction.objects.filter(pk=eviction.pk))))
    return row


class Evictions(Endpoint):
    """Evictions with a side in a tenant the caller sees."""

    lookup_value_regex = "[0-9]{1,18}"
    queries: ClassVar = {"list": EvictionFilter}

    @extend_schema(
        operation_id="list_evictions",
        summary="List evictions, the newest first",
        parameters=[EvictionFilter],
        responses=page_schema("EvictionPage", EvictionShown),
    )
    def list(self, request: Request) -> Response:
        user = caller(request)
        rows = self._narrowed(with_sides(evictions_visible_to(user)), user)
        return paged(
            request, rows, EvictionShown, self.asked, descending=True, prepare=Teller(user).all
        )

    @extend_schema(
        operation_id="show_eviction", summary="Show an eviction", responses=EvictionDetail
    )
    def retrieve(self, request: Request, pk: str) -> Response:
        user = caller(request)
        eviction = with_sides(evictions_visible_to(user)).filter(pk=pk).first()
        if eviction is None:
            raise NotFound(f"There is no eviction {shown(pk)}.")
        return Response(EvictionDetail(Teller(user).detail(eviction)).data)

    def _narrowed(self, rows: QuerySet[Eviction], user: User) -> QuerySet[Eviction]:
        asked = self.asked
        if "since" in asked and "until" in asked and asked["since"] >= asked["until"]:
            raise Invalid("since must be before until.", field="since")
        columns = {
            "cluster": "cluster__name", "pool": "job__pool__name", "rule": "rule", "mode": "mode",
            "since": "at__gte", "until": "at__lt",
        }  # fmt: skip
        rows = rows.filter(**{columns[name]: asked[name] for name in columns if name in asked})
        if "tenant" in asked:
            rows = rows.filter(of_tenant(visible_tenant(user, asked["tenant"]).path))
        if "job" in asked:
            # Of another team's job nothing is told, and so is no way to find it either.
            mine = (
                sight_of(user).condition("job__tenant__"),
                sight_of(user).condition("beneficiary__tenant__"),
            )
            rows = rows.filter(Q(mine[0], job=asked["job"]) | Q(mine[1], beneficiary=asked["job"]))
        if "outcome" in asked:
            rows = rows.filter(of_outcome(asked["outcome"]))
        return rows
