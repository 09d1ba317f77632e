"""Evictions in a browser: every width, both themes, without JavaScript, the figure and the countdown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from apps.jobs.models import Eviction, Job
from tests.browser.axe import axe_source
from tests.browser.conftest import WIDTHS, overflow
from tests.browser.test_axe import RUN
from tests.factories import make_eviction

Open = Callable[..., Page]
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
HOUR = 3_600 * 1_000_000


@pytest.fixture
def evictions(
    world: SimpleNamespace, make_job: Callable[..., Job], now: datetime
) -> list[Eviction]:
    """One of each mode, and one that leaves now; with a name too long for any column."""
    gang = make_job("wide-" * 40, "vision", size=8)
    made = [
        make_eviction(
            make_job(name, "nlp/alignment", size=1), gang, at=now - timedelta(hours=hours),
            mode=mode, outcome=outcome, lost_gpu_us=hours * HOUR, lost_micros=hours * 2_500_000,
        )
        for name, hours, mode, outcome in (
            ("wide-" * 40, 60, "kill", "killed"), ("nav-tune", 40, "checkpoint", "grace_exceeded"),
            ("elastic", 20, "shrink", "shrunk"), ("שלום <b>x</b>", 10, "demote", "demoted"),
        )
    ]  # fmt: skip
    return [*made, make_eviction(make_job("leaves", "nlp", size=1), gang, at=now)]


def pages(evictions: list[Eviction]) -> list[str]:
    last = evictions[-1]
    ones = [f"/evictions/{one.pk}/" for one in (evictions[0], last)]
    jobs = [f"/jobs/{last.job_id}/", f"/jobs/{last.beneficiary_id}/"]
    return ["/evictions/", *ones, *jobs, "/queue/?state=leaving", "/"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways(
    open_page: Open, evictions: list[Eviction], width: int, scheme: str
) -> None:
    page = open_page("/evictions/", width=width, color_scheme=scheme)

    for path in pages(evictions):
        page.goto(path)
        assert overflow(page) <= 0, path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_no_page_breaks_a_rule_of_axe(
    open_page: Open, evictions: list[Eviction], width: int, scheme: str
) -> None:
    source = axe_source()
    page = open_page("/evictions/", who="alice", width=width, color_scheme=scheme)
    broken = {}

    for path in pages(evictions)[:4]:
        page.goto(path)
        page.evaluate(source)
        if found := page.evaluate(RUN):
            broken[path] = found

    assert broken == {}


def test_without_javascript_the_table_stands_open_and_filters_work(
    open_page: Open, evictions: list[Eviction]
) -> None:
    page = open_page("/evictions/", java_script_enabled=False)

    expect(page.locator(".lost-table tfoot")).to_be_visible()
    expect(page.locator("[data-row]")).to_have_count(5)
    page.locator("summary", has_text="+ mode").click()
    page.locator("#chip-mode").select_option("kill")
    page.locator("form.chip-form button:visible").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    page.locator("[data-row] .ev-when a").click()
    page.wait_for_url(f"**/evictions/{evictions[0].pk}/")
    expect(page.locator(".answer")).to_contain_text("was evicted by reclaim for")


def test_the_figure_is_drawn_with_a_bar_a_mode_and_repainted_in_the_dark(
    open_page: Open, evictions: list[Eviction]
) -> None:
    page = open_page("/evictions/", figures=True)

    expect(page.locator(".figure .barlayer .trace")).to_have_count(4)
    fill = "el => getComputedStyle(el).fill"
    bar = page.locator(".figure .barlayer .trace .point path").first
    light = bar.evaluate(fill)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "light => getComputedStyle(document.querySelector("
        "'.figure .barlayer .trace .point path')).fill !== light",
        arg=light,
    )
    assert bar.evaluate(fill) != light


def test_a_grace_is_counted_down_from_what_the_server_said(
    open_page: Open, evictions: list[Eviction]
) -> None:
    page = open_page(f"/evictions/{evictions[-1].pk}/")
    countdown = page.locator(".context .countdown")

    expect(countdown).to_contain_text("left")
    countdown.evaluate(
        "el => { const one = el.cloneNode(); one.dataset.countdown = '0'; el.replaceWith(one); }"
    )
    expect(countdown).to_have_text("any moment now")


@pytest.mark.parametrize("width", [400, 1280])
def test_a_story_is_played_by_a_click_and_a_second_click_is_told_so(
    open_page: Open, settings: Any, width: int
) -> None:
    settings.DEMO = True
    page = open_page("/evictions/", who="alice", width=width)
    assert overflow(page) <= 0

    page.get_by_role("button", name="Play a checkpoint").click()

    expect(
        page.get_by_role("status").filter(has_text="The story of a checkpoint begins")
    ).to_be_visible()
    expect(page).to_have_url(re.compile(r"/jobs/\d+/$"))
    page.goto("/evictions/")
    page.get_by_role("button", name="Play a kill").click()
    expect(page.get_by_text("The story of a checkpoint is being told")).to_be_visible()
