"""Figures draw under the strict policy, follow the theme, and are tables without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, expect

from apps.common.time import to_us
from apps.jobs.models import Job
from apps.ledger.intervals import node_seen, set_marks
from apps.ledger.rollup import roll_up
from tests.browser.axe import axe_source
from tests.browser.test_axe import RUN
from tests.console import ledgered

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

SVG = "{http://www.w3.org/2000/svg}"
BAR = ".figure .barlayer .trace path"


@pytest.fixture
def used(world: SimpleNamespace, make_job: Callable[..., Job], now: datetime) -> dict[str, Job]:
    """A day of use: a job that sleeps, the seed story, a gang that waits, and what is idle."""
    nodes = ledgered.nodes_of(world)
    ledgered.price(world, "2.50", now=now)
    node_seen(nodes, at_us=to_us(world.cluster.first_look_at))
    sleepy = make_job("sleepy", "nlp", size=1, min_size=1)
    attempt = ledgered.run(world, sleepy, [nodes[0]], at=now - timedelta(hours=6))
    set_marks(world.cluster, at_us=to_us(now - timedelta(hours=2)),
              held_idle={attempt.pk: 8}, stranded={})  # fmt: skip
    story = ledgered.nine_ranks(world, make_job, at=now - timedelta(hours=3), tenant="nlp")
    waits = make_job("waits", "nlp", place=0)
    ledgered.hold(waits, [(0, nodes[1])], at=now - timedelta(minutes=10))
    roll_up(world.cluster, until_us=to_us(now))
    return {"sleepy": sleepy, "story": story, "waits": waits}


def today(now: datetime) -> str:
    return f"/idle/?range=custom&from={(now - timedelta(days=1)).date()}&to={now.date()}"


def paths(jobs: dict[str, Job], now: datetime) -> list[str]:
    return ["/", "/waterfall/", today(now), *(f"/jobs/{job.pk}/" for job in jobs.values()),
            f"/jobs/{jobs['story'].pk}/waterfall/"]  # fmt: skip


def test_a_figure_is_drawn_with_patterns_and_follows_the_theme(
    open_page: Callable[..., Page], used: dict[str, Job], now: datetime
) -> None:
    page = open_page(today(now), figures=True)
    page.wait_for_selector(BAR, state="attached")
    light = page.evaluate("document.querySelector('.figure').data[0].marker.color")

    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(
        "before => document.querySelector('.figure').data[0].marker.color !== before", arg=light
    )

    assert page.locator(".figure pattern").count() > 0
    assert (light, page.evaluate("document.querySelector('.figure').data[0].marker.color")) == (
        "#2368A8",
        "#4F9BDB",
    )


def test_a_refresh_brings_new_numbers_and_keeps_the_figure(
    open_page: Callable[..., Page], used: dict[str, Job]
) -> None:
    page = open_page("/", figures=True)
    page.wait_for_selector(BAR, state="attached")
    page.evaluate("document.querySelector('.figure').dataset.mine = 'kept'")

    with page.expect_response("**/"):
        page.evaluate("document.dispatchEvent(new Event('rollcall:refresh'))")
    page.wait_for_timeout(300)

    assert page.locator(".figure[data-mine=kept]").count() == 1
    assert page.locator(BAR).count() > 0


def test_without_javascript_the_table_stands_open_and_the_waterfall_is_drawn(
    open_page: Callable[..., Page], used: dict[str, Job], now: datetime
) -> None:
    page = open_page(today(now), java_script_enabled=False)

    assert page.locator("details.as-table table").first.is_visible()
    page.goto(f"/jobs/{used['story'].pk}/waterfall/")
    assert page.locator('rect[fill="url(#fill-gang_wait)"]').count() == 8


@pytest.mark.parametrize("width", [400, 768, 1280, 1600])
def test_no_page_scrolls_sideways(
    open_page: Callable[..., Page], used: dict[str, Job], now: datetime, width: int
) -> None:
    page = open_page("/", width=width)
    wide = {}

    for path in paths(used, now):
        page.goto(path)
        page.wait_for_timeout(100)
        across = page.evaluate("document.documentElement.scrollWidth")
        if across > width:
            wide[path] = across

    assert wide == {}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_no_page_breaks_a_rule_of_axe(
    open_page: Callable[..., Page], used: dict[str, Job], now: datetime, width: int, scheme: str
) -> None:
    source = axe_source()
    page = open_page("/", who="alice", width=width, color_scheme=scheme)
    broken: dict[str, Any] = {}

    for path in paths(used, now):
        page.goto(path)
        page.evaluate(source)
        if found := page.evaluate(RUN):
            broken[path] = found

    assert broken == {}


def saved(page: Page) -> ElementTree.Element:
    """Save the figure of a page and read the file."""
    with page.expect_download() as download:
        page.click("[data-svg-of]")
    assert download.value.suggested_filename.endswith(".svg")
    return ElementTree.parse(download.value.path()).getroot()  # noqa: S314  our own file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_waterfall_is_saved_as_a_file_that_stands_alone(
    open_page: Callable[..., Page], used: dict[str, Job], scheme: str
) -> None:
    page = open_page(f"/jobs/{used['story'].pk}/waterfall/", color_scheme=scheme)

    root = saved(page)

    text = ElementTree.tostring(root, encoding="unicode")
    fills = set(re.findall(r"url\([^#]*#([\w-]+)[^)]*\)", text))
    assert fills == {"fill-gang_wait", "fill-goes-on"}
    assert fills <= {element.get("id") for element in root.iter()}
    assert "class=" not in text
    assert "var(--" not in text
    words = {"".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")}
    assert {"r0", "r8", "gpu-n02", "376", "waiting", "running"} <= words
    assert not any("8 + 1 pending" in word for word in words)  # what only a narrow page shows


def test_a_figure_over_time_is_saved_with_its_patterns(
    open_page: Callable[..., Page], used: dict[str, Job], now: datetime
) -> None:
    page = open_page(today(now), figures=True)
    page.wait_for_selector(BAR, state="attached")

    root = saved(page)

    assert len(list(root.iter(f"{SVG}pattern"))) > 0


def test_the_table_of_a_figure_opens_by_its_link(
    open_page: Callable[..., Page], used: dict[str, Job], now: datetime
) -> None:
    for path in ("/", today(now), f"/jobs/{used['story'].pk}/waterfall/"):
        page = open_page(path)
        link = page.locator("a", has_text="as a table")
        table = page.locator(link.get_attribute("href") or "")
        expect(table).to_be_hidden()

        link.click()

        expect(table).to_be_visible()


def test_without_javascript_no_file_is_offered_that_cannot_be_made(
    open_page: Callable[..., Page], used: dict[str, Job]
) -> None:
    page = open_page(f"/jobs/{used['story'].pk}/waterfall/", java_script_enabled=False)

    expect(page.locator("[data-svg-of]")).to_be_hidden()
    expect(page.locator(".links-alone a", has_text="CSV")).to_be_visible()
