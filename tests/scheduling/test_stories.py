"""The stories of the demo, each told to its end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.backends.models import Cluster
from apps.common.errors import Conflict
from apps.jobs.models import Job
from apps.jobs.states import JobState, Outcome
from apps.ledger.models import Interval
from apps.scheduling import demo, stories
from apps.scheduling.demo import load_demo
from apps.scheduling.services import tick
from apps.scheduling.stories import play_nine_ranks
from tests.factories import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _demo(settings, monkeypatch):
    settings.MODE, settings.DEMO = "demo", True
    # Quick, but whole: a shorter gang, passwords hashed once.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setattr(demo, "AHEAD", timedelta(hours=1))
    monkeypatch.setattr(stories, "STORY_RUN", 5)


# The nine ranks --------------------------------------------------------------------------------------------


def play_on(cluster: Cluster) -> None:
    for _ in range(100):
        cluster.refresh_from_db()
        if cluster.clock_now == cluster.clock_until:
            break
        tick(cluster)
    cluster.refresh_from_db()
    assert cluster.trouble == ""


def gang_wait_seconds(job: Job) -> float:
    holds = Interval.objects.filter(kind="hold", job=job)
    return sum((hold.end_us - hold.start_us) * hold.gpus for hold in holds) / 1e6


def test_nine_ranks_eight_reserved_one_pending_47_seconds():
    job = play_nine_ranks(now=NOW)

    play_on(job.cluster)

    job.refresh_from_db()
    attempt = job.attempts.get()
    holds = Interval.objects.filter(kind="hold", job=job)
    assert (attempt.started_at - job.submitted_at).total_seconds() == 47
    assert {(hold.end_us - hold.start_us) / 1e6 for hold in holds} == {47.0}
    assert holds.count() == 8
    assert gang_wait_seconds(job) == 376
    assert attempt.members.count() == 9
    assert (job.state, job.outcome) == (JobState.SUCCEEDED, Outcome.SUCCEEDED)


def test_it_can_be_played_again_but_not_before_it_ended():
    first = play_nine_ranks(now=NOW)
    with pytest.raises(Conflict) as refusal:
        play_nine_ranks(now=NOW + timedelta(seconds=1))
    assert refusal.value.code == "still_playing"
    play_on(first.cluster)

    second = play_nine_ranks(now=NOW + timedelta(hours=2))
    play_on(second.cluster)

    assert second.submitted_at == NOW + timedelta(hours=2)
    assert gang_wait_seconds(second) == 376


def test_whoever_ticks_the_standing_clock_cannot_set_it_back():
    from apps.scheduling.leases import LeaseLost, claim, renew

    first = play_nine_ranks(now=NOW)
    play_on(first.cluster)
    Cluster.objects.update(not_before=None)
    lease = claim(first.cluster)
    assert lease is not None

    second = play_nine_ranks(now=NOW + timedelta(hours=2))

    with pytest.raises(LeaseLost):
        renew(lease, clock_now=NOW)
    assert Cluster.objects.get().clock_now == second.submitted_at


def test_it_is_played_in_a_team_of_the_demo_if_there_is_one():
    assert play_nine_ranks(now=NOW).tenant.path == "story"

    Job.objects.update(ended_at=NOW)
    load_demo(now=NOW, days=0, nodes=4)
    later = play_nine_ranks(now=NOW + timedelta(hours=1))

    assert later.tenant.path == "nlp/alignment"
