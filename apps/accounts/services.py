"""Make users, and give out, take back and recognise tokens."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db.models import Q

from apps.accounts.models import Token, User
from apps.common.errors import Conflict, Invalid
from apps.common.statements import Joined
from apps.common.text import clean_text

SECRET_BYTES = 32
PREFIX = "rc_"
USED_AGAIN_AFTER = timedelta(minutes=1)
"""``last_used_at`` is written at most this often: a token is used many times a second."""

LIVE_TOKEN = Joined(
    """
    SELECT {token}, {owner}
    FROM accounts_token token JOIN accounts_user owner ON owner.id = token.user_id
    WHERE token.digest = %s AND token.revoked_at IS NULL AND owner.is_active
    """,
    token=Token,
    owner=User,
)


def create_user(
    username: str, *, password: str, is_admin: bool = False, check_password: bool = True
) -> User:
    """Make a person or a service account; an admin may use Django's admin too.

    :raises Invalid: if the name is empty or the password too weak.
    :raises Conflict: if the name is taken, by case or not.
    """
    username = clean_text(username, field="username", max_length=150)
    if User.objects.filter(username__iexact=username).exists():
        raise Conflict(f"There is a user {username} already.", field="username")
    if check_password:
        try:
            validate_password(password)
        except ValidationError as error:
            raise Invalid(" ".join(error.messages), field="password") from error
    return User.objects.create_user(
        username, password=password, is_admin=is_admin, is_staff=is_admin, is_superuser=is_admin
    )


def digest_of(secret: str) -> str:
    """Return what is kept of a secret: 256 random bits need no salt."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def issue_token(user: User, *, name: str, now: datetime) -> tuple[Token, str]:
    """Give out a token; the secret beside it is shown once, only its digest is kept.

    :raises Invalid: for a name that cannot be.
    """
    name = clean_text(name, field="name", max_length=80)
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    token = Token.objects.create(
        user=user, name=name, prefix=secret[:8], digest=digest_of(secret), created_at=now
    )
    return token, secret


def revoke_token(token: Token, *, now: datetime) -> Token:
    """Take a token back for good; safe to repeat."""
    Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=now)
    token.refresh_from_db()
    return token


def authenticate_token(secret: str, *, now: datetime) -> Token | None:
    """Return the token with this secret, its user loaded; None if it is none, or not any more.

    The digest is looked up, so the time it takes tells nothing of the secrets there are.
    """
    found = LIVE_TOKEN.first(digest_of(secret))
    if found is None:
        return None
    token: Token
    token, token.user = found
    if token.last_used_at is None or now - token.last_used_at >= USED_AGAIN_AFTER:
        _mark_used(token, now)
    return token


def _mark_used(token: Token, now: datetime) -> None:
    Token.objects.filter(
        Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - USED_AGAIN_AFTER), pk=token.pk
    ).update(last_used_at=now)
