"""History comes into the ledger once: window by window, whoever dies, however often it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import F, Sum
from django.utils import timezone

from apps.audit.models import Entry
from apps.backends.models import Cluster, Node
from apps.backends.port import BackendError, Capabilities, ForeignWork, History, Recalled
from apps.common.errors import Conflict, Invalid
from apps.common.time import HOUR_US, to_us
from apps.jobs.models import Attempt, Job
from apps.ledger.intervals import node_seen
from apps.ledger.models import Interval, RollUp
from apps.ledger.rollup import tally, tally_raw
from apps.ledger.selectors import five_parts
from apps.ledger.usage import decayed_usage, rebuild_usage
from apps.scheduling import history, steps
from apps.scheduling.history import go_on, start_history_import
from apps.scheduling.models import HistoryImport
from apps.scheduling.selectors import imports_to_go_on, percent_done
from tests.factories import NOW, make_cluster, make_job, make_pool, make_tenant
from tests.scheduling.playground import Blow

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def run(number: int, start: datetime, hours: float = 1, **changes: Any) -> ForeignWork:
    """Return a run of one member of 4 GPUs on n0."""
    work = ForeignWork(
        ref=f"lab:{number}:{number}", name=f"Slurm job {number}", state="ended", account="vision",
        user="ada", pool="h100", size=1, gpus_per_member=4, submitted_at=start - HOUR,
        nodes=("h100-n00",), run=str(number), started_at=start,
        ended_at=start + timedelta(hours=hours), outcome="succeeded",
    )  # fmt: skip
    return replace(work, **changes)


@dataclass
class Remembering:
    """A cluster that remembers runs, in no order, and was asked for these ranges."""

    works: list[ForeignWork] = field(default_factory=list)
    own: dict[str, str] = field(default_factory=dict)
    error: BackendError | None = None
    asked: list[tuple[datetime, datetime]] = field(default_factory=list)

    def capabilities(self) -> Capabilities:
        return Capabilities(grade="observe", can=frozenset({"history"}))

    def history(self, since: datetime, until: datetime, *, now: datetime) -> History:
        self.asked.append((since, until))
        if self.error is not None:
            raise self.error
        works = [one for one in self.works if one.ended_at >= since and one.started_at < until]
        return History(works[::-1], self.own, {"asked for no GPUs": 1})

    def recall(self, foreign: Sequence[str], own: Mapping[str, str], *, now: datetime) -> Recalled:
        return Recalled()


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> Remembering:
    remembering = Remembering()
    monkeypatch.setattr(history, "backend_of", lambda _: remembering)
    return remembering


def seen_once(name: str) -> Cluster:
    """Return a cluster of four nodes of 8 GPUs, first looked at at NOW."""
    cluster = make_cluster(name, clock_now=None, observed_at=NOW)
    pool = make_pool(cluster)
    node_seen(list(pool.nodes.all()), at_us=to_us(NOW))
    return cluster


@pytest.fixture
def atlas() -> Cluster:
    return seen_once("atlas")


def begin(cluster: Cluster, days: float = 3, **columns: Any) -> HistoryImport:
    return start_history_import(cluster, since=NOW - days * DAY, by=None, now=NOW, **columns)


def complete(job: HistoryImport, **columns: Any) -> HistoryImport:
    assert go_on(job.pk, holder="test", **columns)
    job.refresh_from_db()
    return job


def rows(cluster: Cluster) -> list[list[str]]:
    """Return all that was written, but for keys, uids and the paths of tenants."""
    jobs = Job.objects.filter(cluster=cluster).order_by()
    attempts = Attempt.objects.filter(job__cluster=cluster).order_by()
    ref, span = "job__foreign_ref", ("gpus", "start_us", "end_us")
    tables: list[tuple[Any, tuple[str, ...]]] = [
        (jobs, ("foreign_ref", "state", "outcome", "tenant__name", "size")),
        (jobs, ("foreign_ref", "moves__at", "moves__before", "moves__what")),
        (attempts, (ref, "number", "started_at", "ended_at", "outcome")),
        (attempts, (ref, "members__rank", "members__node__name")),
        (Interval.objects.filter(cluster=cluster), (ref, "kind", "node__name", "rank", *span)),
        (
            RollUp.objects.filter(cluster=cluster),
            ("quarter_us", "pool__name", "tenant__name", "state", "gpu_us"),
        ),
    ]
    return [sorted(map(str, table.values_list(*columns))) for table, columns in tables]


def gpu_hours(intervals: Iterable[Interval] | Any) -> float:
    total = intervals.aggregate(sum=Sum(F("gpus") * (F("end_us") - F("start_us"))))["sum"]
    return (total or 0) / HOUR_US


def many() -> list[ForeignWork]:
    """Return 60 runs over three days, some across midnight, as on four nodes."""
    return [
        run(
            number, NOW - 3 * DAY + number * timedelta(minutes=65), hours=number % 5 * 0.7,
            nodes=(f"h100-n0{number % 4}",), account=("vision", "nlp")[number % 2],
        )
        for number in range(60)
    ]  # fmt: skip


def test_runs_become_jobs_with_their_whole_story(past: Remembering, atlas: Cluster) -> None:
    past.works = [run(7, NOW - DAY, size=2, nodes=("h100-n00", "h100-n01"))]

    job = complete(begin(atlas))

    assert (job.state, job.runs, job.known, percent_done(job)) == ("done", 1, 0, 100)
    made = Job.objects.get()
    assert (made.state, made.outcome, made.ended_at) == ("SUCCEEDED", "succeeded", NOW - 23 * HOUR)
    assert (made.tenant.path, made.workload["user"]) == ("atlas/vision", "ada")
    assert list(made.moves.values_list("before", "after", "what")) == [
        ("", "PENDING", "submitted"),
        ("PENDING", "ADMITTED", "admitted"),
        ("ADMITTED", "RUNNING", "started"),
        ("RUNNING", "SUCCEEDED", "succeeded"),
    ]
    members = Interval.objects.filter(kind="member")
    assert list(members.order_by("rank").values_list("node__name", "rank")) == [
        ("h100-n00", 0), ("h100-n01", 1)
    ]  # fmt: skip
    assert gpu_hours(members) == gpu_hours(Interval.objects.filter(kind="mark")) == 8


def test_a_window_in_which_nothing_ended_is_passed_over(past: Remembering, atlas: Cluster) -> None:
    job = complete(begin(atlas))

    assert past.asked[:3] == [(NOW - (3 - day) * DAY, NOW - (2 - day) * DAY) for day in range(3)]
    assert job.left_out == {"asked for no GPUs": 3}


def test_an_import_that_dies_anywhere_and_goes_on_is_as_one_that_did_not(
    past: Remembering, atlas: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    past.works = many()
    complete(begin(atlas))
    struck = seen_once("struck")
    deaths = iter([0, 1, 0, 1, 1, 0, 1])

    def strike(step: str) -> None:
        if step.startswith("history") and next(deaths, 0):
            raise Blow

    monkeypatch.setattr(steps, "reached", strike)
    # Who is killed writes nothing any more, also not that it failed.
    monkeypatch.setattr(history, "_fail", lambda *_, **__: None)
    job, blows = begin(struck), 0
    while job.state != "done":
        HistoryImport.objects.update(held_until=None)
        try:
            go_on(job.pk, holder="test")
        except Blow:
            blows += 1
        job.refresh_from_db()

    assert blows == 4
    assert rows(struck) == rows(atlas)
    assert max(abs(one.gpu_hours) for one in rebuild_usage(struck)) == 0


def test_twice_is_as_once(past: Remembering, atlas: Cluster) -> None:
    past.works = many()
    first = complete(begin(atlas))
    before = rows(atlas)

    again = complete(begin(atlas))

    assert (first.runs, again.runs, again.known) == (60, 0, 60)
    assert rows(atlas) == before


def test_windows_with_too_much_in_them_are_halved(
    past: Remembering, atlas: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    past.works = many()
    monkeypatch.setattr(history, "MOST_RUNS", 5)

    job = complete(begin(atlas))

    assert (job.runs, job.known, job.state) == (60, 0, "done")
    assert min(until - since for since, until in past.asked[:-1]) < DAY / 3


def test_the_past_adds_up_and_is_rolled_up(past: Remembering, atlas: Cluster) -> None:
    old = [
        run(100 + number, NOW - DAY + number * HOUR, hours=3, nodes=("old",)) for number in (0, 1)
    ]
    past.works = [*many(), *old]

    complete(begin(atlas))

    atlas.refresh_from_db()
    assert atlas.known_from == NOW - 3 * DAY
    span = to_us(NOW - 3 * DAY), to_us(NOW)
    report = five_parts([atlas], *span)
    assert report.capacity == report.assumed
    # "old" is there while anything runs on it, with as many GPUs as were in use at once.
    assert report.capacity.gpu_hours == 4 * 8 * 72 + 8 * 4
    assert sum(one.gpu_us for one in tally(atlas, *span)) == report.capacity.gpu_hours * HOUR_US
    assert tally(atlas, *span) == tally_raw(atlas, *span)
    assert {one.state for one in tally(atlas, *span)} == {"unknown", "free"}
    gone = Node.objects.get(name="old")
    assert (gone.gpus, gone.gone_at) == (4, NOW - DAY + 4 * HOUR)


def test_usage_decays_from_when_it_was(past: Remembering, atlas: Cluster) -> None:
    past.works = [run(1, NOW - 2 * DAY, hours=5)]

    complete(begin(atlas))

    (usage,) = decayed_usage(atlas, at_us=to_us(NOW)).values()
    assert 20 * 0.5 ** (2 / 7) < usage < 20 * 0.5 ** (1.75 / 7)


def test_history_before_the_history_joins_it(past: Remembering, atlas: Cluster) -> None:
    past.works = many()
    complete(begin(atlas, days=1))
    atlas.refresh_from_db()
    assert atlas.known_from == NOW - DAY

    apart = complete(
        start_history_import(atlas, since=NOW - 3 * DAY, until=NOW - 2 * DAY, by=None, now=NOW)
    )
    atlas.refresh_from_db()
    assert apart.state == "done"
    assert atlas.known_from == NOW - DAY  # nothing is known in between

    complete(begin(atlas))
    atlas.refresh_from_db()
    assert atlas.known_from == NOW - 3 * DAY
    span = to_us(NOW - 3 * DAY), to_us(NOW)
    assert five_parts([atlas], *span).capacity.gpu_hours == 4 * 8 * 72
    assert Job.objects.count() == 60


def test_what_ran_over_the_first_look_is_in_up_to_it(past: Remembering, atlas: Cluster) -> None:
    past.works = [run(1, NOW - HOUR, hours=5), run(2, NOW, hours=1)]

    job = complete(begin(atlas))

    assert job.runs == 1
    assert gpu_hours(Interval.objects.filter(kind="member")) == 4
    assert Job.objects.get().ended_at == NOW + 4 * HOUR


def test_what_was_over_later_comes_with_the_next_import(past: Remembering, atlas: Cluster) -> None:
    past.works = many()
    complete(begin(atlas))
    past.works += [run(100, NOW - DAY, hours=30), run(101, NOW - 2 * DAY, hours=1)]

    job = complete(begin(atlas))

    assert job.runs == 2
    atlas.refresh_from_db()
    span = to_us(NOW - 3 * DAY), to_us(NOW)
    assert tally(atlas, *span) == tally_raw(atlas, *span)
    late = Interval.objects.filter(
        kind="member", job__foreign_ref__in=["lab:100:100", "lab:101:101"]
    )
    assert gpu_hours(late) == 4 * 24 + 4
    assert max(abs(one.gpu_hours) for one in rebuild_usage(atlas)) == 0


def test_ours_is_left_out_where_the_ledger_has_it(past: Remembering, atlas: Cluster) -> None:
    job = make_job(make_tenant("nlp"), atlas.pools.get())
    ours = Attempt.objects.create(job=job, number=1, created_at=NOW)
    past.works = [run(1, NOW - DAY), run(2, NOW - DAY)]
    past.own = {"lab:1:1": str(ours.uid), "lab:2:2": str(uuid4())}

    found = complete(begin(atlas))

    assert (found.runs, found.known) == (1, 1)
    assert Job.objects.exclude(foreign_ref="").get().foreign_ref == "lab:2:2"


def test_nobody_else_is_at_it_meanwhile(past: Remembering, atlas: Cluster) -> None:
    past.works = many()
    job = begin(atlas)
    others = []

    def look(_: HistoryImport) -> None:
        others.append(go_on(job.pk, holder="other"))

    complete(job, progress=look)

    assert len(others) >= 5
    assert not any(others)
    assert not go_on(job.pk, holder="late")  # it is done


def test_who_was_taken_for_dead_writes_nothing(past: Remembering, atlas: Cluster) -> None:
    past.works = many()
    job = begin(atlas)
    taken = []

    def slow(_: HistoryImport) -> None:
        if not taken:
            HistoryImport.objects.update(held_until=timezone.now() - HOUR)
            taken.append(go_on(job.pk, holder="other"))

    complete(job, progress=slow)

    assert (job.state, job.runs, job.known) == ("done", 60, 0)


def test_a_worker_goes_on_for_a_while_and_another_after_it(
    past: Remembering, atlas: Cluster
) -> None:
    past.works = many()
    job = begin(atlas)

    slices = 0
    while job.state == "running":
        assert imports_to_go_on(timezone.now()) == [job.pk]
        complete(job, seconds=0.000_001)
        slices += 1

    assert slices >= 3
    assert (job.runs, imports_to_go_on(timezone.now())) == (60, [])


def test_a_cluster_that_does_not_answer_is_asked_again_and_in_the_end_given_up(
    past: Remembering, atlas: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_FAILURES", 3)
    past.error = BackendError("Slurm does not answer.", retry=True)
    job = begin(atlas)

    for failures in (1, 2):
        complete(job)
        assert (job.state, job.problem, job.failures) == (
            "running", "Slurm does not answer.", failures,
        )  # fmt: skip
        assert imports_to_go_on(timezone.now()) == []
        HistoryImport.objects.update(held_until=None)
    complete(job)
    assert (job.state, job.failures) == ("failed", 3)

    past.error = None
    assert complete(begin(atlas)).state == "done"


def test_a_refusal_ends_it_with_the_reason(past: Remembering, atlas: Cluster) -> None:
    past.error = BackendError("sacct refused: no", retry=False)

    job = complete(begin(atlas))

    assert (job.state, job.problem) == ("failed", "sacct refused: no")
    assert percent_done(job) == 0


class TestRefusals:
    def test_a_simulated_cluster_has_no_history(self, atlas: Cluster) -> None:
        with pytest.raises(Invalid, match="simulated cluster has no past"):
            begin(atlas)

    def test_before_the_first_look_there_is_no_end(self, past: Remembering) -> None:
        with pytest.raises(Conflict, match="not looked at yet"):
            begin(make_cluster(first_look_at=None))

    def test_one_at_a_time(self, past: Remembering, atlas: Cluster) -> None:
        begin(atlas)
        with pytest.raises(Conflict, match="imported already"):
            begin(atlas)

    def test_a_range_after_the_first_look(self, past: Remembering, atlas: Cluster) -> None:
        with pytest.raises(Invalid) as told:
            start_history_import(atlas, since=NOW, until=NOW + DAY, by=None, now=NOW)
        assert told.value.field == "since"

    def test_it_is_audited(self, past: Remembering, atlas: Cluster) -> None:
        begin(atlas, reason="a new cluster")
        entry = Entry.objects.get(object_kind="cluster", verb="history imported")
        assert entry.reason == "a new cluster"
        assert entry.changes["until"] == [None, NOW.isoformat()]
