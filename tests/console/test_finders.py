"""Plotly's script is served from its wheel, and nothing else of it."""

from __future__ import annotations

from pathlib import Path

from django.contrib.staticfiles import finders

from apps.console.finders import NAME, PlotlyFinder


def test_the_script_is_found_in_the_wheel():
    assert Path(finders.find(NAME)).stat().st_size > 1_000_000


def test_only_the_one_file_is_collected():
    files = [f"{storage.prefix}/{path}" for path, storage in PlotlyFinder().list([])]

    assert files == [NAME]
    assert finders.find("plotly/widgetbundle.js") is None
