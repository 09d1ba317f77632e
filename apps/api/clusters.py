"""Clusters as they were last seen, with their pools and the policy in force."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, ClassVar

from django.db.models import Count, F, Sum
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.cluster_accounts import AccountsShown, SettledAsked
from apps.api.endpoints import (
    Endpoint,
    Paging,
    admins_only,
    caller,
    known_cluster,
    page_schema,
    paged,
    token_of,
)
from apps.api.errors import NotFound, shown
from apps.api.serializers import Flag, Strict, Text, WholeNumber
from apps.backends import services
from apps.backends.kinds import KINDS, preflight
from apps.backends.models import Cluster, Grade, Node, NodeState
from apps.backends.pace import looks_every
from apps.backends.port import FINDING_STATES
from apps.backends.selectors import clusters_in_use, pools_of
from apps.jobs.models import Job
from apps.jobs.states import HOLDING
from apps.queues.models import ClusterPolicy
from apps.queues.selectors import policy_of
from apps.quotas.account_users import qos_of
from apps.quotas.accounts import settle_account
from apps.quotas.models import Account, AccountsLook
from apps.scheduling.account_rows import account_rows, accounts_visible_to
from apps.scheduling.advised import given_to
from apps.tenants.selectors import is_admin


class ClusterShown(serializers.Serializer[Any]):
    """A cluster, and when it was last seen."""

    name = serializers.CharField()
    kind = serializers.CharField()
    grade = serializers.CharField(help_text="observe, advise or drive.")
    now = serializers.DateTimeField(help_text="Its clock: wall time, or a virtual one.")
    virtual = serializers.SerializerMethodField(help_text="Whether its clock is a virtual one.")
    first_look_at = serializers.DateTimeField(allow_null=True)
    observed_at = serializers.DateTimeField(allow_null=True)
    in_trouble = serializers.SerializerMethodField(help_text="Whether its last tick failed.")
    looks_every_seconds = serializers.SerializerMethodField(
        help_text="As things stand: seldom while it is slow, or looks fail."
    )

    def get_virtual(self, cluster: Cluster) -> bool:
        return cluster.clock_now is not None

    def get_looks_every_seconds(self, cluster: Cluster) -> float:
        return looks_every(cluster)

    def get_in_trouble(self, cluster: Cluster) -> bool:
        return bool(cluster.trouble)


class FractionShown(serializers.Serializer[Any]):
    """What part of a physical GPU one unit of a pool is."""

    numerator = serializers.IntegerField(source="fraction_numerator")
    denominator = serializers.IntegerField(source="fraction_denominator")


class PoolShown(serializers.Serializer[Any]):
    """The GPUs of one kind, in the pool's own unit, as last seen."""

    name = serializers.CharField()
    fraction = FractionShown(source="*")
    usage_weight = serializers.FloatField()
    nodes = serializers.IntegerField()
    gpus = serializers.IntegerField(help_text="Of all nodes, up or not.")
    up = serializers.IntegerField()
    drained = serializers.IntegerField()
    down = serializers.IntegerField()
    foreign = serializers.IntegerField(help_text="Used by work that is not Rollcall's.")
    used = serializers.IntegerField(help_text="Held by jobs that are admitted or run.")


class PolicyShown(serializers.ModelSerializer[ClusterPolicy]):
    """How a cluster decides; null durations mean none."""

    class Meta:
        model = ClusterPolicy
        exclude: ClassVar = ["id", "cluster"]


class AdviceShown(serializers.Serializer[Any]):
    """What came of giving a cluster our order of its own line."""

    jobs = serializers.IntegerField(help_text="Waiting jobs with a nice that Rollcall set.")
    by_hand = serializers.IntegerField(
        help_text="Those left alone, as somebody changed their nice or priority after that."
    )
    given_at = serializers.DateTimeField(allow_null=True, help_text="When one was last set.")
    trouble = serializers.CharField(help_text="Why the last try failed, for admins; or empty.")


class ClusterDetail(ClusterShown):
    """A cluster with its pools and its policy."""

    advice = AdviceShown(
        source="advice_given", allow_null=True, help_text="null: it is not in grade advise."
    )

    pools = PoolShown(many=True, source="pools_seen")
    policy = PolicyShown(source="policy_in_force")


