"""Work that was submitted to the cluster itself: seen, counted and told of, never touched."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apps.backends.models import Cluster, Grade, Node
from apps.backends.port import ForeignWork, Observation, SeenNode
from apps.jobs.models import Attempt, Job, Move
from apps.jobs.selectors import may_cancel, may_hold, waiting_in
from apps.ledger.models import Interval
from apps.ledger.usage import rebuild_usage
from apps.scheduling.adopt import Adoption
from apps.scheduling.decide import decide, write
from apps.scheduling.frame import Frames
from apps.scheduling.leases import claim, release
from apps.scheduling.marks import unsampled
from apps.scheduling.models import Verdict
from apps.scheduling.observe import apply_observation
from apps.tenants.models import Tenant
from tests.factories import NOW, make_cluster, make_tenant, make_user

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
WAITS = ForeignWork(
    ref="lab:7:100",
    name="Slurm job 7",
    state="waiting",
    account="vision",
    user="ada",
    pool="h100",
    size=2,
    gpus_per_member=8,
    submitted_at=NOW,
    limit_seconds=3_600,
    reason="Priority",
)
RUNS = replace(
    WAITS, state="running", nodes=("n0", "n1"), run="160", started_at=NOW + MINUTE, reason=""
)
ENDED = replace(RUNS, state="ended", ended_at=NOW + 3 * MINUTE, outcome="succeeded")


class Watch:
    """A cluster of three nodes of 8 that is looked at by hand."""

    def __init__(self, **columns: Any) -> None:
        self.cluster = make_cluster(
            grade=Grade.OBSERVE, first_look_at=None, observed_at=None, clock_now=None, **columns
        )
        self.frames = Frames(self.cluster)

    def look(self, *works: ForeignWork, minute: float = 0, used: int = 0) -> None:
        """Look at these works; ``used``: GPUs of n0 that are not ours."""
        at = NOW + minute * MINUTE
        nodes = [
            SeenNode(f"n{k}", "h100", 8, "up", NOW, foreign_gpus=used * (k == 0)) for k in range(3)
        ]
        seen = Observation(as_of=at, cursor="", nodes=nodes, attempts=[], foreign=works)
        self.alive = apply_observation(self.cluster, Adoption(self.cluster, seen), self.frames)
        self.cluster.first_look_at = self.cluster.first_look_at or at
        self.cluster.observed_at = at
        self.cluster.save()

    def job(self) -> Job:
        return Job.objects.get(cluster=self.cluster)

    def says(self, minute: float) -> str:
        """Decide and publish; return what is said of the one job that waits."""
        at = NOW + minute * MINUTE
        decision = decide(self.cluster, Frames(self.cluster), now=at)
        lease = claim(self.cluster, holder="test")
        assert lease is not None
        spent = {"observe_ms": 0.0, "decide_ms": 0.0}
        write(self.cluster, decision, lease, now=at, timeout_seconds=None, timings=spent, show=True)
        release(lease, started=0.0, period=0.0)
        return Verdict.objects.get(job=self.job()).code


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_foreign_work_goes_through_the_life_of_a_job(watch: Watch) -> None:
    watch.look(WAITS)
    job = watch.job()
    assert (job.state, job.size, job.gpus_per_member, job.limit_seconds) == ("PENDING", 2, 8, 3_600)
    assert (job.name, job.submitted_at, job.workload["user"]) == ("Slurm job 7", NOW, "ada")

    watch.look(RUNS, minute=2)
    attempt = Attempt.objects.get(job=job)
    assert (watch.job().state, attempt.started_at) == ("RUNNING", NOW + MINUTE)
    assert list(attempt.members.values_list("node__name", flat=True)) == ["n0", "n1"]

    watch.look(ENDED, minute=4)
    watch.look(ENDED, minute=5)
    watch.look(minute=600)
    assert (watch.job().state, watch.job().ended_at) == ("SUCCEEDED", NOW + 3 * MINUTE)
    rows = Interval.objects.filter(kind="member", job=job)
    assert sum(row.gpus * (row.end_us - row.start_us) for row in rows) == 16 * 120_000_000
    assert max(abs(row.gpu_hours) for row in rebuild_usage(watch.cluster)) == 0


def test_its_gpus_are_counted_once(watch: Watch) -> None:
    watch.look(RUNS, minute=2, used=8)
    assert not Node.objects.filter(foreign_gpus__gt=0).exists()

    watch.look(minute=3, used=8)
    assert Node.objects.get(foreign_gpus__gt=0).name == "n0"


def test_what_asks_for_gpus_that_are_not_looked_at_is_left_to_the_nodes(watch: Watch) -> None:
    elsewhere = replace(RUNS, nodes=("n0", "n9"))

    watch.look(elsewhere, replace(WAITS, ref="lab:8:100", pool="a100"), minute=2, used=8)

    assert not Job.objects.exists()
    assert Node.objects.get(foreign_gpus__gt=0).foreign_gpus == 8


def test_work_of_which_nobody_knows_where_it_is_waits_for_that(watch: Watch) -> None:
    """Slurm does not list how a job's GPUs lie on its nodes where they were asked for in all."""
    nowhere = replace(RUNS, nodes=(), size=16, gpus_per_member=1)
    watch.look(replace(WAITS, size=16, gpus_per_member=1))
    watch.look(nowhere, replace(nowhere, ref="lab:8:100", pool=""), minute=2, used=8)
    assert (watch.job().state, Attempt.objects.count()) == ("PENDING", 0)
    assert Node.objects.get(foreign_gpus__gt=0).foreign_gpus == 8

    watch.look(RUNS, minute=3, used=8)
    assert (watch.job().state, watch.job().size) == ("RUNNING", 2)
    assert not Node.objects.filter(foreign_gpus__gt=0).exists()

    watch.look(replace(nowhere, pool=""), minute=4, used=8)
    assert watch.job().state == "RUNNING"
    assert Attempt.objects.get().members.count() == 2
    assert not Node.objects.filter(foreign_gpus__gt=0).exists()

    watch.look(replace(ENDED, nodes=()), minute=5)
    assert (watch.job().state, watch.job().ended_at) == ("SUCCEEDED", NOW + 3 * MINUTE)


