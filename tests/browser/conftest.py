"""A real Chromium against a live server; the same small installation as the pages' own tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.console.conftest import as_user, make_job, now, world  # noqa: F401  fixtures

# Playwright keeps a loop running in this process; the leg is a process of its own.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

WIDTHS = (400, 768, 1280, 1600)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; nothing is downloaded."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(
    browser: Browser,
    live_server: Any,
    world: Any,  # noqa: F811  the fixture
) -> Iterator[Callable[..., Page]]:
    """Open an address as somebody; whatever the console of the browser complains of fails."""
    contexts, complaints, provoked = [], [], []

    def open_(
        path: str, *, who: str = "admin", width: int = 1280, figures: bool = False, **options: Any
    ) -> Page:
        client = Client()
        client.force_login(world.people[who])
        context = browser.new_context(
            base_url=live_server.url, viewport={"width": width, "height": 900}, **options
        )
        contexts.append(context)
        context.add_cookies(
            [
                {
                    "name": settings.SESSION_COOKIE_NAME,
                    "value": client.cookies[settings.SESSION_COOKIE_NAME].value,
                    "url": live_server.url,
                }
            ]
        )
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if not figures:
            page.route("**/plotly*.js", _leave_out)
        page.goto(path)
        return page

    # A test that provokes a complaint says so by a part of it: when it arrives is the browser's.
    open_.provoked = provoked  # type: ignore[attr-defined]
    yield open_
    for context in contexts:
        context.close()
    assert [text for text in complaints if not any(part in text for part in provoked)] == []


def _leave_out(route: Route) -> None:
    """Answer with an empty script: 5 MB of parsing where no figure is looked at."""
    route.fulfill(status=200, content_type="text/javascript", body="")


def overflow(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    page.wait_for_timeout(200)
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
