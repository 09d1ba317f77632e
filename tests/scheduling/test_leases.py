"""One holder at a time, fenced, and not more often than due."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from apps.backends.models import Cluster
from apps.jobs.models import Job
from apps.scheduling.leases import LeaseLost, claim, fenced, release, renew
from apps.scheduling.services import tick
from tests.factories import make_job
from tests.scheduling.playground import Playground


def test_a_lease_is_held_by_one(play: Playground) -> None:
    first = claim(play.cluster)
    second = claim(play.cluster)

    assert first is not None
    assert second is None


def test_an_expired_lease_is_taken_with_a_higher_fence(play: Playground) -> None:
    first = claim(play.cluster)
    Cluster.objects.update(lease_until=timezone.now() - timedelta(seconds=1))

    second = claim(play.cluster)

    assert first is not None
    assert second is not None
    assert second.fence == first.fence + 1


def test_a_released_lease_is_not_due_before_nine_tenths_of_the_period(play: Playground) -> None:
    lease = claim(play.cluster)
    assert lease is not None

    release(lease, started=time.time(), period=60)

    assert claim(play.cluster) is None
    Cluster.objects.update(not_before=timezone.now() - timedelta(seconds=1))
    assert claim(play.cluster) is not None


def test_who_lost_the_lease_writes_nothing(play: Playground, vision: object) -> None:
    late = claim(play.cluster)
    assert late is not None
    Cluster.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    claim(play.cluster)

    with pytest.raises(LeaseLost), fenced(late):
        Cluster.objects.update(trouble="written by a ghost")
    with pytest.raises(LeaseLost):
        renew(late)

    assert Cluster.objects.get().trouble == ""


def test_an_archived_cluster_is_ticked_by_nobody(play: Playground) -> None:
    Cluster.objects.update(archived_at=timezone.now())

    assert claim(play.cluster) is None


def test_a_tick_that_loses_the_lease_returns_and_does_nothing(
    play: Playground, vision: object
) -> None:
    job = make_job(vision, play.pool)  # type: ignore[arg-type]
    claim(play.cluster)

    assert tick(play.cluster) is False

    assert Job.objects.get(pk=job.pk).state == "PENDING"
