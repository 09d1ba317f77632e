"""The line as each reader may see it, at any length, with any name, under any address."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.common.time import to_us
from apps.jobs.models import Job
from apps.jobs.states import JobState
from apps.scheduling.models import Verdict

AsUser = Callable[[str], Client]
MakeJob = Callable[..., Job]


def text_of(client: Client, url: str = "/queue/") -> str:
    answer = client.get(url)
    assert answer.status_code == 200, answer.content[:500]
    return answer.content.decode().replace("\N{NO-BREAK SPACE}", " ")


def rows_of(client: Client, url: str = "/queue.json") -> list[dict[str, Any]]:
    return list(client.get(url).json()["rows"])


@pytest.fixture
def two_teams(make_job: MakeJob) -> SimpleNamespace:
    return SimpleNamespace(
        other=make_job("secret-vision-name", "vision/generative", place=0),
        own=make_job("llama-70b-sft", "nlp/alignment", place=1),
        sibling=make_job("nlp-other", "nlp", place=2),
    )


def test_an_admin_sees_every_row_with_its_name_reason_and_link(
    as_user: AsUser, two_teams: SimpleNamespace
) -> None:
    html = text_of(as_user("admin"))

    for job in (two_teams.other, two_teams.own, two_teams.sibling):
        assert f'href="/jobs/{job.pk}/"' in html
        assert job.name in html
    assert "3 jobs wait for 96 GPUs." in html
    assert "Needs <b>32 GPUs; 0 are free</b>" in html


def test_the_only_job_that_waits_is_not_the_first_of_several(
    as_user: AsUser, make_job: MakeJob
) -> None:
    make_job("others", "vision", place=0)
    make_job("lonely", "nlp", place=1)

    told = re.sub("<[^>]*>", "", text_of(as_user("alice")))

    assert "1 job of nlp waits for 32 GPUs. It is lonely, 2nd in line." in told


def test_a_lead_is_told_of_others_their_size_and_place_alone(
    as_user: AsUser, two_teams: SimpleNamespace
) -> None:
    client = as_user("alice")

    for told in (text_of(client), client.get("/queue.csv").getvalue().decode()):
        assert "secret-vision-name" not in told
        assert "vision/generative" not in told
        assert str(two_teams.other.pk) not in told
        assert "a job of vision" in told
        assert "llama-70b-sft" in told
    assert "2 jobs of nlp wait for 64 GPUs. The first of them, 2nd in line," in text_of(client)
    row = rows_of(client)[0]
    assert (row["position"], row["gpus"], row["job_id"], row["reason"]) == (1, 32, None, None)


def test_a_member_sees_own_jobs_first_and_not_the_team_above(
    as_user: AsUser, two_teams: SimpleNamespace, world: SimpleNamespace
) -> None:
    Job.objects.filter(pk=two_teams.own.pk).update(submitted_by=world.people["bob"])

    rows = rows_of(as_user("bob"))

    assert [row["job"] for row in rows] == ["llama-70b-sft", "a job of vision", "a job of nlp"]
    assert [row["position"] for row in rows] == [2, 1, 3]


def test_a_stranger_is_told_no_name_at_all(as_user: AsUser, two_teams: SimpleNamespace) -> None:
    client = as_user("carol")

    html = text_of(client)

    assert "No job of your teams waits." in html
    for name in ("secret-vision-name", "llama-70b-sft", "nlp-other"):
        assert name not in html
    assert {row["job"] for row in rows_of(client)} == {"a job of vision", "a job of nlp"}
    assert 'href="/jobs/' not in html.replace('href="/jobs/new/"', "")


@pytest.mark.parametrize(
    ("setting", "told"), [("named", "secret-vision-name"), ("hidden", "a job of another tenant")]
)
def test_the_setting_widens_and_narrows_what_is_told(
    as_user: AsUser, two_teams: SimpleNamespace, settings: Any, setting: str, told: str
) -> None:
    settings.OTHER_TENANTS = setting

    html = text_of(as_user("alice"))

    assert told in html
    if setting == "hidden":
        assert "vision" not in html


def test_nobody_is_let_in_without_a_log_in(db: None) -> None:
    for url in ("/queue/", "/queue.csv", "/queue.json", "/jobs/new/", "/jump/?q=x", "/jump.json"):
        answer = Client().get(url)

        assert answer.status_code == 302
        assert answer["Location"].startswith("/login/?next=")


@pytest.mark.parametrize("count", [0, 1, 50, 51, 1_000])
def test_a_page_has_fifty_rows_and_few_queries_however_long_the_line(
    as_user: AsUser, make_job: MakeJob, django_assert_max_num_queries: Any, count: int,
    world: SimpleNamespace,
) -> None:  # fmt: skip
    if count:
        first = make_job(place=0)
        jobs = Job.objects.bulk_create(
            Job(name=f"j{k}", tenant=world.tenants["nlp" if k % 2 else "vision"],
                cluster=first.cluster, pool=first.pool, priority_class=first.priority_class,
                submitted_at=first.submitted_at, state_since=first.submitted_at)
            for k in range(1, count)
        )  # fmt: skip
        known = {
            f.attname: getattr(first.verdict, f.attname) for f in Verdict._meta.concrete_fields
        }
        Verdict.objects.bulk_create(
            Verdict(**(known | {"job_id": job.pk, "position": place, "code": "reserved",
                                "detail": {"for": first.pk}}))
            for place, job in enumerate(jobs, start=1)
        )  # fmt: skip

    for name in ("admin", "alice", "bob"):
        client = as_user(name)
        with django_assert_max_num_queries(15):
            html = text_of(client, "/queue/?cluster=atlas&pool=h100&waiting_longer=1s"
                           if name == "admin" else "/queue/?cluster=atlas")  # fmt: skip
        assert html.count("data-row") == min(count, 50)
        assert ('rel="next"' in html) == (count > 50)


def test_paging_shows_each_row_once_in_the_engines_order_and_back(
    as_user: AsUser, make_job: MakeJob
) -> None:
    for place in range(120):
        make_job(f"job-{place:03}", place=place)
    client, url, seen, pages = as_user("admin"), "/queue/?cluster=atlas", [], []

    while url:
        page = client.get(url).context
        seen += [row.told.text for row in page["rows"]]
        pages.append([row.told.text for row in page["rows"]])
        last, url = page, page["pager"].behind_url

    assert seen == [f"job-{place:03}" for place in range(120)]
    back = client.get(last["pager"].ahead_url).context
    assert [row.told.text for row in back["rows"]] == pages[-2]


def test_a_job_no_tick_has_judged_stands_last_and_says_so(
    as_user: AsUser, make_job: MakeJob
) -> None:
    make_job("judged", place=0)
    make_job("fresh")

    rows = as_user("admin").get("/queue/").context["rows"]

    assert [row.told.text for row in rows] == ["judged", "fresh"]
    assert rows[1].why == "Submitted after the newest tick; decided at the next."


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "שלום", "x" * 200, " a ", "🐘 “q”"])
def test_any_name_is_shown_as_text_and_cut(as_user: AsUser, make_job: MakeJob, name: str) -> None:
    make_job(name, place=0)

    html = text_of(as_user("admin"))

    assert "<script>alert" not in html
    assert "x" * 49 not in html.replace("x" * 200, "", 2)


def test_ten_thousand_characters_in_the_address_are_refused_by_name(
    as_user: AsUser, world: SimpleNamespace
) -> None:
    answer = as_user("admin").get("/queue/", {"tenant": "x" * 10_000})

    assert answer.status_code == 400
    assert "tenant" in answer.content.decode()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("state=what", "state"), ("reason=what", "reason"), ("size=-1", "size"),
        ("size=1e3", "size"), ("waiting_longer=soon", "waiting_longer"), ("tenant=nobody", "tenant"),
        ("cluster=nowhere", "cluster"), ("pool=none", "pool"), ("after=x", "after"),
        ("after=1.2", "after"), ("after=1.2.3&before=1.2.3", "before"), ("sort=up", "sort"),
        ("colour=red", "colour"), ("size=1&size=2", "size"), ("tenant=%00", "tenant"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["/queue/", "/queue.json", "/queue.csv"])
def test_a_bad_parameter_is_named_not_ignored(
    as_user: AsUser, world: SimpleNamespace, asked: str, named: str, form: str
) -> None:
    answer = as_user("alice").get(f"{form}?{asked}")

    assert answer.status_code == 400
    if form == "/queue/":
        assert f"Open the page without <bdi>{named}</bdi>" in answer.content.decode()
    else:
        # A page's cursors mean nothing to an export: the first of two is the one named.
        assert answer.json()["error"]["field"] == ("after" if named == "before" else named)


def test_another_teams_path_is_no_tenant_to_filter_by(
    as_user: AsUser, two_teams: SimpleNamespace
) -> None:
    client = as_user("alice")

    known = client.get("/queue/?tenant=vision/generative")
    unknown = client.get("/queue/?tenant=vision/nothing")

    assert (known.status_code, unknown.status_code) == (400, 400)
    assert rows_of(client, "/queue.json?tenant=vision")[0]["job"] == "a job of vision"


def test_a_filter_finds_no_other_team_by_what_is_not_told(
    as_user: AsUser, two_teams: SimpleNamespace, now: datetime
) -> None:
    Job.objects.filter(pk=two_teams.other.pk).update(submitted_at=now - timedelta(days=3))
    client = as_user("alice")

    assert all(row["job_id"] for row in rows_of(client, "/queue.json?reason=capacity"))
    assert rows_of(client, "/queue.json?waiting_longer=2d") == []
    assert all(row["job_id"] for row in rows_of(client, "/queue.json?sort=waiting"))


def test_filters_are_chips_that_go_one_by_one(as_user: AsUser, two_teams: SimpleNamespace) -> None:
    client = as_user("admin")

    chips = client.get("/queue/?tenant=nlp&size=2&sort=gpus").context["chips"]

    assert [(chip.key, chip.value) for chip in chips.active] == [("tenant", "nlp"), ("size", "2")]
    assert chips.active[0].remove_url == "/queue/?size=2&sort=gpus"
    assert chips.none_url == "/queue/?sort=gpus"


def test_filters_that_leave_nothing_say_so_and_nothing_at_all_says_something_else(
    as_user: AsUser, make_job: MakeJob
) -> None:
    client = as_user("admin")
    html = text_of(client)
    assert "Nothing waits. 32 GPUs are unallocated." in html

    make_job(place=0)

    assert "No job matches these 2 filters." in text_of(client, "/queue/?size=999&reason=held")


def test_running_and_ended_jobs_are_lists_of_their_own(
    as_user: AsUser, make_job: MakeJob, now: datetime
) -> None:
    make_job("runs", "nlp", state=JobState.RUNNING)
    make_job("other-runs", "vision", state=JobState.RUNNING)
    make_job("ended", "nlp", state=JobState.FAILED, outcome="timed_out", ended_at=now)
    make_job("other-ended", "vision", state=JobState.SUCCEEDED, ended_at=now)
    client = as_user("alice")

    assert [row["job"] for row in rows_of(client, "/queue.json?state=running")] == [
        "a job of vision", "runs",
    ]  # fmt: skip
    ended = text_of(client, "/queue/?state=ended")
    assert "Timed out" in ended
    assert "other-ended" not in ended


def test_csv_and_json_give_the_rows_of_the_page_with_units_in_their_names(
    as_user: AsUser, two_teams: SimpleNamespace, world: SimpleNamespace
) -> None:
    client = as_user("admin")

    table = list(csv.DictReader(io.StringIO(client.get("/queue.csv").getvalue().decode())))
    rows = rows_of(client)

    assert [int(row["job_id"]) for row in table] == [row["job_id"] for row in rows]
    first = rows[1]
    terms = [first[name] for name in first if name.startswith("term_")]
    assert sum(terms) == pytest.approx(first["priority"])
    assert first["tick_id"] == world.tick.pk
    assert {"waiting_seconds", "gpus", "submitted_at", "likely_start_at"} <= first.keys()
    assert "NaN" not in json.dumps(rows)


def test_a_cell_that_looks_like_a_formula_is_not_one(as_user: AsUser, make_job: MakeJob) -> None:
    make_job("=cmd()", place=0)

    assert "'=cmd()" in as_user("admin").get("/queue.csv").getvalue().decode()


def test_a_forecast_is_shown_as_a_bound_and_other_rows_say_why_there_is_none(
    as_user: AsUser, make_job: MakeJob, now: datetime
) -> None:
    at = now + timedelta(minutes=10)
    make_job("first", place=0, verdict={"detail": {"forecast_us": to_us(at)}})
    make_job("held", place=1, verdict={"code": "held"}, held_at=now)

    rows = as_user("admin").get("/queue/").context["rows"]

    assert rows[0].start.startswith("by ")
    assert (rows[1].start, rows[1].start_note) == ("no estimate", "on hold")
    assert rows[1].badge.label == "On hold"


def test_the_name_in_the_way_is_a_link_only_for_who_may_follow_it(
    as_user: AsUser, two_teams: SimpleNamespace
) -> None:
    Verdict.objects.filter(job=two_teams.own).update(
        code="reserved", detail={"for": two_teams.other.pk}
    )

    admin = as_user("admin").get("/queue/").context["rows"][1].why
    alice = as_user("alice").get("/queue/").context["rows"][1].why

    assert f'<a href="/jobs/{two_teams.other.pk}/"><bdi>secret-vision-name</bdi></a>' in admin
    assert "<a" not in alice
    assert "a job of vision" in alice


def test_a_tampered_name_cannot_break_out_of_its_sentence(
    as_user: AsUser, two_teams: SimpleNamespace
) -> None:
    Job.objects.filter(pk=two_teams.other.pk).update(name="<img src=x onerror=alert(1)>")
    Verdict.objects.filter(job=two_teams.own).update(
        code="reserved", detail={"for": two_teams.other.pk}
    )

    assert "<img" not in text_of(as_user("admin"))


def test_a_chosen_cluster_is_remembered_and_put_into_the_address(
    as_user: AsUser, world: SimpleNamespace
) -> None:
    from apps.backends.models import Cluster

    Cluster.objects.create(name="cedar", kind="simulator", created_at=timezone.now())
    client = as_user("admin")
    client.get("/queue/?cluster=cedar")

    assert client.get("/queue/?size=2")["Location"] == "/queue/?size=2&cluster=cedar"
    client.get("/queue/?cluster=all")
    assert client.get("/queue/").status_code == 200
