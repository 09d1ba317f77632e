"""The OpenAPI document, and Swagger's page of it served from here."""

from __future__ import annotations

from threading import Lock
from typing import Any

from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response

ONE_AT_A_TIME = Lock()
"""The generator loads its extensions at its first use, and breaks if two threads do that at once."""


class Document(SpectacularAPIView):
    """The document itself."""

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Answer with it; one is made at a time."""
        with ONE_AT_A_TIME:
            answer: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]  # theirs
            return answer


class Docs(SpectacularSwaggerSplitView):
    """The page that reads it."""

    url_name = "api:schema"
    title = "API · Rollcall"
