"""One job: why it waits, what happened to it, what it cost, and who may do what with it."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import pytest

from apps.backends.models import Pool
from apps.common import show
from apps.common.time import to_us
from apps.jobs.models import Move
from apps.jobs.services import cancel_job, hold_job, release_job
from apps.ledger.intervals import close_holds, node_seen, open_holds
from apps.scheduling.models import Standing
from tests.console import ledgered
from tests.console.ledgered import amount, table_of, text_of


@pytest.fixture
def observed(world, now):
    """A cluster of four nodes that was looked at for a day, at $2.50 a GPU-hour."""
    ledgered.price(world, "2.50", now=now)
    node_seen(ledgered.nodes_of(world), at_us=to_us(world.cluster.first_look_at))
    for path, used in (("nlp", 0.52), ("vision", 0.48)):
        Standing.objects.create(
            cluster=world.cluster, tenant=world.tenants[path], tick_id=world.tick.pk, usage=used,
            share=0.4 if path == "nlp" else 0.6, usage_share=used, rank=1,
        )  # fmt: skip
    return world


@pytest.fixture
def waiting(observed, make_job):
    """Two jobs of vision before one of nlp/alignment."""
    make_job("secret-one", "vision", place=0)
    make_job("secret-two", "vision/generative", place=1)
    return make_job("sft", "nlp/alignment", place=2, submitted_by=observed.people["bob"])


def test_the_answer_is_why_it_waits(waiting, as_user):
    told = text_of(as_user("alice").get(f"/jobs/{waiting.pk}/"))

    assert "sft waits. Needs 32 GPUs; 0 are free" in told
    assert "2 jobs are ahead" in told
    assert "nlp has used 1.30× its share." in told
    assert "Asks for 4 × 8 h100 32 GPUs, no limit" in told
    assert "Waiting 1 h" in told


def test_the_terms_add_up_to_the_priority_as_shown(waiting, as_user):
    rows = table_of(as_user("alice").get(f"/jobs/{waiting.pk}/"), "terms")[1:]

    assert sum(amount(row[-1]) for row in rows[:-1]) == amount(rows[-1][-1]) == 3912


@pytest.mark.parametrize(
    ("terms", "total"),
    [
        ({"priority": 3.5, "term_fair_share": 1.2, "term_age": 1.1, "term_size": 1.2,
          "term_queue": 0.0}, 4),
        ({"priority": 1.0, "term_fair_share": 10.0, "term_age": 0.0, "term_size": 0.0,
          "term_queue": 0.0, "term_nice": -500.0}, 1),
    ],
)  # fmt: skip
def test_terms_that_need_rounding_or_come_below_the_least_still_add_up(
    observed, make_job, as_user, terms, total
):
    job = make_job("odd", place=0, verdict=terms)

    rows = table_of(as_user("admin").get(f"/jobs/{job.pk}/"), "terms")[1:]

    shown = [amount(row[-1]) for row in rows]
    assert sum(shown[:-1]) == shown[-1] == total


def test_others_ahead_are_told_without_name_or_link(waiting, as_user):
    page = as_user("alice").get(f"/jobs/{waiting.pk}/")
    rows = table_of(page, "ahead")

    assert [row[1] for row in rows[1:]] == ["a job of vision", "a job of vision"]
    assert b"secret" not in page.content
    assert b"secret" not in as_user("alice").get(f"/jobs/{waiting.pk}.json").content
    assert "secret-one" in text_of(as_user("admin").get(f"/jobs/{waiting.pk}/"))


def test_where_its_tenant_stands_has_every_sibling_and_no_money(waiting, as_user):
    rows = table_of(as_user("alice").get(f"/jobs/{waiting.pk}/"), "standings")

    assert [row[0] for row in rows[1:]] == ["vision", "nlp"]
    assert rows[2][-1] == "1.30×"
    assert "Where nlp loses" in text_of(as_user("alice").get(f"/jobs/{waiting.pk}/"))


@pytest.mark.parametrize(
    ("name", "buttons"),
    [("admin", ["Hold…", "Cancel…"]), ("alice", ["Hold…", "Cancel…"]), ("bob", ["Cancel…"])],
)
def test_buttons_are_those_the_role_may_use(waiting, as_user, name, buttons):
    page = as_user(name).get(f"/jobs/{waiting.pk}/")

    assert [button["text"] for button in page.context["buttons"]] == buttons


@pytest.mark.parametrize("name", ["carol", "vera"])
@pytest.mark.parametrize("ending", ["/", ".json", ".csv"])
def test_another_tenants_job_is_the_same_404_as_none(waiting, as_user, name, ending):
    client = as_user(name)
    other, none = client.get(f"/jobs/{waiting.pk}{ending}"), client.get(f"/jobs/999999{ending}")

    assert other.status_code == none.status_code == 404
    assert b"sft" not in other.content


def test_a_member_of_a_sibling_team_does_not_find_it(observed, make_job, as_user):
    job = make_job("theirs", "nlp", place=0)

    assert as_user("bob").get(f"/jobs/{job.pk}/").status_code == 404
    assert as_user("alice").get(f"/jobs/{job.pk}/").status_code == 200


def test_no_verdict_yet_is_said_and_nothing_is_made_up(observed, make_job, as_user):
    job = make_job("fresh")

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/"))

    assert "fresh was submitted after the newest tick; the next decides." in told
    assert "Why it waits" not in told
    assert "decided at the next tick" in told


def test_a_job_that_ran_tells_its_story_and_its_cost(observed, make_job, as_user, now):
    job = ledgered.nine_ranks(observed, make_job, at=now - timedelta(hours=2), tenant="nlp")

    told = text_of(as_user("alice").get(f"/jobs/{job.pk}/"))

    assert "nine ranks succeeded after 4 min 13 s." in told
    assert "Attempt 1 reserves room for 8 of 9 members." in told
    assert "Gang wait 0.10 GPUh, $0.26." in told
    assert "Attempt 1 starts, all 9 members together, and runs 4 min 13 s." in told
    # 9 GPUs for 253 s and 376 GPU-seconds of waiting.
    assert "Cost $1.84 0.74 GPUh: 0.63 GPUh run, 0.10 GPUh gang wait" in told


def test_a_member_sees_gpu_time_and_no_money(observed, make_job, as_user, now):
    job = ledgered.nine_ranks(
        observed, make_job, at=now - timedelta(hours=2), tenant="nlp/alignment"
    )

    page = as_user("bob").get(f"/jobs/{job.pk}/")

    assert "GPU time 0.74 GPUh" in text_of(page)
    assert "$" not in text_of(page)
    assert b"cost_usd" not in as_user("bob").get(f"/jobs/{job.pk}.csv").getvalue()


def test_without_a_price_the_cost_says_so(world, make_job, as_user, now):
    node_seen(ledgered.nodes_of(world), at_us=to_us(world.cluster.first_look_at))
    job = ledgered.nine_ranks(world, make_job, at=now - timedelta(hours=2), tenant="nlp")

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/"))

    assert "Cost no price" in told
    assert "$" not in told


def test_the_exports_have_the_cost_of_the_page(observed, make_job, as_user, now):
    job = ledgered.nine_ranks(observed, make_job, at=now - timedelta(hours=2), tenant="nlp")
    client = as_user("alice")
    rows = list(csv.DictReader(io.StringIO(client.get(f"/jobs/{job.pk}.csv").getvalue().decode())))
    facts = client.get(f"/jobs/{job.pk}.json").json()

    assert round(sum(float(row["cost_usd"]) for row in rows), 2) == 1.84
    assert facts["cost"]["money"] == "1.84"
    assert {row["kind"] for row in rows} == {"hold", "member"}
    assert facts["job"]["answer"] == "nine ranks succeeded after 4 min 13 s."


def test_json_has_the_text_of_the_page(waiting, as_user):
    why = as_user("alice").get(f"/jobs/{waiting.pk}.json").json()["why"]

    assert why["sentence"] in text_of(as_user("alice").get(f"/jobs/{waiting.pk}/"))
    assert [gate["ok"] for gate in why["gates"]].count(False) >= 1


def test_a_hold_and_a_cancel_are_told_with_who_and_why(waiting, observed, as_user, now):
    hold_job(waiting, by=observed.people["alice"], now=now, reason="data is not ready")
    cancel_job(waiting, by=observed.people["bob"], now=now, reason="wrong branch")

    told = text_of(as_user("alice").get(f"/jobs/{waiting.pk}/"))

    assert "sft was cancelled by bob after waiting 1 h." in told
    assert "Put on hold by alice: “data is not ready”." in told
    assert "Cancelled by bob: “wrong branch”." in told
    assert as_user("alice").get(f"/jobs/{waiting.pk}/").context["buttons"] == []


def test_a_held_job_offers_its_release(waiting, observed, as_user, now):
    hold_job(waiting, by=observed.people["alice"], now=now)

    page = as_user("alice").get(f"/jobs/{waiting.pk}/")

    assert [button["text"] for button in page.context["buttons"]] == ["Release…", "Cancel…"]


@pytest.mark.parametrize(
    "what",
    ["submitted", "reserved", "unreserved", "admitted", "started", "succeeded", "failed",
     "timed_out", "stopped", "refused", "lost", "retried", "cancelled", "cancel_requested",
     "held", "released", "something_new"],
)  # fmt: skip
def test_every_kind_of_move_has_a_sentence(observed, make_job, as_user, now, what):
    job = make_job("told")
    Move.objects.create(
        job=job, at=now, before="PENDING", after="PENDING", attempt_number=1, what=what
    )

    page = as_user("admin").get(f"/jobs/{job.pk}/")

    text = str(page.context["events"][0].text)
    assert text.endswith((".", "</a>"))
    assert text[0].isupper()


@pytest.mark.parametrize("name", ["x" * 200, "<script>alert(1)</script>", "שלום", "🚀 go", "a&b"])
def test_any_name_is_cut_isolated_and_escaped(observed, make_job, as_user, name):
    job = make_job(name, place=0)

    page = as_user("admin").get(f"/jobs/{job.pk}/")

    assert page.status_code == 200
    assert b"<script>alert" not in page.content
    assert "x" * 60 not in page.content.decode().replace(f'title="{"x" * 200}"', "")


def test_the_page_asks_few_questions(waiting, as_user, django_assert_max_num_queries):
    client = as_user("alice")

    with django_assert_max_num_queries(15):
        client.get(f"/jobs/{waiting.pk}/")


def test_a_job_of_many_turns_is_told_in_as_few_questions(
    waiting, make_job, observed, as_user, now, django_assert_max_num_queries
):
    nodes = ledgered.nodes_of(observed)
    first = make_job("first", "vision", place=3)
    verdict = {"code": "reserved", "detail": {"for": first.pk, "until_us": to_us(now)}}
    job = make_job("again", "nlp/alignment", place=4, verdict=verdict)
    for hours in (5, 4, 3):
        since = now - timedelta(hours=hours)
        ledgered.hold(job, [(0, nodes[0])], at=since, until=since + timedelta(minutes=30),
                      outcome="timed_out")  # fmt: skip
    ledgered.run(observed, job, nodes, at=now - timedelta(hours=2), until=now - timedelta(hours=1))
    job.state, job.ended_at, job.outcome, job.attempt_number = "PENDING", None, "", 2
    job.save()

    client = as_user("alice")
    with django_assert_max_num_queries(15):
        told = text_of(client.get(f"/jobs/{job.pk}/"))

    assert told.count("Gang wait 4.00 GPUh, $10.00.") == 3
    assert "4 jobs are ahead" in told


def test_slices_are_told_as_slices_and_as_the_part_of_a_gpu_they_are(observed, make_job, as_user):
    mig = Pool.objects.create(
        cluster=observed.cluster, name="mig", fraction_numerator=1, fraction_denominator=7
    )
    shape = {"size": 1, "min_size": 1, "gpus_per_member": 3, "pool": mig}
    job = make_job("small", "nlp", place=0, verdict={"needed": 3, "available": 0}, **shape)

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/"))

    assert "small waits. Needs 3 slices; 0 are free." in told
    assert "3 slices (0.43 GPU), no limit" in told
    queue = text_of(as_user("admin").get("/queue/?pool=mig"))
    assert "1 job waits for 3 mig slices." in queue
    assert "1 job waits for 0.4 GPUs." in text_of(as_user("admin").get("/queue/"))


def test_a_reservation_that_goes_on_says_so_and_counts_once(observed, make_job, as_user, now):
    job, nodes = make_job("gang", place=0), ledgered.nodes_of(observed)
    held = ledgered.hold(job, [(0, nodes[0])], at=now - timedelta(minutes=30))
    close_holds(held, at_us=to_us(now - timedelta(minutes=20)))
    again = now - timedelta(minutes=15)
    open_holds(held, [(0, nodes[0]), (1, nodes[1])], at_us=to_us(again))
    Move.objects.create(job=job, at=again, before="PENDING", after="RESERVING", attempt_number=1,
                        what="reserved", detail={"held": 2, "size": 4})  # fmt: skip

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/"))

    assert "Attempt 1 reserves room for 1 of 4 members. Gang wait 5.33 GPUh, $13.33." in told
    assert "Attempt 1 holds room again for 2 of 4 members and waits for the rest." in told
    assert told.count("Gang wait") == 1


def test_a_job_held_or_released_since_the_newest_tick_is_not_told_what_that_said(
    waiting, as_user, observed, now
):
    client, url = as_user("alice"), f"/jobs/{waiting.pk}/"
    hold_job(waiting, by=observed.people["alice"], now=now + timedelta(seconds=1), reason="a pause")

    told = text_of(client.get(url))
    assert "sft is on hold by alice since" in told
    assert "are free" not in told

    waiting.verdict.code = "held"
    waiting.verdict.save()
    waiting.refresh_from_db()
    release_job(waiting, by=observed.people["alice"], now=now + timedelta(seconds=2))
    told = text_of(client.get(url))
    assert "sft was released after the newest tick; the next decides." in told
    assert "Release it and it can run" not in told


def test_a_job_of_the_clusters_own_says_whose_it_is_and_is_nobodys_to_change(
    waiting, as_user, observed
):
    waiting.foreign_ref = "lab:7:100"
    waiting.workload = {
        "kind": "foreign", "user": "ada", "account": "cv", "reason": "Priority", "tasks": 28,
        "qos": "high",
    }  # fmt: skip
    waiting.save()
    client, url = as_user("alice"), f"/jobs/{waiting.pk}/"

    html = client.get(url).content.decode()
    told = text_of(client.get(url))

    assert (
        f"Submitted to {waiting.cluster} itself by ada, account cv, QOS high: Rollcall only looks on."
        " The cluster says: Priority. 28 tasks of it wait alike."
    ) in told
    assert f"{url}cancel/" not in html
    assert f"{url}hold/" not in html


def test_instants_in_a_reason_are_written_as_the_page_writes_them(observed, make_job, as_user, now):
    until = now + timedelta(minutes=40)
    first = make_job("first", "nlp", place=0)
    detail = {"for": first.pk, "until_us": to_us(until)}
    job = make_job("later", "nlp", place=1, verdict={"code": "reserved", "detail": detail})
    client = as_user("alice")

    page = client.get(f"/jobs/{job.pk}/").context["answer"]

    assert f"until {show.instant(until, now=now)}, and this job would delay it" in page
    machine = client.get(f"/jobs/{job.pk}.json").json()["job"]["answer"]
    assert f"until {show.iso(until)}, and" in machine
