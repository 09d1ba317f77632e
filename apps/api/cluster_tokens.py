"""The caller's own tokens for clusters that run each job as its user."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.endpoints import Endpoint, caller, known_cluster
from apps.api.errors import NotFound
from apps.api.serializers import Strict, Text
from apps.backends.user_tokens import LONGEST, Entered, enter_token, entered_by, forget_token


class EnteredShown(serializers.Serializer[Any]):
    """A cluster that asks the caller for a token; what was entered is never shown."""

    cluster = serializers.CharField(source="cluster.name")
    entered_at = serializers.DateTimeField(source="token.entered_at", default=None, allow_null=True)
    until = serializers.DateTimeField(
        source="token.until", default=None, allow_null=True, help_text="Null: it does not say."
    )


class TokenEntered(Strict):
    """A token for a cluster."""

    token = Text(max_length=LONGEST, help_text="As `scontrol token` prints it.")


class ClusterTokens(Endpoint):
    """What lets the caller's jobs run as the caller."""

    @extend_schema(
        operation_id="list_cluster_tokens",
        summary="List the clusters that ask the caller for a token",
        responses=EnteredShown(many=True),
    )
    def list(self, request: Request) -> Response:
        return Response(EnteredShown(entered_by(caller(request)), many=True).data)

    @extend_schema(
        operation_id="enter_cluster_token",
        summary="Enter a token of one's own for a cluster, in place of the one before",
        request=TokenEntered,
        responses=EnteredShown,
    )
    def enter(self, request: Request, name: str) -> Response:
        cluster, user = known_cluster(name), caller(request)
        told = self.read(TokenEntered, request)["token"]
        row = enter_token(cluster, user, told, now=timezone.now())
        return Response(EnteredShown(Entered(cluster, row)).data)

    @extend_schema(
        operation_id="forget_cluster_token",
        summary="Have a token for a cluster forgotten",
        responses={204: None},
    )
    def forget(self, request: Request, name: str, **_: Any) -> Response:
        cluster = known_cluster(name)
        if not forget_token(cluster, caller(request), now=timezone.now()):
            raise NotFound(f"You have entered no token for {cluster}.")
        return Response(status=204)
