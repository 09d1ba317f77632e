"""Sentences of preemption's reasons: who leaves is a link for who may follow it, else unnamed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client

from apps.common import show
from apps.common.time import to_us
from apps.console.reasons import linked
from apps.jobs.models import Job
from apps.scheduling.models import Verdict

AT = datetime(2026, 1, 5, 12, 11, tzinfo=UTC)
AsUser = Callable[[str], Client]
MakeJob = Callable[..., Job]


@pytest.fixture
def gang(make_job: MakeJob) -> Job:
    return make_job("gang", "nlp", place=0)


def waits(gang: Job, victims: list[Job], until: datetime) -> None:
    """Have the newest tick say that the gang waits for these to leave."""
    Verdict.objects.filter(job=gang).update(
        code="leaving", detail={"jobs": [v.pk for v in victims], "until_us": to_us(until)}
    )


def why(client: Client) -> str:
    return str(client.get("/queue/").context["rows"][0].why)


def test_one_that_leaves_is_a_link_for_who_sees_it(
    as_user: AsUser, make_job: MakeJob, gang: Job, now: datetime
) -> None:
    until = now + timedelta(seconds=90)
    victim = make_job("<b>vit</b>", "vision", state="PREEMPTING")
    waits(gang, [victim], until)
    at = show.instant(until, now=now, style="seconds")

    admin, alice = why(as_user("admin")), why(as_user("alice"))

    link = f'<a href="/jobs/{victim.pk}/"><bdi>&lt;b&gt;vit&lt;/b&gt;</bdi></a>'
    assert admin == f"Waits for {link} to leave, by {at}."
    assert alice == f"Waits for <bdi>a job of vision</bdi> to leave, by {at}."


def test_several_of_one_other_team_are_counted_and_own_ones_named(
    as_user: AsUser, make_job: MakeJob, gang: Job, now: datetime
) -> None:
    theirs = [make_job(f"secret-{k}", "vision", state="PREEMPTING") for k in range(2)]
    own = make_job("own", "nlp", state="PREEMPTING")

    waits(gang, [*theirs, own], now)
    assert "<bdi>2 jobs of vision</bdi> and <bdi>own</bdi> to leave" in why(as_user("alice"))

    waits(gang, [*theirs, own, make_job("more", "nlp")], now)
    assert "Waits for <b>4 jobs to leave</b>" in why(as_user("alice"))


@pytest.mark.parametrize(
    ("code", "columns", "said", "note"),
    [
        ("guarantee", {"needed": 8, "available": 2},
         "Needs 8 GPUs; 2 are left of nlp's guarantee, and work that cannot be preempted stays",
         "stays within a guarantee"),
        ("deferred", {}, "It may evict, and not before ", "may evict later"),
        ("leaving", {}, "Waits for evicted jobs to leave", "once victims have left"),
    ],
)  # fmt: skip
def test_each_code_has_its_sentence_on_the_queue_the_job_and_as_a_gate(
    code: str, columns: dict[str, Any], said: str, note: str, as_user: AsUser, gang: Job,
    now: datetime, world: SimpleNamespace,
) -> None:  # fmt: skip
    detail = {"tenant": world.tenants["nlp"].pk, "until_us": to_us(now + timedelta(minutes=5))}
    Verdict.objects.filter(job=gang).update(code=code, detail=detail, **columns)
    client = as_user("alice")

    (row,) = client.get(f"/queue/?reason={code}").context["rows"]
    page = client.get(f"/jobs/{gang.pk}/")
    exported = client.get("/queue.json").json()["rows"][0]

    plain = row.why.replace("<b>", "").replace("</b>", "").replace("&#x27;", "'")
    assert plain.startswith(said)
    assert row.start_note == note
    assert page.context["why"]["sentence"].startswith(said)
    assert [gate["ok"] for gate in page.context["why"]["gates"]].count(False) == 1
    assert exported["reason"].startswith(said)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"code": "deferred", "until": AT},
            "It may evict, and not before <b>12:11:00</b>: a limit",
        ),
        ({"code": "begin_time", "what": AT}, "Not to begin before <b>5 Jan 12:11:00</b>."),
        ({"code": "capacity", "needed": 8}, "Needs <b>8 GPUs; 0 are free</b>."),
    ],
)
def test_a_clock_in_a_sentence_is_strong_as_a_whole(facts: dict[str, Any], said: str) -> None:
    style = "5 Jan %H:%M:%S" if facts["code"] == "begin_time" else "%H:%M:%S"

    assert said in linked(facts, lambda at: at.strftime(style))
