"""Who the caller is, and the caller's tokens."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import Token, User
from apps.accounts.selectors import tokens_of
from apps.accounts.services import issue_token, revoke_token
from apps.api.endpoints import Endpoint, Paging, caller, page_schema, paged
from apps.api.errors import Forbidden, NotFound, shown
from apps.api.serializers import Strict, Text
from apps.tenants.selectors import is_admin


class PlaceShown(serializers.Serializer[Any]):
    tenant = serializers.CharField(source="tenant.path")
    role = serializers.ChoiceField(choices=["lead", "member"])


class TokenShown(serializers.Serializer[Any]):
    """A token; its secret is kept nowhere."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    created_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(allow_null=True)


class MeShown(serializers.Serializer[Any]):
    """The caller, and what it may see."""

    username = serializers.CharField()
    name = serializers.CharField(source="get_full_name")
    is_admin = serializers.SerializerMethodField()
    tenants = PlaceShown(many=True, source="places")
    token = serializers.SerializerMethodField(help_text="The one this request came with, if any.")

    def get_is_admin(self, user: User) -> bool:
        return is_admin(user)

    @extend_schema_field(TokenShown(allow_null=True))
    def get_token(self, user: User) -> dict[str, Any] | None:
        token: Token | None = self.context["token"]
        return None if token is None else TokenShown(token).data


class NewToken(Strict):
    """A token to give out."""

    name = Text(max_length=80, help_text="What it is for.")


class IssuedToken(TokenShown):
    """A token just given out."""

    secret = serializers.CharField(help_text="Shown once.")


class Me(Endpoint):
    """The caller."""

    @extend_schema(operation_id="show_me", summary="Show who calls", responses=MeShown)
    def show(self, request: Request) -> Response:
        user = caller(request)
        token = request.auth if isinstance(request.auth, Token) else None
        user.places = user.memberships.select_related("tenant").order_by("tenant__path")  # type: ignore[attr-defined]  # what the serializer reads
        return Response(MeShown(user, context={"token": token}).data)


class Tokens(Endpoint):
    """The caller's own tokens."""

    lookup_value_regex = "[0-9]{1,18}"
    queries: ClassVar = {"list": Paging}

    @extend_schema(
        operation_id="list_tokens",
        summary="List own tokens that work, the newest first",
        parameters=[Paging],
        responses=page_schema("TokenPage", TokenShown),
    )
    def list(self, request: Request) -> Response:
        return paged(request, tokens_of(caller(request)), TokenShown, self.asked, descending=True)

    @extend_schema(
        operation_id="issue_token",
        summary="Give out a token; needs a session, a token makes no others",
        request=NewToken,
        responses={201: IssuedToken},
    )
    def create(self, request: Request) -> Response:
        if isinstance(request.auth, Token):
            raise Forbidden("A token cannot give out others: log in.")
        name = self.read(NewToken, request)["name"]
        token, secret = issue_token(caller(request), name=name, now=timezone.now())
        return Response({**TokenShown(token).data, "secret": secret}, status=201)

    @extend_schema(
        operation_id="revoke_token",
        summary="Take a token back for good",
        responses={204: None},
    )
    def destroy(self, request: Request, pk: str) -> Response:
        token = tokens_of(caller(request)).filter(pk=pk).first()
        if token is None:
            raise NotFound(f"There is no token {shown(pk)}.")
        revoke_token(token, now=timezone.now())
        return Response(status=204)
