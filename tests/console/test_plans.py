"""What a cluster's own scheduler plans, on the waterfall page: never held, never in the ledger."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.backends.models import LineLook
from apps.common import show
from apps.common.time import to_us
from apps.jobs.models import Reservation
from apps.ledger.models import Interval
from tests.console.ledgered import table_of, text_of

PAGE = "/waterfall/"


@pytest.fixture
def foreign(world, make_job, now):
    """Make a job of the cluster's own at a place in our line, and plan it."""
    world.cluster.clock_now = now
    world.cluster.save()
    look = LineLook.objects.create(cluster=world.cluster, tried_at=now, read_at=now)

    def make(name, tenant, place, minutes, nodes="gpu[1-4]", **more):
        ref = f"lab:{place}:100"
        job = make_job(name, tenant, place=place, foreign_ref=ref, **more)
        at = {} if minutes is None else {"starts_us": to_us(now + timedelta(minutes=minutes))}
        look.places[ref] = {"terms": {"priority": 9}, **at, **({"nodes": nodes} if at else {})}
        look.save()
        return job

    return make


def forecast(now, minutes):
    return {"detail": {"forecast_us": to_us(now + timedelta(minutes=minutes))}}


def page(as_user, who="admin", query=""):
    return as_user(who).get(f"{PAGE}{query}")


def plans(response):
    (found,) = response.context["plans"]
    return found


def test_a_planned_start_is_a_bar_in_the_future_with_both_sides_words(foreign, as_user, now):
    foreign("sft", "nlp", 0, 80, verdict=forecast(now, 50), limit_seconds=600)

    told = page(as_user)

    at, ours = (show.instant(now + timedelta(minutes=m), now=now) for m in (80, 50))
    words = f"Simulator plans it for {at} on gpu[1-4]; Rollcall would start it at {ours}."
    assert table_of(told, "plans")[1] == ["sft nlp", "4 × 8 h100", "", words]
    (row,) = plans(told).rows
    assert (row.x, row.ours, row.width) == (80.0, 50.0, 10.0)  # of 100 minutes
    assert "no GPU is held for it" in text_of(told)
    (plan,) = as_user("admin").get("/waterfall.json").json()["planned_by_clusters"]
    assert [(one["name"], one["planned_nodes"], one["planned_at"]) for one in plan["jobs"]] == [
        ("sft", "gpu[1-4]", show.iso(now + timedelta(minutes=80)))
    ]
    assert plan["jobs"][0]["likely_start"] == show.iso(now + timedelta(minutes=50))


def test_plans_hold_nothing(foreign, as_user):
    foreign("sft", "nlp", 0, 80)

    page(as_user)

    assert not Reservation.objects.exists()
    assert not Interval.objects.exists()


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ({"code": "watched"}, "; Rollcall would start it now."),
        ({"code": "capacity"}, "; Rollcall has no estimate."),
        ({"code": "elsewhere"}, " on gpu[1-4]."),
    ],
)
def test_what_rollcall_would_do_is_said_as_its_plan_has_it(foreign, as_user, verdict, words):
    foreign("sft", "nlp", 0, 80, verdict=verdict)

    assert table_of(page(as_user), "plans")[1][-1].endswith(words)


def test_a_start_that_is_overdue_stays_on_the_axis(foreign, as_user):
    foreign("sft", "nlp", 0, -5)

    (row,) = plans(page(as_user)).rows

    assert (row.x, row.width) == (0.0, 100.0)


def test_the_first_in_our_line_are_shown_and_the_rest_is_counted(foreign, as_user):
    for place in range(10):
        foreign(f"job-{place}", "nlp", place, 100 - place)
    foreign("unplanned", "nlp", 10, None)

    told = page(as_user)

    assert [row.told.text for row in plans(told).rows] == [f"job-{n}" for n in range(8)]
    assert "2 more have a planned start." in text_of(told)


def test_who_sees_which(foreign, as_user):
    foreign("secret", "vision", 0, 80)
    foreign("sft", "nlp/alignment", 1, 90)

    assert [row.told.text for row in plans(page(as_user, "bob")).rows] == ["sft"]
    assert [row.told.text for row in plans(page(as_user, "vera")).rows] == ["secret"]
    assert page(as_user, "carol").context["plans"] == []
    narrowed = page(as_user, "admin", "?tenant=nlp")
    assert [row.told.text for row in plans(narrowed).rows] == ["sft"]


def test_a_job_of_ours_and_a_cluster_that_tells_nothing_have_no_plans(
    make_job, as_user, world, now
):
    make_job("ours", "nlp", place=0)
    assert page(as_user).context["plans"] == []
    LineLook.objects.create(cluster=world.cluster, tried_at=now, trouble="It is away.")

    assert page(as_user).context["plans"] == []


def test_many_rows_ask_no_more_than_one(foreign, as_user, django_assert_max_num_queries):
    client = as_user("admin")
    foreign("first", "nlp", 0, 10)
    client.get(PAGE)
    with django_assert_max_num_queries(60) as one:
        client.get(PAGE)
    for place in range(1, 8):
        foreign(f"job-{place}", "nlp", place, 100)

    with django_assert_max_num_queries(len(one.captured_queries)):
        client.get(PAGE)


def test_the_page_of_a_job_says_it_too(foreign, as_user, now):
    job = foreign("sft", "nlp", 0, 80, verdict=forecast(now, 50))

    told = text_of(as_user("alice").get(f"/jobs/{job.pk}/"))

    at, ours = (show.instant(now + timedelta(minutes=m), now=now) for m in (80, 50))
    assert f"Simulator plans it for {at} on gpu[1-4]; Rollcall would start it at {ours}." in told
