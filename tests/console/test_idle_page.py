"""Idle cost: the five parts add up as shown, in money and hours, for each reader."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from decimal import Decimal

import pytest

from apps.common.time import to_us
from apps.ledger.intervals import node_seen, set_marks
from apps.ledger.models import Price, RollUp
from apps.ledger.rollup import roll_up
from tests.console import ledgered
from tests.console.ledgered import adds_up, amount, table_of, text_of

TODAY = "range=day"


@pytest.fixture
def now(now):
    """Late enough in the day that a day's history lies in it."""
    return now.replace(hour=20, minute=7, second=13)


@pytest.fixture
def used(world, make_job, now):
    """A day of uneven use at an uneven price, part of it not known."""
    world.cluster.clock_now = now
    world.cluster.save()
    nodes = ledgered.nodes_of(world)
    ledgered.price(world, "2.37", now=now)
    node_seen(nodes, at_us=to_us(world.cluster.first_look_at))
    early = now - timedelta(hours=5, minutes=11, seconds=7)
    for name, tenant, node in (("a", "nlp", 0), ("b", "nlp/alignment", 1), ("c", "vision", 2)):
        job = make_job(name, tenant, size=1, min_size=1)
        attempt = ledgered.run(world, job, [nodes[node]], at=early)
        if name == "b":
            sleepy = attempt
        if name == "c":
            unknown = attempt
    ledgered.nine_ranks(world, make_job, at=early - timedelta(hours=1), tenant="vision")
    set_marks(
        world.cluster,
        at_us=to_us(now - timedelta(hours=2, seconds=1)),
        held_idle={sleepy.pk: 8},
        stranded={nodes[3].pk: 3},
        unknown={unknown.pk: 8},
    )
    roll_up(world.cluster, until_us=to_us(now))
    return world


@pytest.fixture
def day(now):
    return f"range=day&from={now.date()}"


def test_the_parts_and_the_tenants_add_up_as_shown(used, as_user, day):
    page = as_user("admin").get(f"/idle/?{day}")
    parts, tenants = table_of(page, "parts")[1:], table_of(page, "by-tenant")[1:]

    assert adds_up(parts)
    assert sum(amount(row[-1]) for row in tenants[:-1]) == amount(tenants[-1][-1])
    assert tenants[-1][-1] == parts[-1][-1]
    assert parts[-1][2] == "100.0 %".replace(" ", " ")
    assert "adds up to capacity × price × time, to the cent" in text_of(page)


def test_the_answer_is_what_the_parts_say(used, as_user, day):
    page = as_user("admin").get(f"/idle/?{day}")
    parts = {row[0]: row for row in table_of(page, "parts")[1:]}

    idle = sum(
        amount(parts[name][-1])
        for name in ("Held idle", "Gang wait", "Free", "Stranded", "Unavailable")
    )
    assert f"${idle:,.2f} of {parts['Capacity'][-1]} bought no work so far today" in text_of(page)


def test_unknown_utilisation_is_a_line_of_its_own_and_counts_as_busy(used, as_user, day):
    page = as_user("admin").get(f"/idle/?{day}")
    rows = {row[0]: row for row in table_of(page, "parts")}

    assert amount(rows["Busy, utilisation unknown"][1]) > 0
    assert "it counts as busy" in text_of(page)


def test_the_bars_add_up_to_the_parts(used, as_user, day):
    page = as_user("admin").get(f"/idle/?{day}")
    lines, parts = page.context["buckets"], table_of(page, "parts")[1:]

    assert sum(amount(line.total) for line in lines) == amount(parts[-1][-1])
    for column, part in enumerate(parts[:-1]):
        assert sum(amount(line.cells[column]) for line in lines) == amount(part[-1])
    figure = json.loads(page.context["spec"])
    assert [trace["meta"] for trace in figure["data"]][:3] == ["busy", "unknown", "held_idle"]


@pytest.mark.parametrize("unit", ["gpuh", "money"])
def test_the_exports_have_the_totals_of_the_page(used, as_user, day, unit):
    client = as_user("admin")
    page = client.get(f"/idle/?{day}&unit={unit}")
    rows = list(
        csv.DictReader(io.StringIO(client.get(f"/idle.csv?{day}&unit={unit}").getvalue().decode()))
    )
    facts = client.get(f"/idle.json?{day}&unit={unit}").json()
    total = table_of(page, "parts")[-1]

    assert sum(Decimal(row["cost_usd"]) for row in rows) == amount(total[-1])
    assert sum(Decimal(row["gpu_hours"]) for row in rows) == amount(total[1])
    assert facts["total"] == {
        "gpu_hours": str(amount(total[1])),
        "cost_usd": str(amount(total[-1])),
    }
    assert facts["adds_up"] is True
    assert sum(Decimal(part["percent"]) for part in facts["parts"]) == 100


def test_the_rows_of_the_figure_add_up_to_the_page(used, as_user, day):
    client = as_user("admin")
    page = client.get(f"/idle/?{day}")
    total = table_of(page, "parts")[-1]
    path = page.context["parts_csv"]

    rows = list(csv.DictReader(io.StringIO(client.get(path).getvalue().decode())))

    assert list(rows[0]) == ["from", "until", "state", "gpu_hours", "cost_usd"]
    assert sum(Decimal(row["cost_usd"]) for row in rows) == amount(total[-1])
    assert sum(Decimal(row["gpu_hours"]) for row in rows) == amount(total[1])
    assert client.get(page.context["parts_json"]).json()["rows"] == rows
    assert as_user("bob").get(path).getvalue().decode().startswith("from,until,state,gpu_hours\r")


