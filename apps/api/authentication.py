"""Who calls: a browser's session, with CSRF, or a token in the Authorization header."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import authentication, exceptions
from rest_framework.request import Request

from apps.accounts.models import Token, User
from apps.accounts.services import authenticate_token

WORDS = ("bearer", "token")


class TokenAuthentication(authentication.BaseAuthentication):
    """``Authorization: Bearer …``, or ``Token …``."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        """Return whose token came with the request; None if none did."""
        word, _, secret = request.headers.get("Authorization", "").strip().partition(" ")
        if word.lower() not in WORDS:
            return None
        secret = secret.strip()
        token = authenticate_token(secret, now=timezone.now()) if secret else None
        if token is None:
            raise exceptions.AuthenticationFailed("This token is not known, or was revoked.")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Return what a client without credentials is asked for."""
        return 'Bearer realm="rollcall"'


class SessionAuthentication(authentication.SessionAuthentication):
    """The browser's session; every unsafe method needs the CSRF token."""


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # theirs
    """Tells the schema about our tokens."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token issued by POST /api/v1/tokens or in the admin.",
        }


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # theirs
    """Tells the schema about the session."""

    target_class = SessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the scheme."""
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
