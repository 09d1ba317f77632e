"""Evictions: the list, its figure and totals, its exports, and who is told what of them."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest

from apps.backends.models import Cluster
from apps.jobs.models import Eviction
from tests.console.ledgered import amount, table_of, text_of
from tests.factories import make_eviction

HOUR = 3_600 * 1_000_000


@pytest.fixture
def evicted(world, make_job, now):
    """Four evictions: three of nlp's jobs for vision's gang, one the other way round."""
    gang = make_job("vit-g-pretrain", "vision", size=8)
    ours = make_job("rlhf-ppo", "nlp/alignment", size=1)
    made = SimpleNamespace(gang=gang, ours=ours)

    def evict(name, tenant, ago, to, **columns):
        job = make_job(name, tenant, size=1, min_size=1, submitted_by=world.people["bob"])
        return make_eviction(job, to, at=now - ago, **columns)

    made.killed = evict(
        "ablate", "nlp", timedelta(days=2), gang, mode="kill", outcome="killed",
        lost_gpu_us=4 * HOUR, lost_micros=10_005_000, grace=timedelta(),
    )  # fmt: skip
    made.exceeded = evict(
        "nav-tune", "nlp/alignment", timedelta(hours=3), gang, outcome="grace_exceeded",
        lost_gpu_us=8 * HOUR // 8, lost_micros=2_504_999, took=timedelta(seconds=120),
    )  # fmt: skip
    made.gained = evict(
        "vid-diffusion", "vision", timedelta(hours=1), ours, rule="priority",
        outcome="checkpointed", lost_gpu_us=2 * HOUR, lost_micros=5_000_000,
    )  # fmt: skip
    made.leaving = evict("llama-70b-sft", "nlp/alignment", timedelta(seconds=30), gang)
    return made


def rows_of(client, query=""):
    return client.get(f"/evictions.json{query}").json()["rows"]


def test_the_answer_sums_up_what_was_lost_and_rounds_money_once(evicted, as_user):
    told = text_of(as_user("admin").get("/evictions/"))

    # 10.005 + 2.504999 + 5.00: each row half up alone would give 17.52.
    assert "4 evictions in 7 days lost 7.00 GPU-hours of work: $17.51." in told
    assert "57 % of the loss came from one kill." in told.replace("\u2009", " ")
    assert "One checkpoint ran out of grace." in told
    assert "1 job is leaving now." in told
    assert "rows are rounded, the total is exact" in told


def test_the_list_is_newest_first_and_says_how_each_left(evicted, as_user):
    rows = table_of(as_user("admin").get("/evictions/"), "evictions")

    assert [row[1].split()[0] for row in rows[1:-1]] == [
        "llama-70b-sft", "vid-diffusion", "nav-tune", "ablate",
    ]  # fmt: skip
    assert [row[3] for row in rows[1:-1]] == ["reclaim", "priority", "reclaim", "reclaim"]
    assert rows[1][4].startswith("checkpoint leaves by ")
    assert rows[1][4].endswith("left")
    assert rows[2][4] == "checkpoint confirmed in 38 s"
    assert rows[3][4] == "checkpoint grace exceeded at 2 min"
    assert rows[4][4] == "kill stopped"
    assert rows[3][5] == "24 → 16 nlp/alignment, entitled to 16"
    assert [row[-1] for row in rows[2:]] == ["$5.00", "$2.50", "$10.01", "$17.51"]
    assert rows[1][-1].startswith("–")


def test_each_side_sees_its_own_by_name_and_the_other_by_team_and_size(evicted, as_user):
    page = as_user("alice").get("/evictions/")
    rows = table_of(page, "evictions")

    assert "a job of vision 64 GPUs" in rows[1][2]
    assert "a job of vision 8 GPUs" in rows[2][1]
    for secret in ("vit-g-pretrain", "vid-diffusion"):
        assert secret not in page.content.decode()
    theirs = as_user("vera").get("/evictions/").content.decode()
    assert "vit-g-pretrain" in theirs
    for secret in ("ablate", "nav-tune", "llama-70b-sft", "rlhf-ppo", "nlp/alignment"):
        assert secret not in theirs


def test_what_another_team_lost_is_told_in_hours_and_not_in_money(evicted, as_user):
    page = as_user("alice").get("/evictions/")
    rows = table_of(page, "evictions")

    assert "Nlp lost 5.00 GPU-hours of work by 3 evictions in 7 days: $12.51." in text_of(page)
    assert "1 job of another team made way for nlp; they lost 2.00 GPUh." in text_of(page)
    assert rows[2][6].startswith("2.00")
    assert "$" not in rows[2][7]
    assert rows[-1][-2:] == ["7.00 GPUh lost", "$12.51"]


def test_a_member_sees_the_teams_evictions_and_no_money(evicted, as_user, settings):
    page = as_user("bob").get("/evictions/")

    assert "$" not in text_of(page)
    assert [row.victim.text for row in page.context["rows"]] == [
        "llama-70b-sft", "a job of vision", "nav-tune",
    ]  # fmt: skip
    assert b"cost_usd" not in as_user("bob").get("/evictions.csv").getvalue()
    settings.MEMBERS_SEE_MONEY = True
    assert "$2.50" in text_of(as_user("bob").get("/evictions/"))


@pytest.mark.parametrize("form", ["/evictions/", "/evictions.json", "/evictions.csv"])
def test_a_stranger_sees_none(evicted, as_user, form):
    answer = as_user("carol").get(form)
    body = (answer.getvalue() if answer.streaming else answer.content).decode()

    for secret in ("ablate", "nav-tune", "vit-g-pretrain", "a job of", "$", "90412"):
        assert secret not in body
    if form == "/evictions/":
        assert "Nobody was evicted in these 7 days." in text_of(answer)


@pytest.mark.parametrize(
    ("setting", "told"), [("named", "vit-g-pretrain"), ("hidden", "a job of another tenant")]
)
def test_the_setting_widens_and_narrows_what_is_told(evicted, as_user, settings, setting, told):
    settings.OTHER_TENANTS = setting

    page = as_user("alice").get("/evictions/").content.decode()

    assert told in page
    if setting == "hidden":
        assert "vision" not in page


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("range=24h", ["llama-70b-sft", "vid-diffusion", "nav-tune"]),
        ("rule=priority", ["vid-diffusion"]),
        ("mode=kill", ["ablate"]),
        ("outcome=grace_exceeded", ["nav-tune"]),
        ("outcome=leaving", ["llama-70b-sft"]),
        ("tenant=nlp/alignment", ["llama-70b-sft", "vid-diffusion", "nav-tune"]),
        ("lost_over=1", ["vid-diffusion", "ablate"]),
        ("lost_over=1.5&mode=checkpoint", ["vid-diffusion"]),
        ("cluster=atlas&pool=h100&range=30d",
         ["llama-70b-sft", "vid-diffusion", "nav-tune", "ablate"]),
    ],
)  # fmt: skip
def test_filters_narrow_page_and_exports_alike(evicted, as_user, query, names):
    client = as_user("admin")

    page = client.get(f"/evictions/?{query}")
    table = csv.DictReader(io.StringIO(client.get(f"/evictions.csv?{query}").getvalue().decode()))

    assert [row.victim.text for row in page.context["rows"]] == names
    assert [row["victim"] for row in table] == names
    assert page.context["totals"]["label"].startswith(str(len(names)))


def test_a_job_is_found_on_either_side_by_who_sees_it(evicted, as_user):
    ours = as_user("alice").get(f"/evictions/?job={evicted.ours.pk}").context["rows"]
    theirs = as_user("alice").get(f"/evictions/?job={evicted.gang.pk}").context["rows"]

    assert [row.id for row in ours] == [evicted.gained.pk]
    assert theirs == []


@pytest.mark.parametrize(
    "query",
    ["range=1y", "mode=gently", "rule=luck", "outcome=fine", "lost_over=much", "lost_over=-1",
     "job=x", "tenant=nobody", "after=x", "colour=red", "cluster=nowhere"],
)  # fmt: skip
@pytest.mark.parametrize("form", ["/evictions/", "/evictions.json"])
def test_a_parameter_that_cannot_be_is_named(evicted, as_user, query, form):
    answer = as_user("alice").get(f"{form}?{query}")

    assert answer.status_code == 400
    assert query.split("=")[0] in answer.content.decode()


def test_no_match_and_nobody_are_different_words(evicted, as_user):
    client = as_user("admin")

    assert "No eviction matches this filter." in text_of(client.get("/evictions/?mode=demote"))
    Eviction.objects.all().delete()
    assert "Nobody was evicted in these 24 hours." in text_of(client.get("/evictions/?range=24h"))


@pytest.mark.parametrize("span", ["24h", "7d", "30d"])
def test_figure_and_table_say_the_same_and_the_table_adds_up(evicted, as_user, span):
    page = as_user("admin").get(f"/evictions/?range={span}")
    spec = json.loads(page.context["spec"])
    rows = table_of(page, "lost-table")

    drawn = go.Figure({"data": spec["data"], "layout": spec["layout"]})
    assert [trace.meta for trace in drawn.data][:2] == ["kill", "checkpoint"]
    heights = sum(sum(trace["y"]) for trace in spec["data"][:-1])
    assert Decimal(str(round(heights, 2))) == amount(rows[-1][-1])
    for column in range(1, len(rows[0])):
        assert sum(amount(row[column]) for row in rows[1:-1]) == amount(rows[-1][column])
    for row in rows[1:]:
        assert sum(map(amount, row[2:-1])) == amount(row[-1])
    assert amount(rows[-1][1]) == (3 if span == "24h" else 4)


def test_the_modes_that_occur_are_named_and_demotions_lose_nothing(evicted, as_user, make_job, now):
    job = make_job("grasp", "nlp", size=1)
    make_eviction(job, evicted.gang, at=now - timedelta(hours=2), mode="demote", outcome="demoted")

    page = as_user("admin").get("/evictions/")

    assert [mode.key for mode in page.context["legend"]] == ["kill", "checkpoint", "demote"]
    (row,) = [row for row in page.context["rows"] if row.mode == "demote"]
    assert (row.how, row.gpu_hours, row.cost) == ("kept running", "0.00", "$0.00")


def test_the_exports_are_exact_and_add_up_to_the_page(evicted, as_user):
    client = as_user("admin")
    facts = client.get("/evictions.json").json()
    table = list(csv.DictReader(io.StringIO(client.get("/evictions.csv").getvalue().decode())))

    assert facts["total_cost_usd"] == "17.509999000"
    assert sum(Decimal(row["lost_cost_usd"] or 0) for row in table) == Decimal("17.509999")
    assert sum(Decimal(row["lost_gpu_hours"] or 0) for row in table) == Decimal(
        facts["total_gpu_hours"]
    )
    assert (table[2]["outcome"], table[2]["grace_seconds"]) == ("grace_exceeded", "120")
    assert (table[2]["team_gpus_before"], table[2]["team_gpus_after"]) == ("24", "16")
    assert table[0]["lost_gpu_hours"] == table[0]["ended_at"] == ""
    assert "NaN" not in json.dumps(facts)


def test_a_lead_finds_in_the_csv_what_the_page_tells_and_no_more(evicted, as_user):
    text = as_user("alice").get("/evictions.csv").getvalue().decode()
    table = list(csv.DictReader(io.StringIO(text)))

    for secret in ("vit-g-pretrain", "vid-diffusion", str(evicted.gang.pk)):
        assert secret not in text
    assert table[1]["victim"] == "a job of vision"
    assert table[1]["victim_job"] == table[1]["lost_cost_usd"] == table[1]["victim_attempt"] == ""
    assert table[0]["beneficiary_gpus"] == "64"


def test_without_a_price_there_is_none_and_never_a_zero(evicted, as_user):
    Eviction.objects.update(lost_micros=None)

    page = as_user("admin").get("/evictions/")

    assert "$" not in text_of(page)
    assert table_of(page, "evictions")[-1][-1] == "no price"


def test_a_job_evicted_too_often_is_marked_and_left_alone(evicted, as_user, make_job, now):
    job = make_job("ablate-ctx-64k", "nlp", size=1)
    for minutes in (50, 30, 10):
        at = now - timedelta(minutes=minutes)
        last = make_eviction(job, evicted.gang, at=at, mode="kill", outcome="killed")
    Eviction.objects.filter(pk=last.pk).update(thrashes=True, within_hour=3)

    told = text_of(as_user("alice").get("/evictions/"))

    assert "ablate-ctx-64k was evicted 3 times within an hour. It is left alone until" in told
    assert "ablate-ctx-64k thrash" in told
    assert "ablate-ctx" not in text_of(as_user("vera").get("/evictions/"))


@pytest.mark.parametrize("count", [0, 1, 50, 51, 1_000])
def test_a_page_has_fifty_rows_and_few_queries_however_many_there_are(
    world, make_job, as_user, now, count, django_assert_max_num_queries
):
    if count:
        victim, gang = make_job("victim", "nlp"), make_job("gang", "vision")
        first = make_eviction(victim, gang, at=now - timedelta(hours=1), outcome="killed")
        columns = {
            field.attname: getattr(first, field.attname)
            for field in Eviction._meta.concrete_fields
            if field.attname != "id"
        }
        Eviction.objects.bulk_create(Eviction(**columns) for _ in range(count - 1))

    for name in ("admin", "alice", "bob"):
        client = as_user(name)
        with django_assert_max_num_queries(15):
            page = client.get("/evictions/")
        shown = count if name != "bob" else 0
        assert page.content.decode().count("data-row") == min(shown, 50)
        assert ('rel="next"' in page.content.decode()) == (shown > 50)


def test_paging_shows_each_row_once_and_back(evicted, make_job, as_user, now):
    for number in range(120):
        job = make_job(f"v{number:03}", "nlp", size=1)
        make_eviction(job, evicted.gang, at=now - timedelta(minutes=120 - number), outcome="killed")
    client, url, seen, pages = as_user("admin"), "/evictions/", [], []

    while url:
        page = client.get(url).context
        pages.append([row.id for row in page["rows"]])
        seen += pages[-1]
        last, url = page, page["pager"].behind_url

    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 124
    back = client.get(last["pager"].ahead_url).context
    assert [row.id for row in back["rows"]] == pages[-2]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "שלום", "x" * 200, "{team} {0}"])
def test_any_name_is_cut_isolated_and_escaped(world, make_job, as_user, now, name):
    one = make_eviction(make_job(name, "nlp"), make_job(name, "vision"), at=now)

    for path in ("/evictions/", f"/evictions/{one.pk}/"):
        body = as_user("admin").get(path).content.decode()
        assert "<script>alert" not in body
        assert "x" * 60 not in body.replace(f'title="{"x" * 200}"', "")


def test_a_countdown_runs_only_where_the_clock_is_the_readers(evicted, as_user):
    body = as_user("admin").get("/evictions/").content.decode()
    assert 'data-countdown="' in body

    Cluster.objects.update(clock_now=evicted.leaving.at)
    body = as_user("admin").get("/evictions/").content.decode()

    assert "data-countdown" not in body
    assert "2 min left" in body


def test_the_navigation_and_the_jump_box_lead_there(evicted, as_user):
    for name in ("admin", "alice", "bob", "carol"):
        page = as_user(name).get("/evictions/").content.decode()
        assert 'aria-current="page" data-go="e"><span><bdi>Evictions</bdi></span>' in page

    alice = as_user("alice")
    assert alice.get("/jump/?q=evictions")["Location"] == "/evictions/"
    hit = alice.get("/jump.json", {"q": f"eviction {evicted.killed.pk}"}).json()["rows"][0]
    assert hit["url"] == f"/evictions/{evicted.killed.pk}/"
    assert hit["note"] == "ablate for a job of vision"
    hidden = as_user("carol").get("/jump.json", {"q": f"eviction {evicted.killed.pk}"})
    assert hidden.json()["rows"] == []
