"""Whether the parts are well: the page that a load balancer asks, and the pulse of beat."""

from __future__ import annotations

import time
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@require_safe
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when this process serves and reaches its database, else 503."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return JsonResponse({"status": "trouble", "database": False}, status=503)
    return JsonResponse({"status": "ok", "database": True})


def pulse_file() -> Path:
    """Return the file whose age tells when beat last sent something."""
    return Path(settings.DATA_DIR) / "beat-pulse"


def feel_pulse() -> float | None:
    """Return the seconds since beat last sent something; None: it never has."""
    try:
        return time.time() - pulse_file().stat().st_mtime
    except FileNotFoundError:
        return None


def beat_once() -> None:
    """Write down that beat has sent something now."""
    pulse_file().touch()
