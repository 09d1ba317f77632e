"""Secrets as they lie in the database: sealed with the site's key, opened only where they are used."""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

PREFIX = "sealed:"


class Unreadable(Exception):
    """A secret was sealed with a key that is not among today's."""


def _keys() -> MultiFernet:
    """Return today's key and the older ones that still open, each made from one of Django's."""
    found = []
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        made = hashlib.sha256(b"rollcall sealing\0" + str(key).encode()).digest()
        found.append(Fernet(base64.urlsafe_b64encode(made)))
    return MultiFernet(found)


def is_sealed(text: str) -> bool:
    """Return whether a text is a sealed secret."""
    return text.startswith(PREFIX)


def seal(secret: str) -> str:
    """Return a secret sealed; one that is sealed stays as it is."""
    if not secret or is_sealed(secret):
        return secret
    return PREFIX + _keys().encrypt(secret.encode()).decode()


def unseal(text: str) -> str:
    """Return the secret in a text; one that is not sealed yet is its own.

    :raises Unreadable: if no key of today opens it.
    """
    if not is_sealed(text):
        return text
    try:
        return _keys().decrypt(text.removeprefix(PREFIX).encode()).decode()
    except InvalidToken:
        raise Unreadable from None
