"""The tokens that slurmrestd asks for: signed here where the key is here, and read for their end."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping

TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
HEADER = {"alg": "HS256", "typ": "JWT"}
# Signed anew for each look; a clock that is off by less does no harm.
SECONDS = 300


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _spelled(said: Mapping[str, object]) -> str:
    return _encoded(json.dumps(said, separators=(",", ":")).encode())


def signed(key: bytes, user: str, *, now: float, seconds: int = SECONDS) -> str:
    """Return a token for a user that holds from now for so many seconds, as ``scontrol token`` does."""
    said = {"exp": int(now) + seconds, "iat": int(now), "sun": user}
    body = f"{_spelled(HEADER)}.{_spelled(said)}"
    return f"{body}.{_encoded(hmac.digest(key, body.encode(), hashlib.sha256))}"


def claims(token: str) -> tuple[str, int | None]:
    """Return the user a token is for and when it ends, unverified; empty, None: it does not say."""
    body = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError):
        return "", None
    if not isinstance(said, dict):
        return "", None
    until, user = said.get("exp"), said.get("sun") or said.get("username") or said.get("sub")
    return str(user or ""), int(until) if isinstance(until, int | float) else None