class Addition(Strict):
    """A cluster to add; it starts in grade observe."""

    name = Text(max_length=60)
    kind = serializers.ChoiceField(choices=sorted(KINDS))
    options = serializers.DictField(
        required=False, default=dict, help_text="What its kind needs to reach it."
    )
    tick_seconds = WholeNumber(
        required=False, min_value=1, max_value=86_400, help_text="[what its kind takes]"
    )


class Alteration(Strict):
    """How a cluster is reached from now on; what is left out stays."""

    options = serializers.DictField(
        required=False, help_text="All of them, not only the new; a secret that is empty stays."
    )
    tick_seconds = WholeNumber(required=False, min_value=1, max_value=86_400)
    reason = Text(max_length=300)


class GradeChange(Strict):
    """How far a cluster is to be controlled."""

    grade = serializers.ChoiceField(choices=Grade.choices)
    reason = Text(max_length=300)
    anyway = Flag(
        required=False,
        default=False,
        help_text="Drive it though the preflight found things missing.",
    )


class FindingShown(serializers.Serializer[Any]):
    """One thing that was checked."""

    name = serializers.CharField()
    state = serializers.ChoiceField(choices=FINDING_STATES)
    sentence = serializers.CharField()
    command = serializers.CharField(
        help_text="What grants it, typed by the cluster's operator; or empty."
    )


class PreflightShown(serializers.Serializer[Any]):
    """What works on a cluster and what does not, asked of it just now."""

    cluster = serializers.CharField()
    at = serializers.DateTimeField()
    findings = FindingShown(many=True)


def pools_seen(cluster: Cluster) -> list[dict[str, Any]]:
    """Return a cluster's pools with what their nodes and jobs hold; three queries."""
    nodes: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    rows = Node.objects.filter(cluster=cluster, gone_at=None).order_by()
    for pool_id, state, count, gpus, foreign in rows.values_list("pool_id", "state").annotate(
        Count("pk"), Sum("gpus"), Sum("foreign_gpus")
    ):
        nodes[pool_id][state] += gpus
        nodes[pool_id]["gpus"] += gpus
        nodes[pool_id]["nodes"] += count
        nodes[pool_id]["foreign"] += foreign
    holding = Job.objects.filter(cluster=cluster, state__in=sorted(HOLDING)).order_by()
    gang = F("size") * F("gpus_per_member")
    used = dict(holding.values_list("pool_id").annotate(sum=Sum(gang)))
    numbers = ("nodes", "gpus", NodeState.UP, NodeState.DRAINED, NodeState.DOWN, "foreign")
    return [
        {
            "name": pool.name,
            "fraction_numerator": pool.fraction_numerator,
            "fraction_denominator": pool.fraction_denominator,
            "usage_weight": pool.usage_weight,
            "used": used.get(pool.pk, 0),
            **{str(number): nodes[pool.pk][number] for number in numbers},
        }
        for pool in pools_of(cluster)
    ]