def test_a_run_between_two_looks_is_booked_and_an_older_one_is_not(watch: Watch) -> None:
    watch.look(minute=2)
    watch.look(ENDED, minute=4)
    assert (watch.job().state, Attempt.objects.get().ended_at) == ("SUCCEEDED", NOW + 3 * MINUTE)

    watch.look(ENDED, replace(ENDED, ref="lab:6:50", ended_at=NOW + MINUTE), minute=5)
    assert Job.objects.count() == 1


def test_what_ended_before_the_first_look_is_not_known(watch: Watch) -> None:
    watch.look(ENDED, minute=4)

    assert not Job.objects.exists()


def test_a_job_that_is_laid_back_runs_again_as_another_attempt(watch: Watch) -> None:
    watch.look(RUNS, minute=2)
    watch.look(replace(WAITS, reason="BeginTime"), minute=3)
    job = watch.job()
    assert (job.state, job.attempt_number, job.held_at) == ("PENDING", 2, None)
    watch.look(replace(WAITS, reason="BeginTime"), minute=4)
    assert watch.job().held_reason == "the cluster says BeginTime"

    again = replace(RUNS, run="500", started_at=NOW + 6 * MINUTE)
    watch.look(again, minute=7)

    first, second = Attempt.objects.order_by("number")
    assert (first.outcome, first.ended_at) == ("evicted", NOW + 3 * MINUTE)
    assert (second.started_at, second.ended_at) == (NOW + 6 * MINUTE, None)
    assert (watch.job().state, watch.job().held_at) == ("RUNNING", None)


def test_a_run_that_was_laid_back_unseen_is_not_the_one_that_runs(watch: Watch) -> None:
    watch.look(RUNS, minute=2)
    again = replace(RUNS, run="500", started_at=NOW + 6 * MINUTE)

    watch.look(again, minute=7)
    watch.look(again, minute=8)

    assert list(Attempt.objects.order_by("number").values_list("outcome", "ended_at")) == [
        ("evicted", NOW + 6 * MINUTE), ("", None),
    ]  # fmt: skip


