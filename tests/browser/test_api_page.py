"""The page of the API draws under its policy, with nothing from elsewhere, and its buttons work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from apps.accounts.models import Token

JSON = {"Accept": "application/vnd.oai.openapi+json"}
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_the_page_draws_every_endpoint_and_asks_nobody_else(
    open_page: Callable[..., Page], live_server: Any
) -> None:
    page = open_page("/healthz")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.goto("/api/docs/")

    paths = page.request.get("/api/schema/", headers=JSON).json()["paths"]
    expect(page.locator(".opblock")).to_have_count(sum(len(methods) for methods in paths.values()))
    expect(page).to_have_title("API · Rollcall")
    assert [url for url in asked if not url.startswith((live_server.url, "data:"))] == []


def test_a_call_is_made_from_the_page_with_the_readers_session(
    open_page: Callable[..., Page], world: Any
) -> None:
    page = open_page("/api/docs/", who="bob")

    block = page.locator("#operations-me-show_me")
    block.locator("button.opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()

    expect(block.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    expect(block.locator(".live-responses-table")).to_contain_text('"bob"')


def test_a_token_is_given_out_from_the_page(open_page: Callable[..., Page], world: Any) -> None:
    page = open_page("/api/docs/", who="bob")

    block = page.locator("[id^=operations-tokens-]", has_text="Give out a token")
    block.locator("button.opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    block.locator("textarea").fill('{"name": "by hand"}')
    block.get_by_role("button", name="Execute").click()

    expect(block.locator(".live-responses-table .response-col_status").last).to_contain_text("201")
    assert Token.objects.get(name="by hand").user == world.people["bob"]
