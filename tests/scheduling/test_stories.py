"""The stories of the demo, each told to its end by the tick."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.backends.models import Cluster
from apps.common.errors import Conflict, Invalid
from apps.jobs.models import Attempt, Eviction, Job
from apps.jobs.services import hold_job
from apps.jobs.states import JobState, Outcome
from apps.ledger.models import Interval
from apps.queues.models import ClusterPolicy
from apps.scheduling import demo, stories
from apps.scheduling.demo import load_demo
from apps.scheduling.services import tick
from apps.scheduling.stories import NINE_RANKS, STORIES, play
from tests.factories import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _demo(settings, monkeypatch):
    settings.MODE, settings.DEMO = "demo", True
    # Quick, but whole: nobody watches, passwords hashed once, fewer hours ahead.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setattr(demo, "AHEAD", timedelta(hours=1))
    monkeypatch.setattr(stories, "PACE", 0)


def play_on(cluster: Cluster) -> None:
    for _ in range(100):
        cluster.refresh_from_db()
        if cluster.clock_now == cluster.clock_until:
            break
        tick(cluster)
    cluster.refresh_from_db()
    assert cluster.clock_now == cluster.clock_until
    assert cluster.trouble == ""


def told(name: str, now: datetime = NOW) -> Job:
    job = play(name, now=now)
    play_on(job.cluster)
    job.refresh_from_db()
    return job


def gang_wait_seconds(job: Job) -> float:
    holds = Interval.objects.filter(kind="hold", job=job)
    return sum((hold.end_us - hold.start_us) * hold.gpus for hold in holds) / 1e6


def after(at: datetime, job: Job) -> float:
    """Return the seconds from the start of a story to an instant."""
    return (at - job.submitted_at).total_seconds()


# The nine ranks --------------------------------------------------------------------------------------------


def test_nine_ranks_eight_reserved_one_pending_47_seconds():
    job = told(NINE_RANKS)

    attempt = job.attempts.get()
    holds = Interval.objects.filter(kind="hold", job=job)
    assert after(attempt.started_at, job) == 47
    assert {(hold.end_us - hold.start_us) / 1e6 for hold in holds} == {47.0}
    assert holds.count() == 8
    assert gang_wait_seconds(job) == 376
    assert attempt.members.count() == 9
    assert (job.state, job.outcome) == (JobState.SUCCEEDED, Outcome.SUCCEEDED)


# Making way ------------------------------------------------------------------------------------------------


# What is recorded of it, by hand: when it was asked and when that was over, seconds into the story;
# how it ended; GPU-seconds lost; what they cost in dollars: 180 / 3,600 × 2.50 = 0.125.
RECORDS = {
    "kill": [("kill", 30, 30, "killed", 180, 0.125)],
    "checkpoint": [("checkpoint", 30, 55, "checkpointed", 0, 0)],
    "demote": [("demote", 30, 30, "demoted", 0, 0), ("checkpoint", 60, 75, "checkpointed", 0, 0)],
    "shrink": [("shrink", 30, 40, "shrunk", 0, 0)],
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_gang_makes_way_for_one_with_a_promise(name):
    job = told(name)

    rows = [
        (
            row.mode, after(row.at, job), after(row.ended_at, job), row.outcome,
            row.lost_gpu_us / 1e6, row.lost_micros / 1e6,
        )
        for row in Eviction.objects.order_by("id")
    ]  # fmt: skip
    other = Job.objects.get(name="was promised room")
    assert rows == RECORDS[name]
    assert set(Eviction.objects.values_list("job", "beneficiary", "rule")) == {
        (job.pk, other.pk, "reclaim")
    }
    # It starts when the room is seen to be there, the next second, and all of them succeed.
    left = RECORDS[name][-1][2]
    assert after(other.attempts.get().started_at, job) - left in (0, 1)
    assert set(Job.objects.values_list("outcome", flat=True)) == {Outcome.SUCCEEDED}


# How long its last attempt ran, of the 90 or 120 seconds it needs: a kill begins anew, a checkpoint
# has kept what was done by then.
@pytest.mark.parametrize(
    ("name", "ran"),
    [
        ("kill", [30, 90]),
        ("checkpoint", [55, 90 - 55]),
        ("demote", [75, 120 - 75]),
        ("shrink", [90]),
    ],
)
def test_the_one_that_made_way_comes_back_with_what_it_had_saved(name, ran):
    job = told(name)

    attempts = Attempt.objects.filter(job=job).order_by("number")
    assert [(row.ended_at - row.started_at).total_seconds() for row in attempts] == ran
    assert job.retries_used == 0


def test_the_small_one_is_looked_at_first_and_let_be():
    told("kill")

    names = dict(Job.objects.values_list("pk", "name"))
    considered = Eviction.objects.get().considered
    assert [(names[row["job"]], row["passed"]) for row in considered] == [
        ("looks on", "given_back"),
        ("makes way", "chosen"),
    ]
    assert Attempt.objects.filter(job__name="looks on").count() == 1


# One after the other ---------------------------------------------------------------------------------------


def test_each_is_played_under_its_own_policy_whatever_was_played_before():
    hour = timedelta(hours=1)
    told("kill")
    first = Eviction.objects.count()
    nine = told(NINE_RANKS, NOW + hour)
    then = ClusterPolicy.objects.get().preemption
    told("checkpoint", NOW + 2 * hour)

    assert gang_wait_seconds(nine) == 376
    assert then == "none"
    assert first == 1
    assert [row.outcome for row in Eviction.objects.order_by("id")] == ["killed", "checkpointed"]


@pytest.mark.parametrize("second", [NINE_RANKS, "demote"])
def test_two_at_once_are_refused_by_the_name_of_the_first(second):
    job = play("kill", now=NOW)

    with pytest.raises(Conflict, match="The story of a kill is being told") as refusal:
        play(second, now=NOW + timedelta(seconds=1))

    assert refusal.value.code == "still_playing"
    assert ClusterPolicy.objects.get().mode == "kill"
    assert Job.objects.filter(cluster=job.cluster).count() == 2


def test_it_can_be_played_again_once_it_ended():
    told(NINE_RANKS)

    second = told(NINE_RANKS, NOW + timedelta(hours=2))

    assert second.submitted_at == NOW + timedelta(hours=2)
    assert gang_wait_seconds(second) == 376


def test_a_job_that_somebody_kept_from_ending_does_not_stop_the_next_story():
    held = play(NINE_RANKS, now=NOW)
    hold_job(held, by=None, now=NOW, reason="let us see")
    play_on(held.cluster)

    told("kill", NOW + timedelta(hours=1))

    assert Job.objects.get(pk=held.pk).state == JobState.CANCELLED
    assert Eviction.objects.get().outcome == "killed"


def test_whoever_ticks_the_standing_clock_cannot_set_it_back():
    from apps.scheduling.leases import LeaseLost, claim, renew

    first = told(NINE_RANKS)
    Cluster.objects.update(not_before=None)
    lease = claim(first.cluster)
    assert lease is not None

    second = play(NINE_RANKS, now=NOW + timedelta(hours=2))

    with pytest.raises(LeaseLost):
        renew(lease, clock_now=NOW)
    assert Cluster.objects.get().clock_now == second.submitted_at


def test_a_story_that_is_none_is_refused():
    with pytest.raises(Invalid):
        play("nine", now=NOW)

    assert not Cluster.objects.exists()


def test_they_are_played_by_teams_of_the_demo_if_there_are():
    assert told("shrink").tenant.path == "story"

    load_demo(now=NOW, days=0, nodes=4)
    told("kill", NOW + timedelta(hours=1))

    paths = Eviction.objects.values_list("job__tenant__path", "beneficiary__tenant__path")
    assert set(paths.filter(outcome="killed")) == {("nlp/alignment", "vision/generative")}
    assert set(STORIES) == {NINE_RANKS, *RECORDS}
