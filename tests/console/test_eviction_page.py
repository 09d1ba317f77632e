"""One eviction: the sentence, both sides, both teams, the candidates, and where the loss comes from."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import pytest
from django.test import Client

from apps.jobs.evictions import confirm_checkpoint
from apps.jobs.models import Attempt, Eviction
from tests.console import ledgered
from tests.console.ledgered import table_of, text_of
from tests.factories import make_eviction

SECOND = 1_000_000
LOST = {"lost_gpu_us": 8 * 39 * 60 * SECOND, "lost_micros": 13_000_000}


@pytest.fixture
def sides(world, make_job):
    """A job of nlp/alignment on 8 GPUs, and the gang of vision for which it has to go."""
    victim = make_job("nav-tune", "nlp/alignment", size=1, min_size=1,
                      submitted_by=world.people["bob"])  # fmt: skip
    return victim, make_job("sdxl-refine", "vision", size=4)


@pytest.fixture
def exceeded(world, sides, now):
    """Its grace ran out 39 minutes after its last checkpoint, at $2.50 a GPU-hour."""
    ledgered.price(world, "2.50", now=now)
    at = now - timedelta(hours=1)
    one = make_eviction(*sides, at=at, outcome="grace_exceeded", took=timedelta(minutes=2), **LOST)
    kept = at + timedelta(minutes=2) - timedelta(minutes=39)
    Attempt.objects.filter(pk=one.attempt_id).update(last_checkpoint_at=kept)
    return one


@pytest.fixture
def leaving(sides, now):
    """It was asked to leave half a minute ago."""
    return make_eviction(*sides, at=now - timedelta(seconds=30))


def page_of(client, one):
    return client.get(f"/evictions/{one.pk}/")


def test_it_says_what_happened_to_whom_and_what_it_cost(exceeded, as_user):
    told = text_of(page_of(as_user("admin"), exceeded))

    assert (
        "nav-tune was evicted by reclaim for sdxl-refine : nlp/alignment held 24 and was entitled"
        " to 16." in told
    )
    assert "Grace of 2 min ran out before a checkpoint; 39 min of work on 8 GPUs is lost" in told
    assert "5.20 GPUh, $13.00." in told
    assert "Rule reclaim checkpoint by tick 90,412" in told
    assert "Outcome grace exceeded" in told
    assert "Lost $13.00 5.20 GPUh, 8 GPUs given up" in told


def test_it_says_where_the_number_comes_from(exceeded, as_user):
    told = text_of(page_of(as_user("admin"), exceeded))

    assert "8 GPUs × 39 min since its last confirmed checkpoint: from" in told
    assert "5.20 GPUh at $2.50 per GPU-hour: $13.00." in told


def test_a_price_that_changed_meanwhile_is_told_too(world, exceeded, as_user, now):
    changed = exceeded.ended_at - timedelta(minutes=10)
    ledgered.price(world, "4.00", at=changed, now=now)

    told = text_of(page_of(as_user("admin"), exceeded))

    assert "at $2.50 and then $4.00 per GPU-hour" in told


def test_both_teams_stand_with_share_quota_and_holdings(exceeded, as_user):
    rows = table_of(page_of(as_user("admin"), exceeded), "ev-standings")

    assert rows[1][0] == "nlp/alignment evicted"
    assert rows[1][1].replace("\u2009", " ") == "50.0 %"
    assert rows[1][4:7] == ["1.30×", "8", "16"]
    assert rows[1][-1] == "24 → 16"
    assert (rows[2][0], rows[2][-1]) == ("vision to start", "0 → 32")


def test_one_team_on_both_sides_stands_once(world, make_job, as_user, now):
    one = make_eviction(make_job("low", "nlp"), make_job("high", "nlp"), at=now, rule="priority")

    page = page_of(as_user("alice"), one)

    assert len(table_of(page, "ev-standings")) == 2
    assert "by priority for high , whose class is higher" in text_of(page)


def test_the_other_side_has_neither_name_nor_link_nor_money(exceeded, as_user):
    mine, theirs = page_of(as_user("alice"), exceeded), page_of(as_user("vera"), exceeded)

    assert "nav-tune was evicted by reclaim for a job of vision" in text_of(mine)
    assert "$13.00" in text_of(mine)
    assert b"sdxl-refine" not in mine.content
    assert f"/jobs/{exceeded.beneficiary_id}/" not in mine.content.decode()
    assert "a job of nlp was evicted by reclaim for sdxl-refine" in text_of(theirs)
    assert "a team of nlp held 24" in text_of(theirs)
    for secret in (b"nav-tune", b"alignment", b"$"):
        assert secret not in theirs.content
    assert "Lost 5.20 GPUh" in text_of(theirs)
    assert "What another team lost is told in GPU-hours, not in money." in text_of(theirs)
    rows = table_of(theirs, "ev-sides")
    assert rows[1][1] == "a job of nlp 8 GPUs"
    assert rows[1][2].startswith("–")
    assert rows[2][2:] == ["1", "4 × 8", "normal"]


def test_a_member_sees_it_without_money(exceeded, as_user):
    assert "$" not in text_of(page_of(as_user("bob"), exceeded))
    assert "5.20 GPUh" in text_of(page_of(as_user("bob"), exceeded))


@pytest.mark.parametrize("ending", ["/", ".json", ".csv"])
def test_whoever_sees_neither_side_finds_no_such_eviction(exceeded, as_user, ending):
    client = as_user("carol")
    theirs, none = (
        client.get(f"/evictions/{exceeded.pk}{ending}"),
        client.get(f"/evictions/999999{ending}"),
    )

    assert theirs.status_code == none.status_code == 404
    assert b"nav-tune" not in theirs.content
    assert client.get(f"/evictions/{2**70}{ending}").status_code == 404


def test_who_is_not_logged_in_is_sent_to_the_log_in(exceeded):
    for url in ("/evictions/", "/evictions.csv", f"/evictions/{exceeded.pk}/"):
        assert Client().get(url)["Location"].startswith("/login/?next=")


def test_while_it_leaves_the_page_counts_down_and_refreshes(leaving, as_user):
    page = page_of(as_user("alice"), leaving)
    told = text_of(page)

    assert "nav-tune is asked to leave by reclaim for a job of vision" in told
    assert "to save its work; what is lost is known then." in told
    assert (
        'data-countdown="8' in page.content.decode() or 'data-countdown="9' in page.content.decode()
    )
    assert "Outcome leaving leaves by" in told
    assert "Lost not known yet" in told
    assert page.context["page"].refresh > 0


def test_once_it_has_left_nothing_counts_and_nothing_refreshes(exceeded, as_user):
    page = page_of(as_user("alice"), exceeded)

    assert b"data-countdown" not in page.content
    assert page.context["page"].refresh == 0


def test_a_confirmation_is_told_with_its_person_to_the_own_side_alone(leaving, world, as_user, now):
    confirm_checkpoint(leaving.job, attempt_number=1, by=world.people["bob"], now=now)

    assert "Checkpoint confirmed by bob in 30 s." in text_of(page_of(as_user("alice"), leaving))
    theirs = text_of(page_of(as_user("vera"), leaving))
    assert "Checkpoint confirmed in 30 s." in theirs
    assert "by bob" not in theirs


def test_its_events_stand_in_their_order(exceeded, as_user):
    events = page_of(as_user("admin"), exceeded).context["events"]

    assert [event.text for event in events] == [
        "Decided by tick 90,412: checkpoint, grace 2 min.",
        "atlas was told to ask it to leave.",
        "Was stopped: its grace had run out.",
    ]


def test_candidates_are_listed_in_order_with_why_each_was_passed_over(exceeded, make_job, as_user):
    kept = make_job("kept", "nlp", size=1)
    theirs = make_job("secret", "vision", size=1)
    hour = 3_600 * SECOND
    exceeded.considered = [
        {"job": theirs.pk, "tenant": theirs.tenant_id, "gpus": 8, "lost_gpu_us": None,
         "passed": "not_preemptible"},
        {"job": kept.pk, "tenant": kept.tenant_id, "gpus": 8, "lost_gpu_us": hour,
         "passed": "guarantee"},
        *exceeded.considered,
    ]  # fmt: skip
    exceeded.save()

    page = page_of(as_user("alice"), exceeded)
    rows = table_of(page, "considered")

    assert [row[1] for row in rows[1:]] == ["a job of vision", "kept", "nav-tune"]
    assert rows[1][3].startswith("–")
    assert rows[2][3:] == [
        "1.00", "its tenant, or one above it, would go below its guarantee",
    ]  # fmt: skip
    assert rows[3][4] == "chosen"
    assert "3 candidates: 1 chosen, 1 not preemptible, 1 guarantee" in text_of(page)
    assert b"secret" not in page.content
    table = as_user("alice").get(f"/evictions/{exceeded.pk}.csv").getvalue().decode()
    assert "secret" not in table
    assert [row["passed"] for row in csv.DictReader(io.StringIO(table))] == [
        "not_preemptible", "guarantee", "chosen",
    ]  # fmt: skip


def test_of_many_candidates_fifty_are_shown_and_all_exported(exceeded, as_user):
    exceeded.considered = [exceeded.considered[0]] * 230
    exceeded.save()
    client = as_user("admin")

    page = page_of(client, exceeded)
    facts = client.get(f"/evictions/{exceeded.pk}.json").json()

    assert len(table_of(page, "considered")) == 51
    assert "and 180 more: all are in the CSV" in text_of(page)
    assert len(facts["rows"]) == 230


def test_json_has_the_text_of_the_page_and_exact_figures(exceeded, as_user):
    facts = as_user("alice").get(f"/evictions/{exceeded.pk}.json").json()

    assert facts["answer"].startswith("nav-tune was evicted by reclaim for a job of vision: nlp")
    assert facts["eviction"]["lost_cost_usd"] == "13.000000000"
    assert facts["eviction"]["tick_id"] == 90_412
    assert facts["standings"]["victim"]["before"] == 24
    assert "sdxl-refine" not in str(facts)


@pytest.mark.parametrize("left_out", ["standings", "considered"])
def test_a_record_that_lacks_a_part_says_so_and_makes_nothing_up(exceeded, as_user, left_out):
    Eviction.objects.update(**{left_out: {} if left_out == "standings" else []})

    for path in (f"/evictions/{exceeded.pk}/", "/evictions/"):
        page = as_user("admin").get(path)
        assert page.status_code == 200
        assert "None" not in text_of(page)
    assert as_user("admin").get(f"/evictions/{exceeded.pk}.json").status_code == 200


def test_the_page_asks_few_questions(exceeded, as_user, django_assert_max_num_queries):
    for name in ("admin", "alice", "vera"):
        client = as_user(name)
        with django_assert_max_num_queries(15):
            page_of(client, exceeded)
