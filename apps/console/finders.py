"""Find the one file of the plotly wheel that pages need; nothing of it is vendored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly
from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

NAME = "plotly/plotly.min.js"
FOLDER = Path(plotly.__file__).parent / "package_data"


class PlotlyFinder(BaseFinder):
    """Serve ``plotly/plotly.min.js``; the 5 MB of widgets beside it stay where they are."""

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Return where the file is, or nothing for any other path."""
        if path != NAME:
            return []
        place = str(FOLDER / "plotly.min.js")
        return [place] if kwargs.get("find_all", kwargs.get("all")) else place

    def list(self, ignore_patterns: Any) -> Iterator[tuple[str, FileSystemStorage]]:
        """Yield the one file there is."""
        storage = FileSystemStorage(location=str(FOLDER))
        storage.prefix = "plotly"  # type: ignore[attr-defined]  # collectstatic reads it
        yield "plotly.min.js", storage
