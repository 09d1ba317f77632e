"""One line a record, with the request's id and without secrets."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse

_request_id: ContextVar[str] = ContextVar("request_id", default="-")
_GIVEN = re.compile(r"[A-Za-z0-9._-]{8,64}")

_SECRETS = (
    # The password of an address: scheme://user:password@host.
    (re.compile(r"(\w://[^\s:/@]*:)[^\s/@]+(?=@)"), r"\1…"),
    # An Authorization header with its value.
    (
        re.compile(
            r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?)(?:(bearer|token|basic)\s+)?[^\s'\",]+"
        ),
        r"\1…",
    ),
    # name=value and "name": "value" of what is secret by its name.
    (
        re.compile(
            r"(?i)\b(\w*(?:password|passwd|secret|secret_key|api_key|csrfmiddlewaretoken|token|sessionid)\w*"
            r"['\"]?\s*[:=]\s*['\"]?)[^\s'\",&;}]+"
        ),
        r"\1…",
    ),
)


def redact(line: str) -> str:
    """Return a line without the values of passwords, tokens and keys."""
    for pattern, instead in _SECRETS:
        line = pattern.sub(instead, line)
    return line


class RequestIdFilter(logging.Filter):
    """Puts the id of the request at hand on each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = _request_id.get()
        return True


class LineFormatter(logging.Formatter):
    """Time in UTC, level, logger, request and message; tracebacks too are redacted."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        if not hasattr(record, "request_id"):
            record.request_id = "-"
        return redact(super().format(record))


class RequestIdMiddleware:
    """Gives each request an id, its caller's if that is a sane one, and answers with it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        chosen = given if _GIVEN.fullmatch(given) else uuid.uuid4().hex
        request.request_id = chosen  # type: ignore[attr-defined]  # the page of a 500 names it
        token = _request_id.set(chosen)
        try:
            response = self.get_response(request)
        finally:
            _request_id.reset(token)
        response.headers["X-Request-ID"] = chosen
        return response
