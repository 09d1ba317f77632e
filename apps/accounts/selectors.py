"""Read people and their tokens."""

from __future__ import annotations

from django.db.models import QuerySet

from apps.accounts.models import Token, User


def tokens_of(user: User) -> QuerySet[Token]:
    """Return a user's tokens that still work, the newest first."""
    return Token.objects.filter(user=user, revoked_at__isnull=True)
