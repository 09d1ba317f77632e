"""The buttons that play the demo's stories: who has them, what a click does, and a second one."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.jobs.models import Arrival, Job
from apps.scheduling.stories import STORIES
from tests.console.ledgered import text_of

BUTTONS = ("Play a kill", "Play a checkpoint", "Play a demotion", "Play a shrink")
NAMES = ("kill", "checkpoint", "demote", "shrink")


@pytest.fixture(autouse=True)
def _demo(settings):
    settings.DEMO = True


@pytest.mark.parametrize(("who", "shown"), [("admin", True), ("alice", True), ("bob", False)])
def test_who_leads_a_team_has_a_button_for_each(world, as_user, who, shown):
    page = text_of(as_user(who).get("/evictions/"))

    assert [button in page for button in BUTTONS] == [shown] * 4


@pytest.mark.parametrize("name", NAMES)
def test_a_click_plays_it_and_shows_who_makes_way(world, as_user, name):
    answer = as_user("alice").post(f"/evictions/story/{name}/", follow=True)

    job = Job.objects.get(name="makes way")
    assert answer.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
    assert f"The story of {STORIES[name].title} begins" in text_of(answer)
    assert (job.cluster.name, job.tenant.path) == ("story", "nlp/alignment")
    assert (job.submitted_by.username, Arrival.objects.get().tenant.path) == (
        "alice",
        "vision/generative",
    )


def test_a_second_click_is_told_what_is_being_played(world, as_user):
    alice = as_user("alice")
    alice.post("/evictions/story/kill/")

    again = alice.post("/evictions/story/checkpoint/", follow=True)
    nine = alice.post("/waterfall/story/", follow=True)

    assert again.redirect_chain == [("/evictions/", 302)]
    assert nine.redirect_chain == [("/waterfall/", 302)]
    for answer in (again, nine):
        assert "The story of a kill is being told on the cluster story" in text_of(answer)
    assert Job.objects.count() == 2


def test_who_does_not_see_the_job_to_watch_stays_on_the_page(world, as_user):
    answer = as_user("vera").post("/evictions/story/kill/", follow=True)

    assert answer.redirect_chain == [("/evictions/", 302)]
    assert "The story of a kill begins" in text_of(answer)
    assert f"/jobs/{Job.objects.get(name='makes way').pk}/" not in answer.content.decode()


@pytest.mark.parametrize("name", NAMES)
def test_elsewhere_and_for_members_and_strangers_there_is_none(world, as_user, settings, name):
    path = f"/evictions/story/{name}/"

    assert [as_user(who).post(path).status_code for who in ("bob", "carol")] == [404, 404]
    assert Client().post(path).url == f"/login/?next={path}"
    settings.DEMO = False
    assert as_user("admin").post(path).status_code == 404
    assert "Play a" not in text_of(as_user("admin").get("/evictions/"))
    assert not Job.objects.exists()


def test_a_story_that_is_none_is_not_found(world, as_user):
    assert as_user("admin").post("/evictions/story/nine/").status_code == 404


def test_only_a_post_with_its_token_plays(world, as_user):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(world.people["admin"])

    assert as_user("admin").get("/evictions/story/kill/").status_code == 405
    assert strict.post("/evictions/story/kill/").status_code == 403
    assert not Job.objects.exists()