def test_the_last_hour_is_told_by_the_minute(used, as_user):
    page = as_user("admin").get("/idle/?range=1h")
    told, lines = text_of(page), page.context["buckets"]

    assert "in the last hour: " in told
    assert "US dollars per minute." in told
    assert len(lines) == 60
    assert sum(amount(line.total) for line in lines) == amount("75.84")
    assert page.context["adds_up"]


@pytest.mark.parametrize(
    "query", ["range=2h", "range=1h&from=2026-03-05", "range=24h&to=2026-03-05"]
)
def test_a_last_hour_that_cannot_be_is_named(used, as_user, query):
    assert as_user("admin").get(f"/idle/?{query}").status_code == 400


def test_a_price_that_changes_in_the_range_is_a_column_and_a_line(used, as_user, day, now):
    ledgered.price(used, "3.11", at=now - timedelta(hours=3, minutes=2), now=now)

    page = as_user("admin").get(f"/idle/?{day}")
    table = table_of(page, "parts")

    assert table[0][-3:] == ["At $2.37", "At $3.11", "All"]
    assert adds_up(table[1:])
    for row in table[1:]:
        assert amount(row[-3]) + amount(row[-2]) == amount(row[-1])
    assert "h100 costs $3.11 per GPU-hour from" in text_of(page)
    assert len(json.loads(page.context["spec"])["layout"]["shapes"]) == 1


def test_without_a_price_it_is_in_gpu_hours_and_says_so(used, as_user, day):
    RollUp.objects.all().delete()
    used.cluster.rollup_mark.delete()
    Price.objects.all().delete()

    page = as_user("admin").get(f"/idle/?{day}")

    assert "GPU-hours did no work" in text_of(page)
    assert "No prices yet: shown in GPU-hours. Set prices" in text_of(page)
    assert "$" not in text_of(page)
    assert adds_up(table_of(page, "parts")[1:])


def test_a_lead_has_own_rows_and_the_rest_without_names(used, as_user, day):
    page = as_user("alice").get(f"/idle/?{day}")
    names = [row[0] for row in table_of(page, "by-tenant")]

    assert names == ["Tenant", "nlp/alignment", "nlp", "other tenants", "nobody: unallocated",
                     "nobody: unavailable", "Capacity"]  # fmt: skip
    assert "vision" not in text_of(page)
    rows = table_of(page, "by-tenant")[1:]
    assert sum(amount(row[-1]) for row in rows[:-1]) == amount(rows[-1][-1])


def test_the_exports_of_a_lead_name_no_other_tenant(used, as_user, day):
    for form in ("csv", "json"):
        answer = as_user("alice").get(f"/idle.{form}?{day}")
        body = answer.getvalue() if answer.streaming else answer.content
        assert b"vision" not in body
        assert b"nlp/alignment" in body


@pytest.mark.parametrize("name", ["bob", "carol"])
def test_members_and_strangers_see_no_money(used, as_user, day, name):
    page = as_user(name).get(f"/idle/?{day}&unit=money")

    assert "$" not in text_of(page)
    assert "cost_usd" not in as_user(name).get(f"/idle.csv?{day}").getvalue().decode()
    assert adds_up(table_of(page, "parts")[1:])


def test_the_jobs_held_idle_longest_are_named_to_who_may_see_them(used, as_user, day):
    assert [
        row["told"].text for row in as_user("admin").get(f"/idle/?{day}").context["longest"]
    ] == ["b"]
    assert as_user("vera").get(f"/idle/?{day}").context["longest"] == []


def test_a_tenant_opens_into_those_below_it(used, as_user, day):
    page = as_user("admin").get(f"/idle/?{day}&tenant=nlp")

    assert [row[0] for row in table_of(page, "by-tenant")][1:3] == ["nlp/alignment", "nlp"]
    assert "tenant: nlp" in text_of(page)


def test_days_nobody_looked_at_are_said_to_be_so(used, as_user):
    page = as_user("admin").get("/idle/?range=custom&from=2020-01-01&to=2020-01-03")

    assert "Nothing was observed in 1 – 3 Jan 2020." in text_of(page)
    assert "NaN" not in page.content.decode()


def test_steps_lead_to_the_neighbouring_periods(used, as_user, now):
    page = as_user("admin").get("/idle/?range=day")
    before = now.date() - timedelta(days=2)

    assert f"range=day&from={before}" in page.context["earlier"]
    assert f"from={now.date()}" in page.context["later"]
    assert as_user("admin").get(page.context["later"]).context["later"] == ""


@pytest.mark.parametrize(
    "query",
    ["range=year", "from=2026-01-01", "range=day&from=yesterday", "unit=euros", "tenant=nobody",
     "range=week&to=2026-01-01", "from=2026-01-05&to=2026-01-01", "pool=b200"],
)  # fmt: skip
def test_a_parameter_that_cannot_be_is_named(used, as_user, query):
    page = as_user("admin").get(f"/idle/?{query}")

    assert page.status_code == 400


@pytest.mark.parametrize("who", ["admin", "alice"])
def test_the_page_asks_few_questions(used, as_user, day, django_assert_max_num_queries, who):
    client = as_user(who)

    with django_assert_max_num_queries(15):
        client.get(f"/idle/?{day}")
