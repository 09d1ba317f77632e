"""The pages of 400, 403, 404 and 500: one sentence, a way on, and no hint of what there is."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from apps.common import show
from apps.console.pages import PageInfo


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Say that this is not theirs to do."""
    page = PageInfo("", "Not allowed", "Not allowed")
    return render(request, "403.html", {"page": page}, status=403)


def expired(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Say that a form's protection did not match, and what helps."""
    page = PageInfo("", "Not sent", "Not sent")
    return render(request, "403.html", {"page": page, "expired": True}, status=403)


def not_understood(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Say that what was sent cannot be read; too much of it is said to be so."""
    page = PageInfo("", "Not understood", "Not understood")
    large = isinstance(exception, RequestDataTooBig)
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    context = {"page": page, "most": show.whole(most) if large and most else ""}
    return render(request, "400.html", context, status=413 if large else 400)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Say that there is nothing here, the same for what does not exist and what is another's."""
    page = PageInfo("", "Not found", "Not found")
    return render(request, "404.html", {"page": page}, status=404)


def broken(request: HttpRequest) -> HttpResponse:
    """Say that it is our fault, with the request's id as it stands in the log; nothing is queried."""
    context: dict[str, Any] = {"request_id": getattr(request, "request_id", "")}
    return HttpResponse(render_to_string("500.html", context), status=500)