def test_what_is_listed_no_more_is_lost_and_an_arrays_rest_goes(watch: Watch) -> None:
    rest = replace(WAITS, ref="lab:9_[:100", tasks=20)
    waits = replace(WAITS, ref="lab:8:100")
    watch.look(RUNS, rest, waits, minute=2)

    watch.look(minute=3)

    assert dict(Job.objects.values_list("foreign_ref", "state")) == {
        RUNS.ref: "FAILED", waits.ref: "CANCELLED",
    }  # fmt: skip
    assert set(Job.objects.values_list("outcome", flat=True)) == {"lost"}
    assert Move.objects.filter(what="forgotten").count() == 2
    assert not Interval.objects.filter(kind="member", end_us=None).exists()


def test_cancelled_while_it_waits(watch: Watch) -> None:
    watch.look(WAITS)

    watch.look(replace(WAITS, state="ended", ended_at=NOW + MINUTE, outcome="cancelled"), minute=2)

    assert (watch.job().state, watch.job().ended_at) == ("CANCELLED", NOW + MINUTE)
    assert not Attempt.objects.exists()


def test_what_may_change_while_it_waits_is_followed(watch: Watch) -> None:
    watch.look(WAITS)

    watch.look(replace(WAITS, limit_seconds=60, reason="JobHeldAdmin", size=1), minute=1)
    held = watch.job()
    watch.look(replace(WAITS, limit_seconds=60, reason="JobHeldAdmin", size=1), minute=2)

    assert (held.limit_seconds, held.size, held.held_at) == (60, 1, NOW + MINUTE)
    assert watch.job().held_at == NOW + MINUTE
    watch.look(WAITS, minute=3)
    assert watch.job().held_at is None


def test_an_account_is_its_tenants_or_has_one_below_the_clusters() -> None:
    make_tenant("research")
    vision = make_tenant("research/cv")
    watch = Watch(options={"accounts": {"research/cv": "vision"}})

    watch.look(
        WAITS,
        replace(WAITS, ref="lab:8:1", account="nlp"),
        replace(WAITS, ref="lab:9:1", account=""),
    )

    assert dict(Job.objects.values_list("foreign_ref", "tenant__path")) == {
        "lab:7:100": "research/cv", "lab:8:1": "atlas/nlp", "lab:9:1": "atlas/no account",
    }  # fmt: skip
    assert Job.objects.get(tenant=vision).pk
    before = Tenant.objects.count()
    watch.look(WAITS, replace(WAITS, ref="lab:10:1", account="nlp"), minute=1)
    assert Tenant.objects.count() == before


def test_where_rollcall_watches_it_is_planned_and_where_it_drives_it_is_not(watch: Watch) -> None:
    watch.look(WAITS)
    assert watch.says(1) == "watched"

    Cluster.objects.update(grade=Grade.DRIVE)
    watch.cluster.refresh_from_db()
    assert watch.says(2) == "elsewhere"


def test_it_is_never_evicted_and_its_utilisation_is_unknown(watch: Watch) -> None:
    watch.look(RUNS, minute=2)

    decision = decide(watch.cluster, Frames(watch.cluster), now=NOW + 3 * MINUTE)

    assert decision.seen.snapshot.running.preemptible.tolist() == [False]
    (sample,) = unsampled(watch.alive, now=NOW)
    assert (sample.uid, sample.utilisation) == (str(Attempt.objects.get().uid), None)


def test_nobody_changes_it_here(watch: Watch) -> None:
    watch.look(WAITS)
    admin = make_user("root", is_superuser=True)

    assert not may_cancel(admin, watch.job())
    assert not may_hold(admin, watch.job())


def test_it_takes_no_place_in_a_queue_that_takes_few(watch: Watch) -> None:
    watch.look(WAITS)

    assert waiting_in(watch.job().tenant, watch.cluster.pk) == 0