class Clusters(Endpoint):
    """Clusters in use; whoever is logged in may know of them."""

    lookup_field = "name"
    lookup_value_regex = "[^/]+"
    queries: ClassVar = {"list": Paging}

    @extend_schema(
        operation_id="list_clusters",
        summary="List clusters",
        parameters=[Paging],
        responses=page_schema("ClusterPage", ClusterShown),
    )
    def list(self, request: Request) -> Response:
        return paged(request, clusters_in_use(), ClusterShown, self.asked)

    @extend_schema(
        operation_id="show_cluster",
        summary="Show a cluster, its pools and its policy",
        responses=ClusterDetail,
    )
    def retrieve(self, request: Request, name: str) -> Response:
        return self._shown(known_cluster(name), caller(request))

    @extend_schema(
        operation_id="add_cluster",
        summary="Add a cluster, which is only watched at first; admins only",
        request=Addition,
        responses={201: ClusterDetail},
    )
    def create(self, request: Request) -> Response:
        admins_only(caller(request), "add a cluster")
        asked = self.read(Addition, request)
        cluster = services.add_cluster(
            asked["name"],
            kind=asked["kind"],
            options=asked["options"],
            tick_seconds=asked.get("tick_seconds", KINDS[asked["kind"]].tick_seconds),
            now=timezone.now(),
            by=caller(request),
            token_name=token_of(request),
        )
        services.request_tick(cluster)
        return self._shown(cluster, caller(request), status=201)

    @extend_schema(
        operation_id="change_cluster",
        summary="Change how a cluster is reached; admins only",
        request=Alteration,
        responses=ClusterDetail,
    )
    def partial_update(self, request: Request, name: str) -> Response:
        cluster = known_cluster(name)
        admins_only(caller(request), f"change {cluster}")
        asked = self.read(Alteration, request)
        return self._changed(cluster, request, **asked)

    @extend_schema(
        operation_id="grade_cluster",
        summary="Only watch a cluster, or drive it; admins only",
        request=GradeChange,
        responses=ClusterDetail,
    )
    @action(detail=True, methods=["post"])
    def grade(self, request: Request, name: str) -> Response:
        cluster = known_cluster(name)
        admins_only(caller(request), f"change the grade of {cluster}")
        asked = self.read(GradeChange, request)
        anyway = asked.pop("anyway")
        if asked["grade"] == Grade.DRIVE and not cluster.driven and not anyway:
            services.check_drivable(cluster, now=timezone.now())
        return self._changed(cluster, request, **asked)

    @extend_schema(
        operation_id="preflight_cluster",
        summary="Ask a cluster what works, what is missing and what grants it; admins only",
        responses=PreflightShown,
    )
    @action(detail=True)
    def preflight(self, request: Request, name: str) -> Response:
        cluster = known_cluster(name)
        admins_only(caller(request), f"ask what is missing on {cluster}")
        # The wall's time, whatever the cluster's clock: a real one is held against it.
        now = timezone.now()
        found = preflight(cluster, now=now)
        return Response(PreflightShown({"cluster": name, "at": now, "findings": found}).data)

    def _changed(self, cluster: Cluster, request: Request, **changes: Any) -> Response:
        by, name = caller(request), token_of(request)
        changed = services.change_cluster(
            cluster, by=by, now=timezone.now(), token_name=name, **changes
        )
        return self._shown(changed, by)

    def _shown(self, cluster: Any, user: User, status: int = 200) -> Response:
        given = given_to(cluster)
        if given is not None and not is_admin(user):
            given = replace(given, trouble="")  # it may name users of the cluster
        cluster.advice_given = given
        cluster.pools_seen = pools_seen(cluster)
        cluster.policy_in_force = policy_of(cluster)
        return Response(ClusterDetail(cluster).data, status=status)

    @extend_schema(
        operation_id="list_cluster_accounts",
        summary="List a cluster's own accounts, their shares and limits beside ours",
        responses=AccountsShown,
    )
    @action(detail=True)
    def accounts(self, request: Request, name: str) -> Response:
        return self._accounts(known_cluster(name), caller(request))

    @extend_schema(
        operation_id="settle_cluster_account",
        summary="Decide on an account that drifted or was refused; admins only",
        request=SettledAsked,
        responses=AccountsShown,
    )
    @accounts.mapping.post
    def settle_account(self, request: Request, name: str) -> Response:
        cluster, user = known_cluster(name), caller(request)
        admins_only(user, f"change accounts of {cluster}")
        asked = self.read(SettledAsked, request)
        account = asked.pop("account")
        how: dict[str, Any] = {"by": user, "now": timezone.now(), "token_name": token_of(request)}
        try:
            settle_account(cluster, account, **how, **asked)
        except Account.DoesNotExist:
            raise NotFound(f"There is no account {shown(account)}.", field="account") from None
        return self._accounts(cluster, user)

    def _accounts(self, cluster: Cluster, user: User) -> Response:
        look = AccountsLook.objects.filter(cluster=cluster).first() or AccountsLook()
        told = {
            "cluster": cluster.name,
            "read_at": look.read_at,
            # What it says may name hosts and users of the cluster.
            "trouble": look.trouble if is_admin(user) else "",
            "accounts": account_rows(cluster, accounts_visible_to(user, cluster)),
            "qos": qos_of(look.qos),
        }
        return Response(AccountsShown(told).data)
