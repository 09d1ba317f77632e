"""The frame of every page: policy, log-in, navigation, stamp, errors, an empty installation."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.accounts.models import User
from apps.backends.models import Cluster
from apps.console.finders import FOLDER
from apps.console.middleware import API_PAGE_POLICY, maplibre_styles, source_hash, strict_policy
from apps.console.stamps import stamp_of

AsUser = Callable[[str], Client]
MakeJob = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
PAGES = ("/queue/", "/jobs/new/", "/profile/", "/jump/?q=x", "/nowhere/")


def test_every_answer_of_ours_has_the_strict_policy(
    as_user: AsUser, world: SimpleNamespace
) -> None:
    client = as_user("admin")

    for url in (*PAGES, "/queue.json", "/login/"):
        policy = client.get(url)["Content-Security-Policy"]
        assert policy == strict_policy()
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'")


def test_the_page_of_the_api_alone_has_a_policy_of_its_own(
    as_user: AsUser, world: SimpleNamespace
) -> None:
    answer = as_user("admin").get("/api/docs/")

    assert answer.status_code == 200
    assert answer["Content-Security-Policy"] == API_PAGE_POLICY
    assert "script-src 'self';" in API_PAGE_POLICY


def test_the_policy_knows_the_style_sheet_that_the_installed_plotly_carries() -> None:
    sheets = maplibre_styles((FOLDER / "plotly.min.js").read_text(encoding="utf-8"))

    assert len(sheets) == 1
    assert sheets[0].startswith(".maplibregl-map{")
    assert source_hash(sheets[0]) in strict_policy()
    assert source_hash("") in strict_policy()


def test_a_sources_hash_is_sha_256_in_base64() -> None:
    assert source_hash("") == "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"


@pytest.mark.parametrize("path", sorted((ROOT / "templates").rglob("*.html")), ids=lambda p: p.name)
def test_no_template_holds_what_the_policy_refuses(path: Path) -> None:
    text = re.sub(r"\{#.*?#\}", "", path.read_text())

    assert not re.search(r"\sstyle\s*=", text)
    assert not re.search(r"<style\b|javascript:|\son[a-z]+\s*=|hx-on", text)
    for tag in re.findall(r"<script\b[^>]*>", text):
        assert "src=" in tag or 'type="application/json"' in tag
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)


@pytest.mark.parametrize("path", sorted((ROOT / "static/js").glob("*.js")), ids=lambda p: p.name)
def test_no_script_imports_another_or_evaluates_text(path: Path) -> None:
    text = path.read_text()

    assert not re.search(
        r"^\s*import\b|\beval\(|new Function|innerHTML|document\.write", text, re.M
    )


@pytest.mark.parametrize("path", sorted((ROOT / "static/css").glob("*.css")), ids=lambda p: p.name)
def test_every_colour_of_a_style_sheet_is_a_token(path: Path) -> None:
    if path.name == "tokens.css":
        return
    colours = set(re.findall(r"#[0-9a-fA-F]{3,8}\b(?!-)", path.read_text()))

    assert colours <= {"#0008"}  # the shade behind a dialog
    defined = set(re.findall(r"(--[a-z0-9-]+):", (ROOT / "static/css/tokens.css").read_text()))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", path.read_text())) <= defined


def test_a_wrong_name_and_a_wrong_password_get_the_same_sentence(db: None) -> None:
    User.objects.create_user("mira", password="correct-horse")
    client = Client()

    wrong = [
        client.post("/login/", {"username": name, "password": "no"}).content.decode()
        for name in ("mira", "nobody")
    ]

    sentence = "This name and password do not belong together."
    assert all(sentence in html for html in wrong)
    token = re.compile(r'name="csrfmiddlewaretoken" value="\w+"')
    same = [token.sub("", html).replace("mira", "").replace("nobody", "") for html in wrong]
    assert same[0] == same[1]
    right = client.post("/login/?next=/queue/", {"username": "mira", "password": "correct-horse",
                                                 "next": "/queue/"})  # fmt: skip
    assert right["Location"] == "/queue/"
    assert client.post("/logout/")["Location"] == "/login/"


def test_a_log_in_leads_to_no_other_site(db: None) -> None:
    User.objects.create_user("mira", password="correct-horse")

    answer = Client().post("/login/", {"username": "mira", "password": "correct-horse",
                                       "next": "https://evil.example/"})  # fmt: skip

    assert answer["Location"] == "/"


def test_the_navigation_lists_what_exists_for_each_role(
    as_user: AsUser, world: SimpleNamespace, make_job: MakeJob
) -> None:
    make_job("a", "nlp")
    make_job("b", "vision")

    def entries(name: str) -> dict[str, str | None]:
        shell = as_user(name).get("/profile/").context["shell"]
        return {e.text: e.count for group in shell.nav for e in group.entries}

    admin, lead, member = entries("admin"), entries("alice"), entries("bob")
    assert (admin["Queue"], lead["Queue"], member["Queue"]) == ("2", "1", "0")
    assert "Django admin" in admin
    assert "Django admin" not in lead
    assert "Idle cost" in lead
    assert "Idle cost" not in member
    assert "atlas" in member
    assert {"Evictions"} <= admin.keys() & member.keys()
    assert not {"Statements", "Tenants", "What-if"} & admin.keys()


def test_keys_are_offered_unless_someone_switched_them_off(
    as_user: AsUser, world: SimpleNamespace
) -> None:
    client = as_user("bob")
    assert "data-keys" in client.get("/profile/").content.decode()

    client.post("/profile/", {"theme": "dark"})

    html = client.get("/profile/").content.decode()
    assert "data-keys" not in html
    assert 'data-theme="dark"' in html
    client.post("/profile/", {"theme": "", "keys_enabled": "on"})
    assert "data-theme" not in client.get("/profile/").content.decode()
    assert client.post("/profile/", {"theme": "pink"}).status_code == 422


def test_nothing_is_the_same_404_with_a_way_on(as_user: AsUser, world: SimpleNamespace) -> None:
    answer = as_user("carol").get("/nowhere/")

    html = answer.content.decode()
    assert answer.status_code == 404
    assert "There is nothing here that you can see." in html
    assert 'action="/jump/"' in html


def test_a_failure_says_its_id_and_nothing_of_its_cause(
    as_user: AsUser, world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("apps.console.views_queue.room_in", fail)
    client = as_user("admin")
    client.raise_request_exception = False

    answer = client.get("/queue/", headers={"X-Request-ID": "abcdef0123456789"})

    html = answer.content.decode()
    assert answer.status_code == 500
    assert "It is in the log as abcdef0123456789." in html
    assert "secret" not in html
    assert "Traceback" not in html


def test_an_empty_installation_shows_the_way_and_no_zeros(db: None) -> None:
    admin, bob = (
        User.objects.create(username="root", is_admin=True),
        User.objects.create(username="b"),
    )
    client = Client()

    client.force_login(admin)
    steps = client.get("/queue/").content.decode()
    client.force_login(bob)
    waiting = client.get("/queue/").content.decode()

    assert "Three steps to a first number." in steps
    assert steps.count("not yet</span>") == 3
    assert "No cluster yet. Your admin adds one." in waiting
    assert "Nothing waits" not in steps + waiting


@pytest.mark.parametrize(
    ("ago", "state"), [(0, "fresh"), (6, "fresh"), (20, "late"), (61, "late"), (200, "lost")]
)
def test_a_stamp_turns_late_and_then_lost(world: SimpleNamespace, ago: int, state: str) -> None:
    wall = timezone.now()
    world.cluster.observed_at = wall - timedelta(seconds=ago)

    stamp = stamp_of([world.cluster], wall=wall)

    assert stamp.state == state
    assert stamp.tick_id == world.tick.pk
    assert ("ago, expected every 2 s" in stamp.trouble) == (state != "fresh")


def test_a_stamp_over_several_clusters_is_the_oldest_and_names_the_late_one(
    world: SimpleNamespace,
) -> None:
    wall = timezone.now()
    world.cluster.observed_at = wall
    cedar = Cluster(name="cedar", observed_at=wall - timedelta(seconds=400), tick_seconds=10)

    stamp = stamp_of([world.cluster, cedar], wall=wall)

    assert (stamp.state, stamp.at) == ("lost", cedar.observed_at)
    assert stamp.trouble == "cedar: 6 min 40 s ago, expected every 10 s"


def test_a_cluster_never_looked_at_says_so(world: SimpleNamespace) -> None:
    assert stamp_of([Cluster(name="new")]).note == "not observed yet"


def test_a_virtual_clock_is_fresh_by_its_last_contact_and_says_what_it_does(
    world: SimpleNamespace,
) -> None:
    wall = timezone.now()
    past = wall - timedelta(days=3)
    cluster = Cluster(name="v", clock_now=past, observed_at=past, not_before=wall)

    stamp = stamp_of([cluster, world.cluster], wall=wall)

    assert (stamp.state, stamp.at) == ("fresh", past)
    assert "catching up" in stamp.note


def test_every_page_has_one_h1_a_title_of_its_own_landmarks_and_labels(
    as_user: AsUser, world: SimpleNamespace, make_job: MakeJob
) -> None:
    job = make_job(place=0)
    client, titles = as_user("admin"), []

    for url in (*PAGES, f"/jobs/{job.pk}/cancel/", "/queue/?state=running"):
        html = client.get(url).content.decode()
        titles.append(re.findall(r"<title>(.*?)</title>", html, re.S)[0])
        assert html.count("<h1") == 1
        assert html.count("<main") == 1
        assert '<html lang="en"' in html
        ids = re.findall(r'\sid="([^"]+)"', html)
        assert len(ids) == len(set(ids)), url
        labelled = set(re.findall(r'<label[^>]* for="([^"]+)"', html))
        fields = re.findall(r"<(?:input|select|textarea)\b[^>]*>", html)
        for field in fields:
            if 'type="hidden"' not in field:
                assert re.search(r'\bid="([^"]+)"', field)[1] in labelled, field  # type: ignore[index]
        for word in ("None", "NaN", "null", "Infinity"):
            assert not re.search(rf">[^<]*\b{word}\b", html), (url, word)
    assert len(set(titles[:5])) == 5


def test_a_page_that_names_no_icon_gets_ours(client: Client) -> None:
    answer = client.get("/favicon.ico")

    assert answer.status_code == 302
    assert answer["Location"].endswith("img/icon.svg")


def test_the_operators_pages_say_whose_they_are(as_user: Callable[[str], Client]) -> None:
    page = as_user("admin").get("/admin/").content.decode()

    assert "Rollcall, for operators" in page
    assert "Django" not in page


def test_a_token_is_shown_once_works_and_can_be_taken_back(
    as_user: Callable[[str], Client], world: SimpleNamespace
) -> None:
    client = as_user("bob")

    given = client.post("/profile/tokens/", {"token-name": "nightly <b>"})
    secret = given.context["secret"]
    token = world.people["bob"].tokens.get()

    assert given.status_code == 201
    assert secret in given.content.decode()
    assert b"<b>" not in given.content.split(b"nightly")[1][:10]
    assert secret not in client.get("/profile/").content.decode()
    me = Client().get("/api/v1/me", headers={"Authorization": f"Token {secret}"})
    assert me.json()["username"] == "bob"
    assert as_user("alice").post(f"/profile/tokens/{token.pk}/take-back/").status_code == 404
    assert client.post(f"/profile/tokens/{token.pk}/take-back/").status_code == 302
    assert "none" in client.get("/profile/").content.decode()
    me = Client().get("/api/v1/me", headers={"Authorization": f"Token {secret}"})
    assert me.status_code == 401


def test_a_token_without_a_name_is_refused_under_its_field(
    as_user: Callable[[str], Client], world: SimpleNamespace
) -> None:
    answer = as_user("bob").post("/profile/tokens/", {"token-name": " "})

    assert answer.status_code == 422
    assert "Say what it is for." in answer.content.decode()
    assert not world.people["bob"].tokens.exists()
