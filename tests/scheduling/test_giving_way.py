"""From the decision to evict to the end of the record, and what may come between."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.jobs.eviction_facts import loss_of
from apps.jobs.evictions import confirm_checkpoint
from apps.jobs.models import Attempt, Eviction, Job, Move, Reservation
from apps.ledger.models import Interval
from apps.ledger.rollup import tally
from apps.ledger.usage import rebuild_usage
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.scheduling.evict import close_ended, outcome_of
from apps.scheduling.models import Verdict
from apps.tenants.models import Tenant
from tests.factories import NOW, make_job
from tests.scheduling.playground import Playground


@pytest.fixture
def urgent(db: None) -> PriorityClass:
    return PriorityClass.objects.create(name="urgent", priority=100)


def evict_by(play: Playground, mode: str, grace: int = 60) -> None:
    ClusterPolicy.objects.create(
        cluster=play.cluster, preemption="priority", mode=mode, grace_seconds=grace
    )


def contest(
    play: Playground,
    vision: Tenant,
    urgent: PriorityClass,
    takes: object = "never",
    every: int | None = None,
) -> tuple[Job, Job]:
    """A gang that has held all since NOW, and one above it that comes after ten minutes."""
    workload = {"kind": "simulated", "checkpoint_takes": takes}
    if every is not None:
        workload["checkpoint_every"] = every
    low = make_job(vision, play.pool, size=8, workload=workload, limit_seconds=36_000)
    play.tick(0)
    high = make_job(
        vision, play.pool, size=8, minutes=10, priority_class=urgent, limit_seconds=3_600
    )
    return low, high


def test_a_confirmation_from_outside_lets_the_victim_go_with_nothing_lost_but_the_way_out(
    play: Playground, vision: Tenant, urgent: PriorityClass
) -> None:
    evict_by(play, "checkpoint", grace=300)
    low, high = contest(play, vision, urgent)
    play.tick(600)
    asked = (play.state(low), Verdict.objects.get(job=high).code)

    confirm_checkpoint(low, attempt_number=1, by=None, now=play.at(620))
    play.tick(630)
    play.tick(640)

    record = Eviction.objects.get()
    assert asked == ("PREEMPTING", "leaving")
    assert record.outcome == "checkpointed"
    assert record.ended_at == play.at(630)
    assert record.lost_gpu_us == 8 * 10 * 1_000_000
    assert (play.state(low), play.state(high)) == ("PENDING", "RUNNING")
    assert Attempt.objects.get(job=low).outcome == "evicted"
    assert Job.objects.get(pk=low.pk).retries_used == 0


@pytest.mark.parametrize(
    ("saved", "outcome", "lost"),
    [(0.0, "checkpointed", 0.0), (0.4, "grace_exceeded", 0.0), (-1.0, "grace_exceeded", 1.9)],
)
def test_whoever_saves_within_the_second_of_being_asked_has_saved(
    play: Playground, vision: Tenant, urgent: PriorityClass, saved: float, outcome: str, lost: float
) -> None:
    """A cluster may count whole seconds: then what was saved after it was asked seems to be before."""
    evict_by(play, "checkpoint", grace=300)
    contest(play, vision, urgent)
    play.tick(600)
    record = Eviction.objects.select_related("job", "attempt__job").get()
    record.at = play.at(600.9)
    record.attempt.last_checkpoint_at = play.at(600 + saved)

    found = outcome_of(record, record.attempt, "stopped")
    close_ended(record.attempt, record, found, play.at(600))

    assert found == outcome
    assert (record.ended_at, record.lost_gpu_us) == (play.at(600.9), 8 * lost * 1_000_000)


def test_an_older_checkpoint_that_the_cluster_knows_takes_nothing_from_a_confirmed_one(
    play: Playground, vision: Tenant, urgent: PriorityClass
) -> None:
    evict_by(play, "checkpoint", grace=300)
    low, _ = contest(play, vision, urgent, every=250)
    play.tick(600)
    known = Attempt.objects.get(job=low).last_checkpoint_at

    confirm_checkpoint(low, attempt_number=1, by=None, now=play.at(620))
    play.tick(630)
    play.tick(640)
    play.tick(700)

    assert known == play.at(500)
    assert Attempt.objects.get(job=low, number=1).last_checkpoint_at == play.at(620)
    assert Eviction.objects.get().lost_gpu_us == 8 * 10 * 1_000_000


def test_what_is_lost_without_a_price_is_not_said_to_have_cost_nothing(
    play: Playground, vision: Tenant, urgent: PriorityClass
) -> None:
    evict_by(play, "kill")
    contest(play, vision, urgent)
    play.tick(600)
    play.tick(610)

    record = Eviction.objects.get()
    loss = loss_of(record)
    assert record.lost_gpu_us == 8 * 600 * 1_000_000
    assert record.lost_micros is None
    assert loss is not None
    assert loss.money is None


def test_the_room_is_gang_wait_from_the_instant_the_victim_left(
    play: Playground, vision: Tenant, urgent: PriorityClass
) -> None:
    evict_by(play, "checkpoint")
    _, high = contest(play, vision, urgent, takes=20)
    play.tick(600)
    play.tick(630)

    holds = Interval.objects.filter(job=high, kind="hold")
    seconds = {(row.end_us - row.start_us) // 1_000_000 for row in holds if row.end_us}
    parts = tally(play.cluster, *(int(play.at(s).timestamp()) * 1_000_000 for s in (600, 630)))
    assert (holds.count(), seconds) == (8, {10})
    assert {p.state: p.gpu_us for p in parts} == {
        "busy": 8 * 20 * 1_000_000,
        "gang_wait": 8 * 10 * 1_000_000,
    }
    assert [one.gpu_hours for one in rebuild_usage(play.cluster)] == [0.0]


@pytest.mark.parametrize("step", ["act", "launched"])
def test_a_blow_between_the_record_and_the_call_leaves_one_record_and_one_end(
    play: Playground,
    vision: Tenant,
    urgent: PriorityClass,
    step: str,
) -> None:
    evict_by(play, "kill")
    low, high = contest(play, vision, urgent)

    play.tick_cut_off(step, 600)
    play.tick(600)
    play.tick(630)

    record = Eviction.objects.get()
    assert (record.outcome, record.ended_at) == ("killed", play.at(600))
    assert (play.state(low), play.state(high)) == ("PENDING", "RUNNING")
    told = Move.objects.filter(job=low).values_list("what", flat=True)
    assert [what for what in told if what in ("asked_to_leave", "evicted")] == [
        "asked_to_leave",
        "evicted",
    ]


def test_nothing_is_asked_or_promised_twice_while_a_victim_leaves(
    play: Playground, vision: Tenant, urgent: PriorityClass
) -> None:
    evict_by(play, "checkpoint", grace=300)
    _, first = contest(play, vision, urgent)
    second = make_job(
        vision, play.pool, size=8, minutes=10.1, priority_class=urgent, limit_seconds=3_600
    )
    for second_of in (610, 640, 670):
        play.tick(second_of)

    assert Eviction.objects.count() == 1
    assert Eviction.objects.get().beneficiary == first
    promised = Reservation.objects.filter(promised=True)
    assert [row.job for row in promised] == [first]
    assert sorted(rank for rank, _ in promised[0].promises) == list(range(8))
    assert Verdict.objects.get(job=second).code != "leaving"


def test_the_record_tells_both_sides_and_who_was_considered(
    play: Playground, vision: Tenant, urgent: PriorityClass
) -> None:
    evict_by(play, "kill")
    low, _ = contest(play, vision, urgent)
    play.tick(600)

    record = Eviction.objects.get()
    assert record.rule == "priority"
    assert record.standings["victim"]["pool"]["used"] == 8
    assert record.standings["victim"]["after"] == {"used": 0}
    assert record.considered == [
        {
            "job": low.pk,
            "tenant": vision.pk,
            "gpus": 8,
            "lost_gpu_us": 8 * 600 * 1_000_000,
            "passed": "chosen",
        }
    ]
    assert record.leave_by == NOW + timedelta(seconds=600)


def test_a_job_evicted_too_often_raises_the_alarm(
    play: Playground, vision: Tenant, urgent: PriorityClass
) -> None:
    evict_by(play, "kill")
    ClusterPolicy.objects.update(thrash_after=2)
    low = make_job(vision, play.pool, size=8, limit_seconds=36_000)
    play.tick(0)
    for k in (1, 2, 3):
        make_job(
            vision,
            play.pool,
            size=8,
            minutes=10 * k,
            priority_class=urgent,
            limit_seconds=60,
            workload={"kind": "simulated", "runtime": 60},
        )
        for later in (0, 30, 60, 90, 120):
            play.tick(600 * k + later)

    records = Eviction.objects.filter(job=low).order_by("id")
    assert [(row.within_hour, row.thrashes) for row in records] == [(1, False), (2, True)]
    assert play.state(low) == "RUNNING"
