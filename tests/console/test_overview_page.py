"""Overview: what GPUs do now, what idleness costs an hour, and who is told what."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest

from apps.backends.models import Node
from apps.common.time import to_us
from apps.ledger.intervals import node_seen, set_marks
from apps.ledger.models import Interval, Price, RollUp
from apps.ledger.rollup import roll_up
from tests.console import ledgered
from tests.console.ledgered import amount, text_of


@pytest.fixture
def busy(world, make_job, now):
    """One node of four each: at work, held idle, held for a gang, free; $2.50 a GPU-hour."""
    nodes = ledgered.nodes_of(world)
    ledgered.price(world, "2.50", now=now)
    node_seen(nodes, at_us=to_us(world.cluster.first_look_at))
    work = make_job("work", "nlp", size=1, min_size=1)
    idle = make_job("sleepy", "nlp/alignment", size=1, min_size=1, submitted_by=world.people["bob"])
    ledgered.run(world, work, [nodes[0]], at=now - timedelta(hours=5))
    attempt = ledgered.run(world, idle, [nodes[1]], at=now - timedelta(hours=5))
    set_marks(
        world.cluster,
        at_us=to_us(now - timedelta(hours=1)),
        held_idle={attempt.pk: 8},
        stranded={},
    )
    gang = make_job("big-gang", "vision/generative", place=0)
    ledgered.hold(gang, [(0, nodes[2])], at=now - timedelta(minutes=10))
    roll_up(world.cluster, until_us=to_us(now))
    return world


def figures(page: str, unit: str) -> list[str]:
    """Return the texts under the six figures of the one state bar."""
    bar = page[page.index('<dl class="state-figures">') : page.index("</dl>")]
    return [part.split("<")[0] for part in bar.split(unit)[1:]]


def test_the_answer_says_what_does_not_work_and_what_it_costs_an_hour(busy, as_user):
    page = as_user("admin").get("/")

    assert "24 of 32 GPUs are not working: $60.00 an hour." in text_of(page)
    assert "8 are busy ($20.00/h). 8 wait for one gang that cannot start yet." in text_of(page)
    assert "1 job waits on atlas." in text_of(page)


def test_the_parts_add_up_as_shown(busy, as_user):
    page = as_user("admin").get("/").content.decode()

    assert sum(amount(text) for text in figures(page, "<b>")) == 32
    assert sum(amount(text.rstrip("/h")) for text in figures(page, '<dd class="meta">')) == 80
    assert "the parts add up to 32 GPUs and $80.00 an hour" in page


def test_alarms_name_the_gang_and_what_is_held_idle(busy, as_user):
    told = text_of(as_user("admin").get("/"))

    assert "big-gang holds 8 of 32 GPUs and has waited 10 min to be whole" in told
    assert "$3.33 so far , $20.00 an hour." in told
    assert "8 GPUs of nlp on atlas have been held but idle for more than 30 min" in told


def test_a_lead_sees_own_alarms_and_the_pools_totals_only(busy, as_user):
    page = as_user("alice").get("/")
    told = text_of(page)

    assert "24 of 32 GPUs are not working: $60.00 an hour." in told
    assert "nlp runs on 16 of them." in told
    assert "8 GPUs of nlp on atlas have been held" in told
    assert "big-gang" not in page.content.decode()
    assert "a job of vision" in told


def test_a_member_sees_own_jobs_first_and_no_money(busy, as_user, settings):
    told = text_of(as_user("bob").get("/"))

    assert "24 of 32 GPUs are not working." in told
    assert "Your jobs sleepy" in told
    assert "$" not in told

    settings.MEMBERS_SEE_MONEY = True
    assert "$60.00 an hour" in text_of(as_user("bob").get("/"))


@pytest.mark.parametrize("path", ["/", "/overview.json", "/overview.csv"])
def test_a_stranger_sees_no_name_and_no_money(busy, as_user, path):
    answer = as_user("carol").get(path)
    body = answer.getvalue() if answer.streaming else answer.content

    assert answer.status_code == 200
    for secret in (b"sleepy", b"big-gang", b"$", b"cost_usd"):
        assert secret not in body


def test_without_a_price_there_is_no_money_and_never_a_zero(busy, as_user):
    RollUp.objects.all().delete()
    Price.objects.all().delete()

    told = text_of(as_user("admin").get("/"))

    assert "24 of 32 GPUs are not working." in told
    assert "h100 has no price" in told
    assert "$" not in told


def test_no_gpus_is_said_and_no_bar_is_drawn(busy, as_user):
    Interval.objects.all().delete()
    Node.objects.all().update(gone_at=busy.cluster.observed_at)

    page = as_user("admin").get("/")

    assert "No GPUs are reported." in text_of(page)
    assert "no GPUs reported" in text_of(page)
    assert "NaN" not in page.content.decode()


def test_the_figure_is_a_table_too_and_busy_is_left_out_until_asked_for(busy, as_user):
    plain, with_busy = as_user("admin").get("/"), as_user("admin").get("/?busy=yes")

    states = [trace["meta"] for trace in json.loads(plain.context["spec"])["data"]]
    assert states == ["held_idle", "gang_wait", "free", "stranded", "unavailable", "total"]
    assert json.loads(with_busy.context["spec"])["data"][0]["meta"] == "busy"
    assert len(plain.context["hours"]) == 24
    assert "As a table" in text_of(plain)


def test_the_hours_add_up_to_all_gpus_once_busy_is_shown(busy, as_user):
    hours = as_user("admin").get("/?busy=yes").context["hours"]

    assert {hour["total"] for hour in hours[-3:]} == {"32.0"}


def test_the_rows_for_machines_are_those_of_the_page(busy, as_user):
    client = as_user("admin")
    rows = list(csv.DictReader(io.StringIO(client.get("/overview.csv").getvalue().decode())))
    facts = client.get("/overview.json").json()

    assert sum(float(row["gpus"]) for row in rows) == 32
    assert sum(amount(row["cost_usd_per_hour"]) for row in rows) == amount("80.00")
    assert facts["cost_usd_per_hour"] == "80.00"
    assert facts["rows"][0]["state"] == "busy"


def test_the_rows_of_the_figure_are_its_hours(busy, as_user):
    client = as_user("admin")
    page = client.get("/?busy=yes")

    rows = client.get(page.context["hours_json"]).json()["rows"]
    lines = client.get(page.context["hours_csv"]).getvalue().decode().splitlines()

    assert lines[0] == "from,until,state,gpus"
    assert len(lines) == len(rows) + 1 == 24 * 7 + 1
    newest = [row for row in rows if row["until"] == rows[-1]["until"]]
    assert sum(row["gpus"] for row in newest) == 32


def test_the_page_asks_few_questions(busy, as_user, django_assert_max_num_queries):
    client = as_user("admin")

    with django_assert_max_num_queries(15):
        client.get("/")


def test_who_is_not_logged_in_is_sent_to_the_log_in(client, busy):
    assert client.get("/").url.startswith("/login/")
