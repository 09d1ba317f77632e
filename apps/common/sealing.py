"""Secrets as they lie in the database: sealed with the site's key, opened only where they are used."""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

PREFIX = "sealed:"


class Unreadable(Exception):
    """A secret was sealed with a key that is not among today's."""


def _keys() -> list[Fernet]:
    """Return today's key and the older ones that still open, each made from one of Django's."""
    found = []
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        made = hashlib.sha256(b"rollcall sealing\0" + str(key).encode()).digest()
        found.append(Fernet(base64.urlsafe_b64encode(made)))
    return found


def is_sealed(text: str) -> bool:
    """Return whether a text is a sealed secret."""
    return text.startswith(PREFIX)


def seal(secret: str) -> str:
    """Return a secret sealed with today's key; one that is so already stays as it is."""
    today = _keys()[0]
    if is_sealed(secret):
        try:
            today.decrypt(secret.removeprefix(PREFIX).encode())
        except InvalidToken:
            return _sealed_anew(secret)
        return secret
    return PREFIX + today.encrypt(secret.encode()).decode() if secret else secret


def _sealed_anew(secret: str) -> str:
    """Return what an older key sealed, sealed with today's; what none opens stays as it is."""
    try:
        return PREFIX + _keys()[0].encrypt(unseal(secret).encode()).decode()
    except Unreadable:
        return secret


def unseal(text: str) -> str:
    """Return the secret in a text; one that is not sealed yet is its own.

    :raises Unreadable: if no key of today opens it.
    """
    if not is_sealed(text):
        return text
    try:
        return MultiFernet(_keys()).decrypt(text.removeprefix(PREFIX).encode()).decode()
    except InvalidToken:
        raise Unreadable from None
