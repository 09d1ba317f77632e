"""A Slurm whose clock is two minutes off: the ledger has the true instants, and true durations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from apps.backends.kinds import preflight
from apps.jobs.models import Attempt, Job
from apps.scheduling.missed import EVERY, read_on
from apps.scheduling.models import HistoryReading
from apps.tenants.models import Tenant
from tests.labs.slurm.accounting import Accounting
from tests.labs.slurm.conf import Shape
from tests.labs.slurm.lab import BIN, Lab, missing
from tests.slurm.play import Play
from tests.slurm.test_recall import TREE_OF_ME, away, gpu_seconds, told_by_sacct

pytestmark = pytest.mark.django_db

OFF = 120
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module", params=[OFF, -OFF], ids=["ahead", "behind"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab with accounts whose daemons have another clock than this machine."""
    reason = missing(*Accounting.PROGRAMS)
    if reason or BIN:
        pytest.skip(reason or "the next Slurm has no accounts here")
    with Lab(Shape(nodes=2, accounting=True, ahead=request.param, extra=("MinJobAge=2",))) as lab:
        lab.accounting.load(TREE_OF_ME)
        lab.accounting.register()
        yield lab


def test_instants_are_ours_and_durations_are_slurms(lab: Lab, vision: Tenant) -> None:
    off = lab.shape.ahead
    play = Play(lab, account="vision")
    began = timezone.now()
    ours = play.submit(vision, 1, workload={"script": "#!/bin/bash\nsleep 5\n"})
    play.until_state(ours, "RUNNING")
    theirs = lab.submit("sleep 5", "--account=vision", "--gres=gpu:4")
    play.until(lambda: Job.objects.filter(foreign_ref__contains=f":{theirs}:").exists(), "seen")
    play.until_state(ours, "SUCCEEDED")
    unseen = lab.submit("sleep 2", "--account=vision", "--gres=gpu:3")
    away(lab)
    play.tick()
    assert play.trouble == ""

    cluster = play.cluster
    cluster.refresh_from_db()
    assert cluster.first_look_at is not None
    HistoryReading.objects.create(cluster=cluster, read_until=cluster.first_look_at - EVERY)
    assert read_on(cluster, now=timezone.now())

    assert HistoryReading.objects.get().runs == 1
    assert Attempt.objects.count() == 3
    for attempt in Attempt.objects.all():
        assert attempt.outcome == "succeeded"
        assert attempt.started_at is not None
        assert attempt.ended_at is not None
        assert began - SECOND <= attempt.started_at < attempt.ended_at <= timezone.now()
    for number in (theirs, unseen):
        job = Job.objects.get(foreign_ref__contains=f":{number}:")
        assert gpu_seconds(cluster, job) == told_by_sacct(lab, number)
    assert 4 * 8 <= gpu_seconds(cluster, ours) <= 7 * 8
    (found,) = [one for one in preflight(cluster, now=timezone.now()) if one.name == "clock"]
    words = found.sentence.split()
    # Slurm's seconds are whole, so that one more or less is the same.
    assert abs(int(words[3]) - OFF) <= 1
    assert words[5] == ("ahead" if off > 0 else "behind")
