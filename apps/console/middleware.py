"""Headers of every answer: a strict content policy, and no caching of what a person sees."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from apps.console.finders import FOLDER, NAME

# The hash of nothing: Plotly makes an empty style element and fills it by rule.
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
# Plotly carries maplibre's style sheet as one string and puts it into a style element at load.
MAPLIBRE = re.compile(r"""(['"])(\.maplibregl-map\{(?:(?!\1)[^\\]|\\.)*)\1""")

Answer = Callable[[HttpRequest], HttpResponseBase]


def maplibre_styles(script: str) -> list[str]:
    """Return maplibre's style sheets as they stand in Plotly's script."""
    return [
        found[2].encode("latin-1", "backslashreplace").decode("unicode_escape")
        for found in MAPLIBRE.finditer(script)
    ]


def source_hash(text: str) -> str:
    """Return a style's or script's source expression: its SHA-256."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def plotly_hashes(path: Path) -> tuple[str, ...]:
    """Return the hashes that the installed Plotly's own styles need; it changes with the wheel."""
    return tuple(source_hash(css) for css in maplibre_styles(path.read_text(encoding="utf-8")))


@cache
def strict_policy() -> str:
    """Return the policy of our own pages: nothing inline, nothing evaluated, nobody else's."""
    styles = " ".join(["'self'", EMPTY_STYLE, *plotly_hashes(FOLDER / NAME.rpartition("/")[2])])
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            f"style-src {styles}",
            "img-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


API_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""For the page of the API alone: Swagger's own styles and icons are inline."""

API_PAGES = frozenset({"docs", "swagger", "swagger-ui"})


class ContentPolicyMiddleware:
    """Set the content policy of each answer that did not set its own."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer, with the policy in the headers."""
        response = self.get_response(request)
        match = request.resolver_match
        is_api_page = bool(
            match and match.namespace.split(":")[0] == "api" and match.url_name in API_PAGES
        )
        policy = API_PAGE_POLICY if is_api_page else strict_policy()
        response.headers.setdefault("Content-Security-Policy", policy)
        if not request.path.startswith(settings.STATIC_URL):
            response.headers.setdefault("Cache-Control", "private, no-store")
        return response
