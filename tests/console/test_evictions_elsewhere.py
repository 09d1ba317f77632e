"""Evictions on the pages of both jobs, on the Queue and on the Overview."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.common import show
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job, Move
from apps.queues.models import ClusterPolicy
from apps.scheduling.models import Verdict
from tests.console.ledgered import table_of, text_of
from tests.factories import make_eviction

HOUR = 3_600 * 1_000_000


@pytest.fixture
def sides(world, make_job):
    """A job of nlp/alignment on 8 GPUs, and the gang of vision for which it has to go."""
    victim = make_job("nav-tune", "nlp/alignment", size=1, min_size=1,
                      submitted_by=world.people["bob"])  # fmt: skip
    return victim, make_job("sdxl-refine", "vision", place=0)


@pytest.fixture
def leaving(sides, now):
    """It was asked to leave half a minute ago, and has two minutes."""
    return make_eviction(*sides, at=now - timedelta(seconds=30))


def at_seconds(eviction, now):
    return show.instant(eviction.leave_by, now=now, style="seconds")


class TestTheJob:
    def test_while_it_leaves_it_says_for_whom_by_when_and_counts_down(self, leaving, as_user, now):
        page = as_user("alice").get(f"/jobs/{leaving.job_id}/")
        told, by = text_of(page), at_seconds(leaving, now)

        assert (
            "nav-tune is asked to leave by reclaim for a job of vision: nlp/alignment held" in told
        )
        assert f"It has until {by} to save its work; what is lost is known then. 1 min" in told
        assert f"Leaves by {by}" in told
        assert page.context["badge"].label == "Leaving"
        assert 'data-countdown="' in page.content.decode()
        assert b"sdxl-refine" not in page.content

    def test_its_section_says_for_whom_by_which_rule_and_what_was_lost(self, sides, as_user, now):
        one = make_eviction(
            *sides, at=now - timedelta(hours=2), outcome="grace_exceeded", lost_gpu_us=HOUR,
            lost_micros=2_500_000, took=timedelta(minutes=2),
        )  # fmt: skip

        page = as_user("alice").get(f"/jobs/{one.job_id}/")
        rows = table_of(page, "evictions")

        assert rows[0][1:] == [
            "To start", "Rule", "How it left", "GPUs of the team", "Lost GPUh", "Price",
        ]  # fmt: skip
        assert rows[1][1:4] == [
            "a job of vision 32 GPUs", "reclaim", "checkpoint grace exceeded at 2 min",
        ]  # fmt: skip
        assert rows[1][-1] == "$2.50"
        assert f"/evictions/{one.pk}/" in page.content.decode()
        assert "$" not in text_of(as_user("bob").get(f"/jobs/{one.job_id}/"))

    def test_the_other_sides_page_says_who_made_way_without_name_or_money(
        self, sides, as_user, now
    ):
        one = make_eviction(
            *sides, at=now - timedelta(hours=2), outcome="killed", mode="kill", lost_gpu_us=HOUR,
            lost_micros=2_500_000,
        )  # fmt: skip

        page = as_user("vera").get(f"/jobs/{one.beneficiary_id}/")
        rows = table_of(page, "evictions")

        assert rows[0][1] == "Evicted"
        assert rows[1][1:4] == ["a job of nlp 8 GPUs", "reclaim", "kill stopped"]
        assert rows[1][5].startswith("1.00")
        assert "$" not in rows[1][6]
        assert b"nav-tune" not in page.content

    def test_the_beneficiary_waits_for_it_to_leave(self, leaving, as_user, now):
        detail = {"jobs": [leaving.job_id], "until_us": to_us(leaving.leave_by)}
        Verdict.objects.filter(job=leaving.beneficiary).update(code="leaving", detail=detail)

        told = text_of(as_user("vera").get(f"/jobs/{leaving.beneficiary_id}/"))

        by = show.instant(leaving.leave_by, now=now)
        assert f"sdxl-refine waits. Waits for a job of nlp to leave, by {by}." in told
        assert "Others made way for it" in told

    def test_a_job_without_any_has_no_such_section(self, sides, as_user):
        assert b"evictions-head" not in as_user("admin").get(f"/jobs/{sides[0].pk}/").content

    def test_a_demoted_job_says_that_it_runs_on_below_the_others(self, sides, as_user, now):
        one = make_eviction(*sides, at=now - timedelta(hours=1), mode="demote", outcome="demoted")
        Attempt.objects.filter(pk=one.attempt_id).update(demoted_at=one.ended_at)

        told = text_of(as_user("alice").get(f"/jobs/{one.job_id}/"))

        assert "nav-tune runs on 8 GPUs of h100" in told
        assert "it is outside its team’s guarantee and leaves first next time." in told

    def test_its_story_tells_what_was_asked_and_what_it_cost(self, sides, as_user, now):
        one = make_eviction(*sides, at=now - timedelta(minutes=9), outcome="checkpointed",
                            lost_gpu_us=0)  # fmt: skip
        for minutes, what in ((9, "asked_to_leave"), (8, "checkpoint_confirmed"), (8, "evicted")):
            Move.objects.create(
                job=one.job, at=now - timedelta(minutes=minutes), before="RUNNING",
                after="PREEMPTING", attempt_number=1, what=what, detail={"eviction": one.pk},
            )  # fmt: skip

        page = as_user("alice").get(f"/jobs/{one.job_id}/")
        told = [str(event.text) for event in page.context["events"]]

        assert told[0].startswith(
            "Asked to leave by reclaim for <bdi>a job of vision</bdi>: nlp/alignment held 24 and was"
            " entitled to 16. Grace 2 min."
        )
        assert told[1] == "Its checkpoint is confirmed."
        assert told[2] == (
            "<b>Checkpoint confirmed in 38 s. Lost 0.00 GPUh, $0.00.</b> Pending again as attempt 2;"
            " its retry budget is untouched."
        )

    def test_json_has_its_evictions(self, leaving, as_user):
        facts = as_user("alice").get(f"/jobs/{leaving.job_id}.json").json()

        assert [row["id"] for row in facts["evictions"]] == [leaving.pk]
        assert facts["evictions"][0]["beneficiary"] == "a job of vision"
        assert "sdxl" not in str(facts)

    def test_the_page_asks_few_questions(self, sides, as_user, now, django_assert_max_num_queries):
        for hours in range(1, 30):
            make_eviction(*sides, at=now - timedelta(hours=hours), outcome="killed")
        client = as_user("alice")

        with django_assert_max_num_queries(20):
            client.get(f"/jobs/{sides[0].pk}/")


class TestTheQueue:
    def test_a_row_that_leaves_says_for_whom_and_counts_down(self, leaving, as_user, now):
        (row,) = as_user("alice").get("/queue/?state=leaving").context["rows"]

        assert row.badge.label == "Leaving"
        assert row.why.startswith(
            f"Asked to leave for <bdi>a job of vision</bdi>; leaves by {at_seconds(leaving, now)}: "
        )
        told, counted, _ = row.why.partition('data-countdown="')
        assert counted
        # What is left of its time has gone down between the two.
        again = as_user("alice").get("/queue/?state=running").context["rows"][0].why
        assert again.startswith(told)

    def test_an_admin_follows_the_link_and_a_stranger_is_told_the_state_alone(
        self, leaving, as_user
    ):
        (row,) = as_user("admin").get("/queue/?state=leaving").context["rows"]
        (theirs,) = as_user("vera").get("/queue/?state=leaving").context["rows"]

        assert f'<a href="/jobs/{leaving.beneficiary_id}/">' in row.why
        assert theirs.why.startswith("Leaving for ")

    @pytest.mark.parametrize(("mode", "said"), [("kill", "stopped"), ("demote", "demoted")])
    def test_one_that_is_not_asked_has_nothing_to_count(self, sides, as_user, now, mode, said):
        make_eviction(*sides, at=now, mode=mode)

        (row,) = as_user("admin").get("/queue/?state=leaving").context["rows"]

        assert row.why.startswith(f"Being {said} for <a")
        assert "data-countdown" not in row.why

    def test_fifty_rows_that_leave_ask_as_few_questions(
        self, sides, make_job, as_user, now, django_assert_max_num_queries
    ):
        for number in range(55):
            make_eviction(make_job(f"v{number}", "nlp", size=1), sides[1], at=now)
        client = as_user("alice")

        with django_assert_max_num_queries(15):
            page = client.get("/queue/?state=leaving")

        assert all("Asked to leave" in row.why for row in page.context["rows"])


class TestTheOverview:
    @pytest.fixture
    def thrashed(self, sides, now):
        """One job evicted three times within the hour."""
        victim, gang = sides
        for minutes in (40, 25, 10):
            made = make_eviction(
                victim, gang, at=now - timedelta(minutes=minutes), mode="kill", outcome="killed"
            )
        return made

    def test_a_job_evicted_too_often_is_an_alarm_until_it_may_go_again(
        self, thrashed, as_user, now
    ):
        told = text_of(as_user("alice").get("/"))

        until = show.instant(now + timedelta(minutes=20), now=now)
        assert (
            f"nav-tune was evicted 3 times within an hour. It is left alone until {until}." in told
        )
        for name in ("vera", "carol"):
            assert "left alone" not in text_of(as_user(name).get("/"))

    @pytest.mark.parametrize(("limit", "alarm"), [(4, False), (2, True), (0, False)])
    def test_the_clusters_policy_says_how_often_is_too_often(
        self, thrashed, world, as_user, limit, alarm
    ):
        ClusterPolicy.objects.create(cluster=world.cluster, thrash_after=limit)

        assert ("left alone" in text_of(as_user("admin").get("/"))) == alarm

    def test_demotions_and_older_ones_do_not_count(self, sides, as_user, now):
        victim, gang = sides
        for minutes, mode, outcome in (
            (90, "kill", "killed"), (20, "kill", "killed"), (10, "demote", "demoted"),
            (5, "kill", "killed"),
        ):  # fmt: skip
            at = now - timedelta(minutes=minutes)
            make_eviction(victim, gang, at=at, mode=mode, outcome=outcome)

        assert "left alone" not in text_of(as_user("admin").get("/"))

    def test_graces_that_ran_out_are_an_alarm_for_a_day(self, sides, make_job, as_user, now):
        victim, gang = sides
        lost = {"lost_gpu_us": HOUR, "lost_micros": 2_500_000, "outcome": "grace_exceeded"}
        make_eviction(victim, gang, at=now - timedelta(hours=25), **lost)
        assert "Grace ran out" not in text_of(as_user("alice").get("/"))

        make_eviction(victim, gang, at=now - timedelta(hours=23), **lost)
        told = text_of(as_user("alice").get("/"))
        assert (
            "Grace ran out before a checkpoint of nav-tune in 24 h: 1.00 GPUh, $2.50 of work lost."
            in told
        )
        assert "$" not in text_of(as_user("bob").get("/"))
        assert "Grace ran out" not in text_of(as_user("vera").get("/"))

        make_eviction(make_job("other", "nlp"), gang, at=now - timedelta(hours=1), **lost)
        told = text_of(as_user("alice").get("/"))
        assert "of 2 jobs of nlp in 24 h: 2.00 GPUh, $5.00 of work lost." in told

    def test_the_newest_are_listed_as_each_reader_may_know_them(self, leaving, as_user):
        mine, theirs = as_user("alice").get("/"), as_user("vera").get("/")

        assert "for a job of vision · checkpoint, leaves by" in text_of(mine)
        assert "nav-tune" in text_of(mine)
        assert b"nav-tune" not in theirs.content
        assert "a job of nlp 8 GPUs for sdxl-refine" in text_of(theirs)
        assert "Nobody was evicted yet." in text_of(as_user("carol").get("/"))

    def test_the_page_asks_few_questions(self, thrashed, as_user, django_assert_max_num_queries):
        for name in ("admin", "alice", "bob"):
            client = as_user(name)
            with django_assert_max_num_queries(18):
                client.get("/")


def test_a_victim_in_line_again_is_a_job_like_any_other(sides, as_user, now):
    make_eviction(*sides, at=now - timedelta(hours=1), outcome="checkpointed")

    job = Job.objects.get(name="nav-tune")

    assert (job.state, job.attempt_number) == ("PENDING", 2)
    assert as_user("alice").get(f"/jobs/{job.pk}/").context["badge"].label == "Pending"
