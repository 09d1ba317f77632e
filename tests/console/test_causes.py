"""Why a gang waited: who left late, what one that waits is short of, and which reservation it was."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.common import show
from apps.common.time import to_us
from apps.ledger.intervals import close_holds, node_seen, open_holds
from tests.console import ledgered
from tests.console.ledgered import text_of


@pytest.fixture
def observed(world, now):
    """A cluster of four nodes that was looked at for a day."""
    node_seen(ledgered.nodes_of(world), at_us=to_us(world.cluster.first_look_at))
    return world


@pytest.fixture
def story(observed, make_job, now):
    """The seed story; the last GPU is one that a job of vision left 46 s on."""
    nodes, at = ledgered.nodes_of(observed), now - timedelta(hours=3)
    late = make_job("scratch-eval", "vision", size=1, min_size=1)
    ledgered.run(
        observed, late, [nodes[3]], at=at - timedelta(hours=1), until=at + timedelta(seconds=46)
    )
    early = make_job("early", "vision", size=1, min_size=1)
    ledgered.run(
        observed, early, [nodes[3]], at=at - timedelta(hours=1), until=at + timedelta(seconds=5)
    )
    job = ledgered.nine_ranks(observed, make_job, at=at, tenant="nlp")
    return {"job": job, "late": late, "at": at}


def test_the_job_that_left_last_is_named_and_linked(story, as_user, now):
    left = story["at"] + timedelta(seconds=46)
    at = show.instant(left, now=now, style="seconds")
    said = f"r8 waited for a GPU on gpu-n03 that scratch-eval left at {at}."

    for path in (f"/waterfall/?job={story['job'].pk}", f"/jobs/{story['job'].pk}/waterfall/"):
        page = as_user("admin").get(path)
        assert said in text_of(page)
        assert f'href="/jobs/{story["late"].pk}/"' in page.content.decode()


def test_a_job_of_another_tenant_is_the_cause_without_a_name(story, as_user):
    page = as_user("alice").get(f"/jobs/{story['job'].pk}/waterfall/")

    assert "r8 waited for a GPU on gpu-n03 that a job of vision left at" in text_of(page)
    assert "scratch-eval" not in page.content.decode()


def test_a_job_that_was_asked_to_stop_says_how_long_it_took(story, as_user):
    attempt = story["late"].attempts.get()
    attempt.stop_requested_at = story["at"]
    attempt.save()

    page = as_user("admin").get(f"/jobs/{story['job'].pk}/waterfall/")

    assert ", 46 s after it was asked to stop." in text_of(page)


def test_a_job_that_goes_on_after_its_node_was_drained_did_not_leave(story, as_user, now):
    attempt = story["late"].attempts.get()
    attempt.ended_at = now
    attempt.save()

    page = as_user("admin").get(f"/jobs/{story['job'].pk}/waterfall/")

    assert "that early left at" in text_of(page)


def test_a_node_that_came_back_is_the_cause(observed, make_job, as_user, now):
    nodes, at = ledgered.nodes_of(observed), now - timedelta(hours=2)
    nodes[3].gpus = 4
    node_seen([nodes[3]], at_us=to_us(at + timedelta(seconds=40)))
    job = ledgered.nine_ranks(observed, make_job, at=at, tenant="nlp")

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/waterfall/"))

    back = at + timedelta(seconds=40)
    assert (
        f"r8 waited for a GPU on gpu-n03, which came back at {show.instant(back, now=now, style='seconds')}."
        in told
    )


def test_members_whose_room_came_one_after_the_other_blame_the_last(
    observed, make_job, as_user, now
):
    nodes, at = ledgered.nodes_of(observed), now - timedelta(hours=2)
    start = at + timedelta(minutes=10)
    other = make_job("other", "vision", size=1, min_size=1)
    ledgered.run(
        observed, other, [nodes[2]], at=at - timedelta(hours=1), until=at + timedelta(minutes=5)
    )
    job = make_job("gang", size=3, min_size=3)
    held = ledgered.hold(job, [(0, nodes[0]), (1, nodes[1])], at=at)
    open_holds(held, [(2, nodes[2])], at_us=to_us(at + timedelta(minutes=5)))
    close_holds(held, at_us=to_us(start))
    held.ended_at, held.outcome = start, "started"
    held.save()
    ledgered.run(observed, job, nodes[:3], at=start)

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/waterfall/"))

    assert "r2 waited for 8 GPUs on gpu-n02 that other left at" in told


def test_a_member_whose_room_was_lent_is_not_what_the_others_waited_for(
    observed, make_job, as_user, now
):
    nodes, at = ledgered.nodes_of(observed), now - timedelta(hours=2)
    start = at + timedelta(minutes=10)
    job = make_job("gang", size=3, min_size=3)
    held = ledgered.hold(job, [(0, nodes[0]), (1, nodes[1])], at=at)
    close_holds(held, at_us=to_us(at + timedelta(minutes=5)), ranks=[1])
    close_holds(held, at_us=to_us(start))
    held.ended_at, held.outcome = start, "started"
    held.save()
    ledgered.run(observed, job, nodes[:3], at=start)

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/waterfall/"))

    assert "16 GPUs waited 10 min for 8 more" in told
    assert (
        f"r2 waited for 8 GPUs on gpu-n02, which came free at {show.instant(start, now=now, style='seconds')}."
        in told
    )


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("timed_out", "No room came free for the last 3 of 4 members in that time."),
        ("released", "There was no room for the last 3 of 4 members yet, and the plan of"),
        ("cancelled", "There was no room for the last 3 of 4 members yet."),
    ],
)
def test_one_that_never_was_whole_says_who_had_no_room(
    observed, make_job, as_user, now, outcome, said
):
    job = make_job("gang")
    until = now - timedelta(minutes=30)
    ledgered.hold(job, [(0, ledgered.nodes_of(observed)[0])], at=now - timedelta(hours=1),
                  until=until, outcome=outcome)  # fmt: skip

    assert said in text_of(as_user("admin").get(f"/jobs/{job.pk}/waterfall/"))


def test_one_that_waits_says_what_is_missing_and_when_it_likely_comes(
    observed, make_job, as_user, now
):
    likely = now + timedelta(minutes=2)
    verdict = {"detail": {"forecast_us": to_us(likely)}}
    job = make_job("gang", size=2, min_size=2, topology="rack", place=0, verdict=verdict)
    ledgered.hold(job, [(0, ledgered.nodes_of(observed)[0])], at=now - timedelta(minutes=1))

    told = text_of(as_user("admin").get(f"/jobs/{job.pk}/waterfall/"))

    assert "r1 waits for 8 GPUs in its rack to come free: likely by" in told
    assert "if what runs there uses all of its limit" in told


def test_one_that_lent_what_it_held_does_not_say_that_it_holds_it(observed, make_job, as_user, now):
    job = make_job("gang", place=0)
    nodes = ledgered.nodes_of(observed)
    held = ledgered.hold(job, [(0, nodes[0]), (1, nodes[1])], at=now - timedelta(minutes=20))
    close_holds(held, at_us=to_us(now - timedelta(minutes=10)), ranks=[1])
    url = f"/jobs/{job.pk}/waterfall/"

    assert "Holds 8 of 32 GPUs" in text_of(as_user("admin").get(url))

    close_holds(held, at_us=to_us(now - timedelta(minutes=5)))
    told = text_of(as_user("admin").get(url))
    assert "What it held is lent to jobs that will have ended when it can start" in told
    assert "Holds" not in told


@pytest.fixture
def twice(observed, make_job, now):
    """A gang that reserved twice in one attempt: the first timed out, with more GPUs than now."""
    nodes, job = ledgered.nodes_of(observed), make_job("stubborn", "nlp", place=0)
    first = ledgered.hold(
        job, [(0, nodes[0]), (1, nodes[1])], at=now - timedelta(hours=2),
        until=now - timedelta(minutes=90), outcome="timed_out",
    )  # fmt: skip
    second = ledgered.hold(job, [(0, nodes[0])], at=now - timedelta(minutes=5))
    return {"job": job, "first": first, "second": second}


def test_each_reservation_of_an_attempt_can_be_chosen(twice, as_user):
    client, url = as_user("admin"), f"/jobs/{twice['job'].pk}/waterfall/"
    newest = client.get(url)

    assert "Holds 8 of 32 GPUs" in text_of(newest)
    assert "Reservation 2 of 2" in text_of(newest)
    first = client.get(f"{url}?reservation={twice['first'].pk}")
    assert "Timed out after 30 min with 16 of 32 GPUs held" in text_of(first)
    assert "Reservation 1 of 2" in text_of(first)
    assert f"{url}?reservation={twice['first'].pk}" in newest.content.decode()


def test_the_list_draws_the_reservation_of_its_line(twice, as_user):
    client = as_user("admin")
    rows = client.get("/waterfall/").context["rows"]

    assert len(rows) == 2
    for row in rows:
        page = client.get(row.url)
        assert page.context["drawn"].reservation.pk == row.id
        assert [r.id for r in page.context["rows"] if r.selected] == [row.id]


def test_the_jobs_story_leads_to_the_reservation_it_tells_of(twice, as_user):
    body = as_user("admin").get(f"/jobs/{twice['job'].pk}/").content.decode()

    for name in ("first", "second"):
        assert f"/waterfall/?reservation={twice[name].pk}" in body


@pytest.mark.parametrize(
    "path", ["/jobs/{job}/waterfall/?reservation=999999", "/waterfall/?job={job}&reservation=9",
             "/waterfall/?reservation=999999"],
)  # fmt: skip
def test_a_reservation_that_is_not_the_jobs_is_named(twice, as_user, path):
    page = as_user("admin").get(path.format(job=twice["job"].pk))

    assert page.status_code == 400
    assert "reservation" in text_of(page)
