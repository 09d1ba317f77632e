"""The jump box finds by start of name or number, and only what its reader may see."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.test import Client

from apps.jobs.models import Job

AsUser = Callable[[str], Client]
MakeJob = Callable[..., Job]


def hits(client: Client, asked: str) -> list[str]:
    return [row["text"] for row in client.get("/jump.json", {"q": asked}).json()["rows"]]


def test_one_hit_redirects_and_several_list(as_user: AsUser, make_job: MakeJob) -> None:
    one, two = make_job("llama-a", "nlp"), make_job("llama-b", "nlp")
    client = as_user("alice")

    assert client.get("/jump/?q=llama-a")["Location"] == f"/jobs/{one.pk}/"
    assert client.get(f"/jump/?q={two.pk}")["Location"] == f"/jobs/{two.pk}/"
    assert client.get(f"/jump/?q=%23{two.pk}")["Location"] == f"/jobs/{two.pk}/"
    html = client.get("/jump/?q=llama").content.decode()
    assert "2 things start with <bdi>llama</bdi>" in html


def test_another_teams_job_tenant_and_people_do_not_exist(
    as_user: AsUser, make_job: MakeJob
) -> None:
    theirs = make_job("vision-secret", "vision/generative")

    for who in ("alice", "bob", "carol"):
        client = as_user(who)
        for asked in ("vision", "vision-secret", str(theirs.pk), "generative", "vera"):
            assert hits(client, asked) == []
            page = client.get("/jump/", {"q": asked})
            assert f"Nothing you can see is called <bdi>{asked}</bdi>" in page.content.decode()
    assert hits(as_user("admin"), "vision") == ["vision", "vision/generative", "vision-secret"]
    assert hits(as_user("admin"), "vera") == ["vera"]


def test_a_node_is_found_by_everybody(as_user: AsUser, world: SimpleNamespace) -> None:
    assert len(hits(as_user("carol"), "gpu-n")) == 4


@pytest.mark.parametrize("asked", ["", "   ", "%", "_", "x" * 10_000, "\x00", "9" * 30, "<b>"])
def test_odd_questions_find_nothing_and_break_nothing(
    as_user: AsUser, make_job: MakeJob, asked: str
) -> None:
    make_job("llama")
    client = as_user("admin")

    assert hits(client, asked) == []
    answer = client.get("/jump/", {"q": asked})
    assert answer.status_code == 200
    assert "<b>" not in answer.content.decode().replace("&lt;b&gt;", "")


def test_the_box_lists_eight_at_most(as_user: AsUser, make_job: MakeJob) -> None:
    for number in range(30):
        make_job(f"llama-{number}")

    assert len(hits(as_user("alice"), "llama")) == 8
    assert as_user("alice").get("/jump/?q=llama").content.decode().count("data-row") == 20
