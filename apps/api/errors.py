"""One error shape for every refusal: a code, a sentence, and the fields it is about."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.signals import got_request_exception
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from apps.backends.port import BackendError
from apps.common.errors import Conflict, DomainError, Invalid

logger = logging.getLogger(__name__)

SHOWN = 120


class NotFound(DomainError):
    """There is no such object, or none the caller may know of: the same answer."""

    code = "not_found"


class Forbidden(DomainError):
    """The caller may see the object, but not do this to it."""

    code = "forbidden"


class TooLarge(exceptions.APIException):
    """A body larger than any sensible request."""

    status_code = 413
    default_code = "too_large"
    default_detail = "The body is too large."


STATUS: tuple[tuple[type[DomainError], int], ...] = (
    (NotFound, 404),
    (Forbidden, 403),
    (Conflict, 409),
    (BackendError, 503),
    (Invalid, 400),
    (DomainError, 400),
)

CODES = {
    400: "invalid",
    401: "not_authenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    429: "throttled",
    500: "server_error",
    503: "backend",
}

WORDS = {
    400: "The request cannot be understood, or a field of it cannot be.",
    401: "Nobody is logged in, or the token is not known.",
    403: "It may be seen, but not done, by this user; or the CSRF token is missing.",
    404: "There is no such object, or none this user may see.",
    405: "The address does not take this method.",
    409: "It was sensible once, and is not any more; or the key was used for another request.",
    413: "The body is too large.",
    415: "The body must be application/json.",
    429: "Too many requests.",
    500: "Rollcall failed; it is logged.",
    503: "The cluster cannot be asked just now.",
}


def shown(text: object) -> str:
    """Return what a caller sent in a form any answer can carry: short, and valid Unicode."""
    return str(text).encode("utf-8", "replace").decode()[:SHOWN]


def body(
    code: str, message: str, field: str | None = None, fields: Mapping[str, list[str]] | None = None
) -> dict[str, Any]:
    """Return the one shape."""
    told = dict(fields or ({field: [message]} if field else {}))
    return {"error": {"code": code, "message": message, "field": field, "fields": told}}


def _flat(detail: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Return (field, sentence) pairs of DRF's nested errors, as ``workload.steps``."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            known = "" if name == "non_field_errors" else shown(name)
            yield from _flat(inner, f"{path}.{known}" if path and known else path or known)
    elif isinstance(detail, list | tuple):
        for index, inner in enumerate(detail):
            nested = isinstance(inner, Mapping | list | tuple)
            if not nested or inner:
                yield from _flat(inner, f"{path}.{index}" if nested and path else path)
    else:
        yield path, shown(detail)


def _refused(error: exceptions.ValidationError) -> dict[str, Any]:
    fields: dict[str, list[str]] = {}
    first: tuple[str, str] | None = None
    for field, sentence in _flat(error.detail):
        first = first or (field, sentence)
        if field:
            fields.setdefault(field, []).append(sentence)
    field, sentence = first or ("", "The request cannot be understood.")
    message = f"{field}: {sentence}" if field else sentence
    return body("invalid", message, field or None, fields)


def _from_rest(error: exceptions.APIException) -> Response:
    if isinstance(error, exceptions.ValidationError):
        return Response(_refused(error), status=400)
    code = CODES.get(error.status_code, "refused")
    if isinstance(error, exceptions.ParseError):
        code = "malformed"
    if isinstance(error, exceptions.AuthenticationFailed):
        code = "authentication_failed"
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    return Response(body(code, shown(error.detail)), status=error.status_code, headers=headers)


def handle(error: Exception, context: Mapping[str, Any]) -> Response:
    """Return the answer for an exception of a view; an unforeseen one is logged and says so."""
    set_rollback()
    if isinstance(error, DomainError):
        status = next(status for kind, status in STATUS if isinstance(error, kind))
        return Response(body(error.code, shown_all(error.message), error.field), status=status)
    if isinstance(error, Http404):
        return Response(body("not_found", "There is no such object."), status=404)
    if isinstance(error, PermissionDenied):
        return Response(body("forbidden", "You may not do this."), status=403)
    if isinstance(error, exceptions.APIException):
        return _from_rest(error)
    request = context.get("request")
    got_request_exception.send(sender=handle, request=getattr(request, "_request", request))
    logger.exception("an endpoint failed")
    return Response(body("server_error", WORDS[500]), status=500)


def shown_all(text: str) -> str:
    """Return a sentence of ours, which may quote what a caller sent, as valid Unicode."""
    return text.encode("utf-8", "replace").decode()
