"""Read a body as JSON, and refuse what JSON does not say or says twice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser

from apps.api.errors import TooLarge, shown

MOST_BYTES = 1_048_576


def _no_constant(name: str) -> float:
    raise ParseError(f"{name} is not JSON.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ParseError(f"{shown(text)} is too large a number.")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ParseError(f"{shown(name)} is given twice.")
        found[name] = value
    return found


class StrictJSON(BaseParser):
    """JSON of at most 1 MiB, without NaN, Infinity and repeated keys."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what the body holds."""
        raw = stream.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise TooLarge(f"The body may have {MOST_BYTES:,} bytes.")
        try:
            return json.loads(
                raw.decode("utf-8"),
                parse_constant=_no_constant,
                parse_float=_finite,
                object_pairs_hook=_once,
            )
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON: {shown(error)}") from error


class AlwaysJSON(BaseContentNegotiation):
    """Answers are JSON, whatever a client says it accepts."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        """Return the parser of the body's media type, or None."""
        kind = (request.content_type or "").split(";", 1)[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == kind), None)

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        """Return the one renderer."""
        return renderers[0], renderers[0].media_type
