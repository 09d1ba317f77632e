"""Each page keeps axe-core's rules, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from apps.jobs.models import Job
from tests.browser.axe import axe_source

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

RUN = """() => axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations.map(
    rule => [rule.id, rule.nodes.slice(0, 3).map(node => node.html.slice(0, 160))]))"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_no_page_breaks_a_rule_of_axe(
    open_page: Callable[..., Page], make_job: Callable[..., Job], width: int, scheme: str
) -> None:
    source = axe_source()
    for place in range(3):
        make_job(f"job-{place}", "nlp" if place else "vision", place=place)
    page = open_page("/queue/", who="alice", width=width, color_scheme=scheme)
    broken: dict[str, Any] = {}

    def look(page: Page, path: str) -> None:
        page.evaluate(source)
        if found := page.evaluate(RUN):
            broken[path] = found

    for path in ("/queue/", "/queue/?tenant=nlp", "/jobs/new/", "/profile/", "/jump/?q=job",
                 "/jobs/48102/cancel/", "/queue/?state=running"):  # fmt: skip
        page.goto(path)
        look(page, path)
    page = open_page("/quotas/nlp/atlas/h100/edit/", who="admin", width=width, color_scheme=scheme)
    look(page, "a quota")
    page.locator("#id_guarantee").fill("8")
    page.get_by_role("button", name="Preview").click()
    page.locator("#changes-head").wait_for()
    look(page, "a quota's preview")

    assert broken == {}
