"""Observe, decide, act: from a submission to bars in the ledger, and what may come between."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.backends.port import BackendError
from apps.backends.services import change_cluster, request_tick
from apps.jobs.models import Attempt, Job, Move, Reservation
from apps.jobs.services import cancel_job, hold_job, release_job
from apps.ledger.models import Interval
from apps.queues.models import ClusterPolicy
from apps.scheduling import act as act_module
from apps.scheduling import services
from apps.scheduling.models import Standing, Tick, Verdict
from apps.tenants.models import Tenant
from tests.factories import NOW, make_job
from tests.scheduling.playground import Playground


def holds(job: Job) -> int:
    return Interval.objects.filter(job=job, kind="hold", end_us__isnull=True).count()


def test_a_job_runs_from_the_tick_that_saw_it_and_ends_at_its_exact_instant(
    play: Playground, vision: Tenant
) -> None:
    job = make_job(vision, play.pool, size=2, workload={"kind": "simulated", "runtime": 33.5})

    tick = play.tick(0)
    running = play.state(job)
    play.tick(60)

    attempt = Attempt.objects.get(job=job)
    assert (tick.starts, running, play.state(job)) == (1, "RUNNING", "SUCCEEDED")
    assert attempt.started_at == NOW
    assert attempt.ended_at == NOW + timedelta(seconds=33.5)
    members = Interval.objects.filter(job=job, kind="member")
    assert [row.end_us - row.start_us for row in members] == [33_500_000] * 2  # type: ignore[operator]


def test_a_gang_that_cannot_start_holds_what_there_is_and_says_why(
    play: Playground, vision: Tenant
) -> None:
    make_job(vision, play.pool, size=3, limit_seconds=600)
    gang = make_job(vision, play.pool, size=8, minutes=1)

    play.tick(60)

    verdict = Verdict.objects.get(job=gang)
    assert play.state(gang) == "RESERVING"
    assert (verdict.code, verdict.needed, verdict.available) == ("capacity", 8, 5)
    assert holds(gang) == 5
    assert Reservation.objects.get(job=gang).ended_at is None
    assert Standing.objects.get(tenant=vision).pools["gpu"]["used"] == 3


def test_a_cancelled_gang_gives_back_what_it_held_at_that_instant(
    play: Playground, vision: Tenant
) -> None:
    make_job(vision, play.pool, size=3)
    gang = make_job(vision, play.pool, size=8)
    play.tick(0)

    cancel_job(Job.objects.get(pk=gang.pk), by=None, now=play.at(30))
    play.tick(60)

    ends = set(Interval.objects.filter(job=gang, kind="hold").values_list("end_us", flat=True))
    assert ends == {services.to_us(play.at(30))}
    assert Reservation.objects.get(job=gang).outcome == "cancelled"


def test_a_running_job_that_is_cancelled_ends_when_the_cluster_says_so(
    play: Playground, vision: Tenant
) -> None:
    job = make_job(vision, play.pool)
    play.tick(0)

    cancel_job(Job.objects.get(pk=job.pk), by=None, now=play.at(10))
    asked = play.state(job)
    play.tick(20)
    told = play.state(job)
    play.tick(40)

    assert (asked, told, play.state(job)) == ("RUNNING", "RUNNING", "CANCELLED")
    assert Attempt.objects.get(job=job).ended_at == play.at(20)


def test_a_job_on_hold_gives_its_reservation_back_and_may_come_again(
    play: Playground, vision: Tenant
) -> None:
    make_job(vision, play.pool, size=3, limit_seconds=600)
    gang = make_job(vision, play.pool, size=8)
    play.tick(0)

    hold_job(Job.objects.get(pk=gang.pk), by=None, now=play.at(10))
    play.tick(20)
    on_hold = (play.state(gang), holds(gang), Verdict.objects.get(job=gang).code)
    release_job(Job.objects.get(pk=gang.pk), by=None, now=play.at(30))
    play.tick(40)

    assert on_hold == ("PENDING", 0, "held")
    assert (play.state(gang), holds(gang)) == ("RESERVING", 5)


def test_a_gang_broken_by_a_node_goes_back_in_line_whole(play: Playground, vision: Tenant) -> None:
    gang = make_job(vision, play.pool, size=8)
    play.tick(0)

    play.world.set_node_state("n1", "down", at=play.at(15))
    play.tick(20)
    broken = Job.objects.get(pk=gang.pk)
    play.world.set_node_state("n1", "up", at=play.at(50))
    play.tick(60)

    assert broken.state in {"PENDING", "RESERVING"}
    assert (broken.attempt_number, broken.broken, broken.retries_used) == (2, True, 0)
    assert play.state(gang) == "RUNNING"
    assert Attempt.objects.get(job=gang, number=1).ended_at == play.at(15)


def test_a_refused_launch_puts_the_job_back_without_a_retry(
    play: Playground, vision: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(vision, play.pool, size=4)
    play.tick(0)
    # The world loses a node between the look and the call.
    second = make_job(vision, play.pool, size=4)
    original = act_module._to_do

    def drain_first(cluster: Cluster) -> Any:
        play.world.set_node_state("n1", "down", at=play.at(10))
        return original(cluster)

    monkeypatch.setattr(act_module, "_to_do", drain_first)
    play.tick(10)

    row = Job.objects.get(pk=second.pk)
    assert play.state(job) == "RUNNING"
    assert (row.state, row.attempt_number, row.retries_used) == ("PENDING", 2, 0)
    assert Attempt.objects.get(job=second).outcome == "refused"


@pytest.mark.parametrize("step", ["observe", "decide", "write", "act", "launched", "book"])
def test_a_tick_cut_off_at_any_step_is_mended_by_the_next_at_the_same_instant(
    play: Playground, vision: Tenant, step: str
) -> None:
    gang = make_job(vision, play.pool, size=8)

    play.tick_cut_off(step, 0)
    play.tick(0)

    assert play.state(gang) == "RUNNING"
    assert Attempt.objects.filter(job=gang).count() == 1
    assert Interval.objects.filter(job=gang, kind="member").count() == 8
    assert [m.what for m in Move.objects.filter(job=gang)] == ["submitted", "admitted", "started"]


def test_a_tick_again_at_the_same_instant_changes_nothing(play: Playground, vision: Tenant) -> None:
    make_job(vision, play.pool, size=3)
    make_job(vision, play.pool, size=8)
    play.tick(0)
    before = list(Interval.objects.order_by("id").values()), list(Move.objects.values())

    tick = play.tick(0)

    after = list(Interval.objects.order_by("id").values()), list(Move.objects.values())
    assert (tick.starts, tick.moves) == (0, 0)
    assert after == before


def test_a_virtual_clock_goes_to_its_end_and_stands(play: Playground, vision: Tenant) -> None:
    until = NOW + timedelta(minutes=5)
    Cluster.objects.update(clock_step=60, clock_until=until)
    job = make_job(vision, play.pool, workload={"kind": "simulated", "runtime": 90})

    assert services.tick(Cluster.objects.get())

    assert Cluster.objects.get().clock_now == until
    assert play.state(job) == "SUCCEEDED"
    assert Tick.objects.earliest("at").at == NOW


def test_a_virtual_clock_that_caught_up_goes_on_in_wall_time(play: Playground) -> None:
    start = timezone.now() - timedelta(minutes=3)
    Cluster.objects.update(clock_now=start, clock_step=60, clock_until=None)

    services.tick(Cluster.objects.get())

    assert Cluster.objects.get().clock_now is None


def test_trouble_of_a_backend_is_said_and_gone_when_it_is_gone(
    play: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_of(play.cluster)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise BackendError("The cluster did not answer.", retry=True)

    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "observe", broken)
        services.tick(Cluster.objects.get())
    said = Cluster.objects.get().trouble
    Cluster.objects.update(not_before=None, clock_until=NOW)
    services.tick(Cluster.objects.get())

    assert said == "The cluster did not answer."
    assert Cluster.objects.get().trouble == ""


def due_in(cluster: Cluster, began: datetime) -> float:
    """Return after how many seconds a cluster may be ticked again."""
    row = Cluster.objects.get(pk=cluster.pk)
    assert row.not_before is not None
    return round((row.not_before - began).total_seconds() / 0.9, 1)


def test_a_cluster_that_fails_is_asked_ever_less_and_as_ever_once_it_answers(
    play: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cluster.objects.update(clock_now=None, tick_seconds=100)
    observe = type(backend_of(play.cluster)).observe
    costs = iter((500, 15_000, None, None, None, 500))

    def answer(*args: Any, **kwargs: Any) -> Any:
        cost_ms = next(costs)
        if cost_ms is None:
            raise BackendError("The cluster did not answer.", retry=True)
        return replace(observe(*args, **kwargs), cost_ms=cost_ms)

    monkeypatch.setattr(type(backend_of(play.cluster)), "observe", answer)
    waits = []
    for _ in range(6):
        Cluster.objects.update(not_before=None)
        began = timezone.now()
        assert services.tick(Cluster.objects.get())
        waits.append(due_in(play.cluster, began))
        # Who asks for a tick does not get it before its time.
        request_tick(play.cluster)
        assert not services.tick(Cluster.objects.get())

    # Within the second that a tick itself may take.
    assert [round(wait, -1) for wait in waits] == [100, 150, 150, 300, 300, 100]


def test_a_change_of_how_it_is_reached_is_tried_at_once(play: Playground) -> None:
    Cluster.objects.update(failed_looks=9, not_before=timezone.now() + timedelta(minutes=5))

    change_cluster(play.cluster, by=None, now=NOW, reason="another host", tick_seconds=3)

    row = Cluster.objects.get()
    assert (row.failed_looks, row.not_before) == (0, None)


def test_ticks_are_thinned_out_by_age(play: Playground) -> None:
    for seconds in (0, 10, 20, 60, 70):
        play.tick(seconds)

    gone = services.thin_out(play.cluster, now=play.at(2 * 3_600))

    assert gone == 3
    assert list(Tick.objects.order_by("at").values_list("at", flat=True)) == [
        play.at(0),
        play.at(60),
    ]


def test_time_between_two_looks_too_far_apart_is_marked_assumed(play: Playground) -> None:
    play.tick(0)
    play.tick(3_600)
    play.tick(3_610)

    nodes = Interval.objects.filter(kind="node", node__name="n0").order_by("start_us")
    assert [(row.assumed, row.end_us is None) for row in nodes] == [(True, False), (False, True)]


def test_a_reservation_that_timed_out_says_so_and_backs_off(
    play: Playground, vision: Tenant
) -> None:
    ClusterPolicy.objects.update_or_create(
        cluster=play.cluster, defaults={"gang_timeout_seconds": 60}
    )
    make_job(vision, play.pool, size=3)
    gang = make_job(vision, play.pool, size=8)
    for seconds in (0, 30, 60):
        play.tick(seconds)

    job = Job.objects.get(pk=gang.pk)
    last = Move.objects.filter(job=gang).latest("id")
    assert (job.state, last.what, last.detail["why"]) == ("PENDING", "unreserved", "timed_out")
    assert job.no_reserve_before == play.at(120)
    assert Reservation.objects.get(job=gang).outcome == "timed_out"
