"""What no look showed comes into the ledger afterwards, once; what was lost is mended, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.backends.models import Cluster
from apps.backends.port import BackendError, ForeignWork, Recalled, SeenAttempt
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job, Member
from apps.ledger.intervals import node_seen, open_members
from apps.ledger.models import Interval
from apps.ledger.usage import rebuild_usage
from apps.scheduling import missed
from apps.scheduling.adopt import uid_of
from apps.scheduling.missed import read_on
from apps.scheduling.models import HistoryReading, Tick
from apps.scheduling.observe import mark_ended
from apps.scheduling.recall import FORGOTTEN
from tests.factories import NOW, make_cluster, make_job, make_pool, make_tenant
from tests.scheduling.test_history import HOUR, Remembering, gpu_hours, rows, run

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
LATER = NOW + 6 * HOUR


@dataclass
class Knowing(Remembering):
    """A cluster that remembers runs, and how those ended that it is asked about."""

    ends: dict[str, SeenAttempt] = field(default_factory=dict)

    def recall(self, foreign: Sequence[str], own: Mapping[str, str], *, now: datetime) -> Recalled:
        if self.error is not None:
            raise self.error
        works = [work for work in self.works if work.ref in foreign]
        return Recalled(works, [self.ends[uid] for uid in own.values() if uid in self.ends])


@pytest.fixture
def knows(monkeypatch: pytest.MonkeyPatch) -> Knowing:
    knowing = Knowing()
    monkeypatch.setattr(missed, "backend_of", lambda _: knowing)
    return knowing


@pytest.fixture
def atlas() -> Cluster:
    """A cluster that was looked at at NOW, and then not before LATER."""
    cluster = make_cluster("atlas", clock_now=None, observed_at=LATER)
    pool = make_pool(cluster)
    node_seen(list(pool.nodes.all()), at_us=to_us(NOW))
    return cluster


def looked(cluster: Cluster, at: datetime) -> None:
    Tick.objects.create(cluster=cluster, at=at, fence=1, keep_until=at + 24 * HOUR)


def read(cluster: Cluster, until: datetime) -> HistoryReading:
    """Read on after a look at an instant; it must be due."""
    Cluster.objects.filter(pk=cluster.pk).update(observed_at=until)
    cluster.refresh_from_db()
    assert read_on(cluster, now=until)
    return HistoryReading.objects.get(cluster=cluster)


def test_a_run_that_no_look_showed_is_written_once(knows: Knowing, atlas: Cluster) -> None:
    knows.works = [run(7, NOW + HOUR, hours=2)]

    reading = read(atlas, LATER)

    assert (reading.runs, reading.read_until) == (1, LATER - missed.MARGIN)
    assert Job.objects.get().state == "SUCCEEDED"
    assert gpu_hours(Interval.objects.filter(kind="member")) == 8
    before = rows(atlas)
    again = read(atlas, LATER + 10 * MINUTE)
    assert (again.runs, rows(atlas)) == (1, before)
    # With an overlap, and no more: it is read on, not from the beginning.
    assert knows.asked[-1][0] == LATER - missed.MARGIN - missed.OVERLAP
    assert max(abs(row.gpu_hours) for row in rebuild_usage(atlas)) == 0


@pytest.mark.parametrize(
    ("start", "hours"),
    [
        (NOW - HOUR, 2),  # on at the first look: an import's
        (NOW + HOUR, 2),  # somebody looked: its nodes had used GPUs
        (LATER - HOUR, 1),  # over as the newest look was made: the next one's to see
    ],
)
def test_what_a_look_could_show_is_left_to_looks(
    knows: Knowing, atlas: Cluster, start: datetime, hours: float
) -> None:
    looked(atlas, NOW + 2 * HOUR)
    knows.works = [run(7, start, hours=hours)]

    assert read(atlas, LATER).runs == 0
    assert not Job.objects.exists()


def test_a_look_in_the_second_in_which_a_run_began_did_not_see_it(
    knows: Knowing, atlas: Cluster
) -> None:
    # It began after that look, and the cluster does not count parts of a second.
    looked(atlas, NOW + HOUR + timedelta(milliseconds=300))
    knows.works = [run(7, NOW + HOUR)]

    assert read(atlas, LATER).runs == 1


def test_a_run_on_a_node_that_nobody_knows_is_left_out(knows: Knowing, atlas: Cluster) -> None:
    knows.works = [run(7, NOW + HOUR, nodes=("gone",))]

    assert read(atlas, LATER).runs == 0


def test_what_fails_is_said_and_read_the_next_time(knows: Knowing, atlas: Cluster) -> None:
    knows.works = [run(7, NOW + HOUR)]
    knows.error = BackendError("slurmdbd is away.", retry=True)

    failed = read(atlas, LATER)
    knows.error = None
    done = read(atlas, LATER + MINUTE)

    assert (failed.problem, failed.read_until, failed.held_until) == (
        "slurmdbd is away.",
        None,
        None,
    )
    assert (done.problem, done.runs) == ("", 1)


def test_it_is_read_every_few_minutes_by_one_at_a_time(knows: Knowing, atlas: Cluster) -> None:
    read(atlas, LATER)

    Cluster.objects.update(observed_at=LATER + MINUTE)
    atlas.refresh_from_db()
    assert not read_on(atlas, now=LATER)
    Cluster.objects.update(observed_at=LATER + 10 * MINUTE)
    atlas.refresh_from_db()
    HistoryReading.objects.update(held_until=LATER + MINUTE)
    assert not read_on(atlas, now=LATER)
    assert read_on(atlas, now=LATER + 2 * MINUTE)


def test_a_job_that_waited_when_it_was_forgotten_has_its_run(
    knows: Knowing, atlas: Cluster
) -> None:
    job = make_job(make_tenant("vision"), atlas.pools.get())
    columns: dict[str, Any] = {"state": "CANCELLED", "outcome": "lost", "foreign_ref": "lab:7:7"}
    Job.objects.update(**columns)
    knows.works = [run(7, NOW + HOUR)]

    assert read(atlas, LATER).runs == 1

    assert not Job.objects.filter(pk=job.pk).exists()
    assert Job.objects.get(foreign_ref="lab:7:7").outcome == "succeeded"


# What was taken for lost


def lost(cluster: Cluster, *, started: bool = True, **columns: Any) -> Attempt:
    """Return an attempt of ours of 4 GPUs, launched at NOW, that was missed at LATER."""
    job = make_job(make_tenant("vision"), cluster.pools.get(), gpus_per_member=4)
    columns = {"state": "RUNNING" if started else "ADMITTED", **columns}
    Job.objects.filter(pk=job.pk).update(**columns)
    job.refresh_from_db()
    attempt = Attempt.objects.create(
        job=job, number=1, created_at=NOW, launched_at=NOW, cluster_ref="lab:1:1",
        started_at=NOW if started else None,
    )  # fmt: skip
    Member.objects.create(attempt=attempt, rank=0, node=cluster.nodes.order_by("name")[0])
    open_members([attempt], first_look_us=to_us(NOW))
    attempt.detail = FORGOTTEN
    mark_ended([(attempt, "lost", LATER)])
    return attempt


def ended(attempt: Attempt, outcome: str, after: timedelta, **columns: Any) -> SeenAttempt:
    return SeenAttempt(
        uid=str(attempt.uid), state="ended", nodes=("h100-n00",), started_at=NOW,
        ended_at=NOW + after, outcome=outcome, **columns,
    )  # fmt: skip


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize(
    ("outcome", "state"), [("succeeded", "SUCCEEDED"), ("failed", "FAILED"), ("stopped", "PENDING")]
)
def test_an_attempt_of_ours_gets_its_own_end(
    knows: Knowing, atlas: Cluster, outcome: str, state: str, *, started: bool
) -> None:
    attempt = lost(atlas, started=started)
    assert Job.objects.get().state == "PENDING"
    knows.ends[str(attempt.uid)] = ended(attempt, outcome, 2 * HOUR)

    assert read(atlas, LATER + MINUTE).mended == 1

    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.ended_at) == (outcome, NOW + 2 * HOUR)
    assert Job.objects.get().state == state
    assert gpu_hours(Interval.objects.filter(kind="member")) == 8
    assert max(abs(row.gpu_hours) for row in rebuild_usage(atlas)) == 0
    assert read(atlas, LATER + 10 * MINUTE).mended == 1


def test_a_run_of_ours_is_ours_whoever_it_ran_as(knows: Knowing, atlas: Cluster) -> None:
    lost(atlas)
    knows.works = [run(1, NOW + HOUR)]
    Attempt.objects.update(cluster_ref=knows.works[0].ref)

    assert read(atlas, LATER + MINUTE).runs == 0
    assert Job.objects.count() == 1


def test_a_job_that_runs_again_goes_on(knows: Knowing, atlas: Cluster) -> None:
    attempt = lost(atlas)
    Job.objects.update(state="RUNNING")
    knows.ends[str(attempt.uid)] = ended(attempt, "succeeded", HOUR)

    assert read(atlas, LATER + MINUTE).mended == 1

    assert Job.objects.get().state == "RUNNING"
    assert Attempt.objects.get().outcome == "succeeded"
    assert gpu_hours(Interval.objects.filter(kind="member")) == 4


def test_a_failed_one_with_a_retry_left_waits_for_it(knows: Knowing, atlas: Cluster) -> None:
    attempt = lost(atlas, retry_limit=1)
    knows.ends[str(attempt.uid)] = ended(attempt, "failed", HOUR)

    read(atlas, LATER + MINUTE)

    job = Job.objects.get()
    assert (job.state, job.retries_used, job.broken) == ("PENDING", 1, False)


def test_what_is_not_known_stays_lost(knows: Knowing, atlas: Cluster) -> None:
    lost(atlas)

    assert read(atlas, LATER + MINUTE).mended == 0
    assert (Job.objects.get().state, Attempt.objects.get().outcome) == ("PENDING", "lost")


def test_others_work_gets_its_own_end(knows: Knowing, atlas: Cluster) -> None:
    work: ForeignWork = run(7, NOW, hours=2)
    attempt = lost(atlas, foreign_ref=work.ref)
    Attempt.objects.update(uid=uid_of(atlas, work), cluster_ref=work.ref)
    assert Job.objects.get().state == "FAILED"
    knows.works = [work]

    reading = read(atlas, LATER + MINUTE)

    assert (reading.mended, reading.runs) == (1, 0)
    attempt.refresh_from_db()
    job = Job.objects.get()
    assert (attempt.outcome, attempt.ended_at) == ("succeeded", NOW + 2 * HOUR)
    assert (job.state, job.outcome, job.ended_at) == ("SUCCEEDED", "succeeded", NOW + 2 * HOUR)
    assert [move.what for move in job.moves.all()][-2:] == ["forgotten", "mended"]
    assert gpu_hours(Interval.objects.filter(kind="member")) == 8
