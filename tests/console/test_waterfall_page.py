"""Waterfall: what gangs held idle, one drawn large, the list worst first, and who sees whose."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import pytest

from apps.common.time import to_us
from apps.jobs.models import Job
from apps.ledger.intervals import node_seen
from apps.ledger.rollup import roll_up
from tests.console import ledgered
from tests.console.ledgered import amount, table_of, text_of


@pytest.fixture
def observed(world, now):
    """A cluster of four nodes that was looked at for a day, at $2.50 a GPU-hour."""
    ledgered.price(world, "2.50", now=now)
    node_seen(ledgered.nodes_of(world), at_us=to_us(world.cluster.first_look_at))
    return world


@pytest.fixture
def gangs(observed, make_job, now):
    """The seed story of nlp; a gang of vision that timed out; one of nlp that waits."""
    nodes = ledgered.nodes_of(observed)
    story = ledgered.nine_ranks(observed, make_job, at=now - timedelta(hours=3), tenant="nlp")
    late = make_job("late", "vision", submitted_at=now - timedelta(hours=6))
    since = now - timedelta(hours=5)
    ledgered.hold(late, [(0, nodes[0]), (1, nodes[1])], at=since,
                  until=since + timedelta(minutes=30), outcome="timed_out")  # fmt: skip
    waits = make_job("waits", "nlp/alignment", place=0)
    ledgered.hold(waits, [(0, nodes[0])], at=now - timedelta(minutes=6))
    roll_up(observed.cluster, until_us=to_us(now))
    return {"story": story, "late": late, "waits": waits}


def test_the_seed_story_reads_as_it_is_told(gangs, as_user):
    page = as_user("admin").get(f"/jobs/{gangs['story'].pk}/waterfall/")
    told, body = text_of(page), page.content.decode()

    assert "8 GPUs waited 47 s for one more: 376 GPU-s, $0.26 at $2.50 per GPU-hour" in told
    assert "not counted as usage" in told
    assert body.count('fill="url(#fill-gang_wait)"') == 8
    assert body.count('class="wf-pending"') == 1
    assert body.count('fill="url(#fill-goes-on)"') == 9
    assert "all 9 ranks start together" in body


def test_the_answer_is_the_ledgers_gang_wait_of_the_range(gangs, as_user):
    page = as_user("admin").get("/waterfall/")

    # 16 GPUs for 30 min, 8 for 6 min, 8 for 47 s.
    hours = 16 * 0.5 + 8 * 0.1 + 376 / 3600
    assert f"In 24 hours gangs held {hours:.2f} GPU-hours idle" in text_of(page)
    assert "$22.26" in text_of(page)
    assert page.context["total"]["cost"] == "$22.26"
    assert "Of 3 gangs 1 started, 1 timed out." in text_of(page)


def test_the_list_is_worst_first_and_its_total_is_exact(gangs, as_user):
    rows = table_of(as_user("admin").get("/waterfall/"), "gangs")

    assert [row[0].split()[0] for row in rows[1:-1]] == ["late", "waits", "nine"]
    assert [row[7] for row in rows[1:-1]] == ["$20.00", "$2.00", "$0.26"]
    assert rows[-1][2:] == ["32,056", "8.90", "$22.26"]
    assert rows[1][1].endswith("Timed out")
    assert "so far" in rows[2][4]
    assert [row[2] for row in rows[1:-1]] == [
        "4 × 8 16 of 32 held", "4 × 8 8 of 32 held", "9 × 1 8 held"
    ]  # fmt: skip


def test_the_gang_that_waits_now_is_drawn_unless_another_is_asked_for(gangs, as_user):
    client = as_user("admin")

    assert client.get("/waterfall/").context["drawn"].job == gangs["waits"]
    asked = client.get(f"/waterfall/?job={gangs['late'].pk}")
    assert asked.context["drawn"].job == gangs["late"]
    assert "Timed out after 30 min with 16 of 32 GPUs held; all are released." in text_of(asked)


def test_a_lead_sees_own_gangs_and_the_rest_as_one_line(gangs, as_user):
    page = as_user("alice").get("/waterfall/")
    rows = table_of(page, "gangs")

    assert "late" not in text_of(page).replace("related", "")
    assert [row[0] for row in rows if row[0].startswith("other tenants")] == ["other tenants"]
    assert sum(amount(row[-1]) for row in rows[1:-1]) == amount(rows[-1][-1]) == amount("22.26")


def test_a_member_sees_no_money_and_only_the_own_team(gangs, as_user):
    page = as_user("bob").get("/waterfall/")

    assert "$" not in text_of(page)
    assert page.context["count"] == 1
    assert "nine ranks" not in page.content.decode()


@pytest.mark.parametrize("name", ["carol", "vera"])
@pytest.mark.parametrize("ending", ["/waterfall/", "/waterfall.json", "/waterfall.csv"])
def test_another_tenants_waterfall_is_not_found(gangs, as_user, name, ending):
    assert as_user(name).get(f"/jobs/{gangs['story'].pk}{ending}").status_code == 404
    body = as_user(name).get(f"/waterfall/?job={gangs['story'].pk}")
    assert body.status_code == 400
    assert b"nine ranks" not in body.content


def test_filters_narrow_page_and_exports_alike(gangs, as_user):
    client = as_user("admin")
    page = client.get("/waterfall/?outcome=timed_out")
    rows = list(
        csv.DictReader(
            io.StringIO(client.get("/waterfall.csv?outcome=timed_out").getvalue().decode())
        )
    )

    assert page.context["count"] == 1
    assert [row["name"] for row in rows] == ["late"]
    assert float(rows[0]["cost_usd"]) == 20.0
    assert client.get("/waterfall/?tenant=vision").context["count"] == 1
    assert "No gang matches this filter" in text_of(client.get("/waterfall/?outcome=released"))


def test_the_exports_add_up_to_the_page(gangs, as_user):
    client = as_user("admin")
    rows = list(csv.DictReader(io.StringIO(client.get("/waterfall.csv").getvalue().decode())))
    facts = client.get("/waterfall.json").json()

    assert round(sum(float(row["cost_usd"]) for row in rows), 2) == 22.26
    assert round(float(facts["total_cost_usd"]), 2) == 22.26
    assert sum(float(row["idle_gpu_seconds"]) for row in rows) == pytest.approx(32056)


@pytest.mark.parametrize(
    "query", ["range=2h", "outcome=lost", "job=abc", "job=999999999", "tenant=nobody", "colour=red"]
)
def test_a_parameter_that_cannot_be_is_named(gangs, as_user, query):
    page = as_user("admin").get(f"/waterfall/?{query}")

    assert page.status_code == 400
    assert query.split("=")[0] in text_of(page)


def test_no_gang_that_waited_is_said_in_words(observed, as_user):
    assert "No gang waited in these 24 hours." in text_of(as_user("admin").get("/waterfall/"))


@pytest.mark.parametrize(
    ("size", "shape", "labels"),
    [(1, "members", 1), (9, "members", 9), (70, "nodes", 2), (600, "steps", 0)],
)
def test_a_gang_of_any_size_is_drawn(observed, make_job, as_user, now, size, shape, labels):
    nodes = ledgered.nodes_of(observed)
    job = make_job("gang", size=size, min_size=size, gpus_per_member=1)
    held = [(rank, nodes[rank % 2]) for rank in range(max(1, size - 1))]
    start = now - timedelta(minutes=20)
    ledgered.hold(job, held, at=start, until=now - timedelta(minutes=10), outcome="started")
    ledgered.run(
        observed, job, [nodes[rank % 2] for rank in range(size)], at=now - timedelta(minutes=10)
    )

    page = as_user("admin").get(f"/jobs/{job.pk}/waterfall/")
    drawn = page.context["gang"].drawing

    assert page.status_code == 200
    assert (drawn.shape, len(drawn.rows)) == (shape, labels)
    assert page.context["gang"].gpu_seconds == len(held) * 600
    assert "NaN" not in page.content.decode()


def test_a_job_that_holds_nothing_yet_says_so(observed, make_job, as_user):
    job = make_job("patient", place=0)

    page = as_user("admin").get(f"/jobs/{job.pk}/waterfall/")

    assert "patient waits and holds no GPU yet." in text_of(page)


def test_html_in_a_name_is_text(observed, make_job, as_user, now):
    job = make_job("<b>x</b>", place=0)
    ledgered.hold(job, [(0, ledgered.nodes_of(observed)[0])], at=now - timedelta(minutes=1))

    for path in ("/", "/waterfall/", f"/jobs/{job.pk}/", f"/jobs/{job.pk}/waterfall/"):
        assert b"<b>x</b>" not in as_user("admin").get(path).content


def test_without_a_price_gpu_time_is_shown_and_never_a_zero(world, make_job, as_user, now):
    node_seen(ledgered.nodes_of(world), at_us=to_us(world.cluster.first_look_at))
    job = ledgered.nine_ranks(world, make_job, at=now - timedelta(hours=3), tenant="nlp")

    page = as_user("admin").get("/waterfall/")

    assert "held 376 GPU-seconds idle while they waited to be whole." in text_of(page)
    assert table_of(page, "gangs")[-1][-1] == "no price"
    assert "$" not in text_of(as_user("admin").get(f"/jobs/{job.pk}/waterfall/"))


@pytest.mark.parametrize("who", ["admin", "alice"])
@pytest.mark.parametrize("drawn", ["waits", "story"])
def test_the_page_asks_few_questions(gangs, as_user, django_assert_max_num_queries, who, drawn):
    client = as_user(who)

    with django_assert_max_num_queries(16):
        page = client.get(f"/waterfall/?job={gangs[drawn].pk}")

    assert page.context["drawn"].job == gangs[drawn]


@pytest.mark.parametrize("drawn", ["waits", "story"])
def test_the_page_of_one_gang_asks_few_questions(
    gangs, as_user, django_assert_max_num_queries, drawn
):
    client = as_user("alice")

    with django_assert_max_num_queries(15):
        client.get(f"/jobs/{gangs[drawn].pk}/waterfall/")


def test_the_story_is_played_in_the_demo_by_who_leads(observed, as_user, settings):
    settings.DEMO = True

    assert "Play the seed story" in text_of(as_user("alice").get("/waterfall/"))
    answer = as_user("alice").post("/waterfall/story/")

    job = Job.objects.get(name="nine ranks")
    assert answer.url == f"/jobs/{job.pk}/waterfall/"
    assert (job.size, job.cluster.name) == (9, "story")


def test_the_story_exists_in_the_demo_only_and_not_for_members(observed, as_user, settings):
    assert as_user("admin").post("/waterfall/story/").status_code == 404
    settings.DEMO = True
    assert as_user("bob").post("/waterfall/story/").status_code == 404
    assert "Play the seed story" not in text_of(as_user("bob").get("/waterfall/"))
