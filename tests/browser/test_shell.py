"""What only a browser can tell: width, keys, refresh, focus, the policy, life without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from apps.accounts.models import User
from apps.backends.models import Cluster
from apps.jobs.models import Job
from apps.scheduling.models import Verdict
from tests.browser.conftest import WIDTHS, overflow

Open = Callable[..., Page]
MakeJob = Callable[..., Job]
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

LONG = "wide-" * 40


@pytest.fixture
def jobs(make_job: MakeJob) -> list[Job]:
    return [
        make_job(name, tenant, place=place, verdict={"code": code})
        for place, (name, tenant, code) in enumerate(
            [("vid-diffusion-14b", "vision", "capacity"), ("llama-70b-sft", "nlp", "placement"),
             (LONG, "nlp/alignment", "ceiling"), ("שלום <b>x</b>", "nlp", "capacity")]
        )
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways_and_no_policy_is_broken(
    open_page: Open, jobs: list[Job], width: int, scheme: str
) -> None:
    page = open_page("/queue/", width=width, color_scheme=scheme)

    for path in ("/queue/?state=running", "/queue/?tenant=nlp", "/queue/", "/jobs/new/", "/profile/",
                 f"/jobs/{jobs[2].pk}/cancel/", "/jump/?q=nothing", f"/jump/?q={LONG}"):  # fmt: skip
        page.goto(path)
        assert overflow(page) <= 0, path


def test_targets_are_large_enough_for_a_finger(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/", width=400)

    small = page.eval_on_selector_all(
        "main button, main summary, main .button, main .chip, nav[aria-label=Pages] a, .menu summary",
        """all => all.map(e => [e.textContent.trim(), e.getBoundingClientRect()])
           .filter(([_, box]) => box.width && box.height && (box.height < 24 || box.width < 24))
           .map(([text]) => text)""",
    )
    assert small == []


@pytest.mark.parametrize("width", [400, 1280])
def test_links_that_stand_alone_are_large_enough_too(
    open_page: Open, jobs: list[Job], width: int
) -> None:
    page = open_page("/", who="alice", width=width)

    for path in ("/", "/queue/", "/waterfall/", f"/jobs/{jobs[1].pk}/", "/profile/"):
        page.goto(path)
        small = page.eval_on_selector_all(
            "main a, main button, main summary",
            """all => all.filter(e => getComputedStyle(e).display !== "inline")
               .map(e => [e.outerHTML.slice(0, 80), e.getBoundingClientRect().height])
               .filter(([_, height]) => height && height < 24)""",
        )
        assert small == [], path


def test_a_card_of_another_teams_job_has_no_empty_figures(
    open_page: Open, jobs: list[Job], make_job: MakeJob
) -> None:
    make_job("secret", "vision", place=9)
    page = open_page("/queue/", who="bob", width=400)

    row = page.locator("[data-row][data-other]").first

    expect(row).to_contain_text("a job of")
    expect(row.locator(".line-state")).to_be_visible()
    for name in ("waiting", "priority", "why", "start"):
        expect(row.locator(f".line-{name}")).to_be_hidden()


def test_without_javascript_everything_is_there_and_works(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/", width=400, java_script_enabled=False)

    expect(page.locator("[data-row]")).to_have_count(4)
    page.locator("summary", has_text="+ tenant").click()
    page.locator("#chip-tenant").select_option("nlp/alignment")
    page.locator("form.chip-form button:visible").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    page.locator("a", has_text="tenant: nlp/alignment").click()
    expect(page.locator("[data-row]")).to_have_count(4)
    page.locator("#menu > summary").click()
    page.locator("#menu a", has_text="Queue").click()
    page.goto("/jobs/new/")
    page.fill("#id_name", "by-hand")
    page.click("text=Submit 1 job")
    assert Job.objects.filter(name="by-hand").exists()


def test_what_was_refused_gets_the_focus_and_leads_to_its_field(
    open_page: Open, jobs: list[Job]
) -> None:
    page = open_page("/jobs/new/")
    page.fill("#id_name", "x")
    page.fill("#id_size", "0")

    with page.expect_response(lambda answer: answer.status == 422):
        page.click("text=Submit 1 job")
    open_page.provoked.append("status of 422")  # type: ignore[attr-defined]

    expect(page.locator("#errors")).to_be_focused()
    page.locator("#errors a").click()
    expect(page.locator("#id_size")).to_be_focused()
    described = page.locator("#id_size").get_attribute("aria-describedby") or ""
    assert "id_size_error" in described


def test_keys_move_open_and_help_and_are_off_in_fields(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/")

    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(f"#job-{jobs[1].pk} a").first).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator(f"#job-{jobs[0].pk} a").first).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#jump")).to_be_focused()
    page.keyboard.type("jk?")
    expect(page.locator("#jump")).to_have_value("jk?")
    expect(page.locator("#help")).to_be_hidden()
    page.goto("/profile/")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url("**/queue/")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{jobs[0].pk}/")


def test_keys_that_are_switched_off_do_nothing(open_page: Open, jobs: list[Job]) -> None:
    User.objects.filter(username="admin").update(keys_enabled=False)
    page = open_page("/queue/")

    page.keyboard.press("?")
    page.keyboard.press("/")

    expect(page.locator("#help")).to_be_hidden()
    expect(page.locator("#jump")).not_to_be_focused()


def test_the_jump_box_offers_what_there_is(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/")

    page.fill("#jump", "llama")
    expect(page.locator("#jump-list [role=option]")).to_have_count(1)
    expect(page.locator("#jump")).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#jump")).to_have_attribute("aria-activedescendant", "jump-list-0")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{jobs[1].pk}/")


def refresh(page: Page) -> None:
    """Ask for what the timer would ask for."""
    with page.expect_response("**/queue/**"):
        page.evaluate("document.dispatchEvent(new Event('rollcall:tick'))")
    page.wait_for_timeout(150)


def test_a_refresh_replaces_the_numbers_in_place(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/")
    assert "4 jobs wait" in page.locator(".answer").inner_text()

    Job.objects.filter(pk=jobs[0].pk).update(state="CANCELLED")
    refresh(page)

    expect(page.locator(".answer")).to_contain_text("3 jobs wait")
    expect(page.locator("[data-row]")).to_have_count(3)
    assert page.locator("#stamp").count() == 1


def test_a_refresh_spares_what_is_in_use(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/")
    link = page.locator(f"#job-{jobs[1].pk} a").first
    link.focus()
    page.evaluate("window.scrollTo(0, 40)")

    for _ in range(3):
        refresh(page)

    expect(page.locator(f"#job-{jobs[1].pk} a").first).to_be_focused()


def test_an_open_filter_outlives_a_refresh(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/")
    page.locator("summary", has_text="+ tenant").click()

    for _ in range(3):
        refresh(page)

    expect(page.locator("#chip-tenant")).to_be_visible()


def test_rows_do_not_change_places_under_the_pointer(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/")
    page.locator(f"#job-{jobs[1].pk} .line-why").hover()
    Verdict.objects.filter(job=jobs[0]).update(position=9)

    refresh(page)

    first = page.locator("[data-row]").first
    expect(first).to_have_id(f"job-{jobs[0].pk}")
    chip = page.locator("[data-order-changed]")
    expect(chip).to_be_visible()
    chip.click()
    expect(page.locator("[data-row]").first).to_have_id(f"job-{jobs[1].pk}")
    expect(chip).to_be_hidden()


def test_a_failed_refresh_keeps_the_old_numbers_and_says_so(
    open_page: Open, jobs: list[Job]
) -> None:
    page = open_page("/queue/")
    page.route("**/queue/**", lambda route: route.abort())

    page.evaluate("document.dispatchEvent(new Event('rollcall:tick'))")

    strip = page.locator("#strip")
    expect(strip).to_contain_text("Could not refresh: the server did not answer. Shown as of")
    expect(page.locator("[data-row]")).to_have_count(4)
    open_page.provoked += ["net::ERR", "htmx:"]  # type: ignore[attr-defined]
    page.unroute("**/queue/**")
    with page.expect_response("**/queue/**"):
        strip.locator("button", has_text="Try again").click()
    expect(strip).to_be_hidden()


def test_a_pause_stops_the_refresh_until_it_is_resumed(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.keyboard.press(".")
    expect(page.locator("#strip")).to_contain_text("The refresh is paused.")
    page.evaluate("document.dispatchEvent(new Event('rollcall:tick'))")
    page.wait_for_timeout(300)
    # The browser fetches its icon when it likes.
    assert [url for url in asked if "/static/" not in url] == []

    with page.expect_response("**/queue/**"):
        page.keyboard.press(".")
    expect(page.locator("#strip")).to_be_hidden()


def test_only_a_change_of_the_stamps_state_is_announced(
    open_page: Open, jobs: list[Job], world: Any
) -> None:
    page = open_page("/queue/")
    announcer = page.locator("#announcer")

    refresh(page)
    expect(announcer).to_have_text("")
    Cluster.objects.update(observed_at=world.cluster.created_at.replace(year=2020))
    refresh(page)

    expect(announcer).to_have_text("The cluster has not reported.")
    expect(page.locator("#stamp")).to_have_attribute("data-state", "lost")


def test_the_first_stop_of_the_tab_key_skips_to_the_content(
    open_page: Open, jobs: list[Job]
) -> None:
    page = open_page("/queue/")

    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.locator("#main")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_theme_that_was_chosen_wins_over_the_systems(
    open_page: Open, jobs: list[Job], scheme: str
) -> None:
    page = open_page("/profile/", color_scheme=scheme)
    other = {"light": "dark", "dark": "light"}[scheme]
    ground = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}
    expect(page.locator("html")).to_have_css("background-color", ground[scheme])

    page.locator("#id_theme").select_option(other)
    page.click("text=Save the profile")

    expect(page.locator("html")).to_have_css("background-color", ground[other])


def test_each_state_keeps_its_mark_in_forced_colours(open_page: Open, jobs: list[Job]) -> None:
    page = open_page("/queue/", forced_colors="active")

    fills = page.eval_on_selector_all(
        ".term-bar .term", "all => all.map(e => getComputedStyle(e).fill)"
    )
    assert len(set(fills)) > 1
