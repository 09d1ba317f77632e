"""The simulated world: exact ends, lost gangs, and the same truth whoever looks, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from apps.backends.adapters.simulator import SimulatorBackend
from apps.backends.models import Cluster
from apps.backends.port import LaunchRequest
from apps.backends.worlds import NodeChange, SimNode, world_of
from apps.common.errors import Invalid
from tests.backends.harness import GPUS, POOL, T0, simulated


@pytest.fixture
def cluster() -> Cluster:
    return simulated()


@pytest.fixture
def backend(cluster) -> SimulatorBackend:
    return SimulatorBackend(cluster)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def gang(*nodes: str, limit: int | None = None, kept: int = 0, gpus: int = 1, **workload):
    return LaunchRequest(
        uid=str(uuid4()),
        name="train",
        tenant="vision",
        pool=POOL,
        gpus_per_member=gpus,
        nodes=nodes or ("n1",),
        limit_seconds=limit,
        workload=workload,
        kept_seconds=kept,
    )


def end_of(backend, request, at: float):
    """Return how and when an attempt ended, looked at only once, long after."""
    found = {seen.uid: seen for seen in backend.observe("", now=after(at)).attempts}
    seen = found[request.uid]
    return seen.outcome, seen.ended_at and (seen.ended_at - T0).total_seconds()


# Ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"runtime": 100}, ("succeeded", 100)),
        ({"runtime": 0.25}, ("succeeded", 0.25)),
        ({"runtime": 0}, ("succeeded", 0)),
        ({"runtime": 100, "outcome": "failed"}, ("failed", 100)),
        ({"runtime": 100, "limit": 90}, ("timed_out", 90)),
        ({"runtime": 90, "limit": 90}, ("succeeded", 90)),
        ({"limit": 90}, ("succeeded", 90)),
        ({"limit": 90, "outcome": "failed"}, ("failed", 90)),
        ({"runtime": 100, "kept": 70}, ("succeeded", 30)),
        ({"runtime": 100, "kept": 70, "limit": 30}, ("succeeded", 30)),
        ({"runtime": 100, "kept": 69, "limit": 30}, ("timed_out", 30)),
        ({"runtime": 100, "kept": 150}, ("succeeded", 0)),
        ({"limit": 90, "kept": 60}, ("succeeded", 30)),
        ({}, ("", None)),
    ],
)
def test_an_attempt_ends_at_its_own_exact_instant(backend, asked, expected):
    request = gang(**asked)
    backend.launch(request, now=T0)

    assert end_of(backend, request, 1_000_000) == expected


def test_a_look_at_the_very_instant_sees_the_end_and_one_before_does_not(backend):
    request = gang(runtime=100)
    backend.launch(request, now=T0)

    before = backend.observe("", now=after(100) - timedelta(microseconds=1))
    then = backend.observe("", now=after(100))

    assert [a.state for a in before.attempts] == ["running"]
    assert [a.state for a in then.attempts] == ["ended"]


def test_ends_come_in_the_order_of_their_instants(backend):
    requests = [gang(runtime=seconds) for seconds in (300, 100, 200)]
    for request in requests:
        backend.launch(request, now=T0)

    ended = [seen.uid for seen in backend.observe("", now=after(500)).attempts]

    assert ended == [requests[1].uid, requests[2].uid, requests[0].uid]


def test_room_freed_by_an_unseen_end_can_be_taken_at_once(backend):
    backend.launch(gang("n1", gpus=GPUS, runtime=100), now=T0)

    assert backend.launch(gang("n1", gpus=GPUS), now=after(99)).outcome == "refused"
    assert backend.launch(gang("n1", gpus=GPUS), now=after(100)).outcome == "started"


def test_a_stop_after_its_end_does_not_change_how_it_ended(backend):
    request = gang(runtime=100)
    backend.launch(request, now=T0)

    backend.stop(request.uid, now=after(120))

    assert end_of(backend, request, 200) == ("succeeded", 100)


# Nodes -----------------------------------------------------------------------------------------------


def test_a_node_that_goes_down_takes_the_whole_gang_at_that_instant(backend, cluster):
    lost, other = gang("n1", "n2", runtime=1_000), gang("n3", runtime=1_000)
    backend.launch(lost, now=T0)
    backend.launch(other, now=T0)

    world_of(cluster).plan([NodeChange(after(70.5), "n2", "down", "fell off the bus")])
    seen = {a.uid: a for a in backend.observe("", now=after(500)).attempts}

    assert (seen[lost.uid].outcome, seen[lost.uid].ended_at) == ("lost", after(70.5))
    assert "n2" in seen[lost.uid].detail
    assert seen[other.uid].state == "running"


@pytest.mark.parametrize(
    ("at", "outcome"), [(99.9, "lost"), (100, "succeeded"), (101, "succeeded")]
)
def test_what_ended_up_to_the_failure_is_not_lost(backend, cluster, at, outcome):
    request = gang("n1", runtime=100)
    backend.launch(request, now=T0)
    world_of(cluster).plan([NodeChange(after(at), "n1", "down")])

    assert end_of(backend, request, 500) == (outcome, min(at, 100))


def test_a_drained_node_lets_its_work_go_on_and_takes_no_more(backend, cluster):
    request = gang("n1", runtime=100)
    backend.launch(request, now=T0)

    world_of(cluster).set_node_state("n1", "drained", at=after(10), reason="maintenance")
    refused = backend.launch(gang("n1"), now=after(20))

    assert end_of(backend, request, 200) == ("succeeded", 100)
    assert refused.outcome == "refused"
    assert "drained" in refused.detail


def test_nodes_change_at_their_instants_and_say_since_when_and_why(backend, cluster):
    world_of(cluster).plan(
        [
            NodeChange(after(30), "n1", "up", "repaired"),
            NodeChange(after(10), "n1", "down", "Xid 79"),
        ]
    )

    def n1(at):
        return next(n for n in backend.observe("", now=after(at)).nodes if n.name == "n1")

    assert (n1(5).state, n1(5).since) == ("up", T0)
    assert (n1(20).state, n1(20).since, n1(20).reason) == ("down", after(10), "Xid 79")
    assert (n1(40).state, n1(40).since, n1(40).reason) == ("up", after(30), "repaired")
    assert backend.launch(gang("n1"), now=after(40)).outcome == "started"


def test_a_planned_change_with_a_key_comes_once(backend, cluster):
    change = NodeChange(after(10), "n1", "down", key="first")
    world_of(cluster).plan([change])
    world_of(cluster).plan([change])
    backend.observe("", now=after(20))
    world_of(cluster).set_node_state("n1", "up", at=after(30))

    world_of(cluster).plan([change])

    assert {n.name: n.state for n in backend.observe("", now=after(40)).nodes}["n1"] == "up"


def test_a_node_of_two_pools_is_two_rows_and_goes_down_as_one(backend, cluster):
    world_of(cluster).add_nodes([SimNode("n1", "mig", 7)], at=T0)
    both = [gang("n1"), replace(gang("n1"), pool="mig", gpus_per_member=7)]
    assert [backend.launch(r, now=T0).outcome for r in both] == ["started", "started"]

    world_of(cluster).set_node_state("n1", "down", at=after(5))

    assert [end_of(backend, r, 9) for r in both] == [("lost", 5), ("lost", 5)]


def test_adding_a_node_again_changes_nothing(backend, cluster):
    world_of(cluster).set_node_state("n1", "drained", at=after(5))

    world_of(cluster).add_nodes([SimNode("n1", POOL, 99)], at=after(10))

    n1 = next(n for n in backend.observe("", now=after(20)).nodes if n.name == "n1")
    assert (n1.gpus, n1.state, n1.since) == (GPUS, "drained", after(5))


def test_racks_and_nvlink_domains_are_told(backend):
    seen = {n.name: (n.rack, n.nvlink) for n in backend.observe("", now=T0).nodes}

    assert seen == {"n1": ("r1", "d1"), "n2": ("r1", ""), "n3": ("r2", "")}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda world: world.set_node_state("n9", "up", at=T0),
        lambda world: world.set_node_state("n1", "broken", at=T0),
        lambda world: world.plan([NodeChange(T0, "n9", "down")]),
        lambda world: world.add_nodes([SimNode("n9", POOL, 0)], at=T0),
        lambda world: world.adopt(gang("n9"), started_at=T0),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(backend, cluster, wrong):
    before = backend.observe("", now=T0)

    with pytest.raises(Invalid):
        wrong(world_of(cluster))

    assert replace(backend.observe("", now=T0), cost_ms=0) == replace(before, cost_ms=0)


# Scenarios' hands -----------------------------------------------------------------------------------------


def test_an_adopted_attempt_started_in_the_past_and_ends_when_it_must(backend, cluster):
    request = gang("n1", limit=647)
    world_of(cluster).adopt(request, started_at=after(-600), last_checkpoint=after(-50))
    world_of(cluster).adopt(request, started_at=after(-1))

    (seen,) = backend.observe("", now=T0).attempts

    assert (seen.started_at, seen.checkpoint_at) == (after(-600), after(-50))
    assert end_of(backend, request, 100) == ("succeeded", 47)


def test_an_attempt_adopted_onto_a_drained_node_holds_its_room(backend, cluster):
    world_of(cluster).set_node_state("n1", "drained", at=T0)
    world_of(cluster).adopt(gang("n1", gpus=GPUS), started_at=after(-60))

    world_of(cluster).set_node_state("n1", "up", at=after(5))

    assert "0 GPUs" in backend.launch(gang("n1"), now=after(6)).detail


def test_finishing_ends_at_the_instant_given(backend, cluster):
    request = gang(runtime=100)
    backend.launch(request, now=T0)

    assert world_of(cluster).finish(request.uid, "failed", at=after(40))
    assert not world_of(cluster).finish(request.uid, "succeeded", at=after(50))
    assert end_of(backend, request, 200) == ("failed", 40)


def test_checkpoints_come_by_the_clock_and_by_hand(backend, cluster):
    request = gang(runtime=100, checkpoint_every=30)
    backend.launch(request, now=T0)

    def saved(at):
        seen = backend.observe("", now=after(at)).attempts[0].checkpoint_at
        return seen and (seen - T0).total_seconds()

    assert saved(29) is None
    assert saved(31) == 30
    assert world_of(cluster).checkpoint(request.uid, at=after(45))
    assert saved(46) == 45
    assert world_of(cluster).checkpoint(request.uid, at=after(40))
    assert saved(47) == 45
    assert saved(65) == 60
    assert saved(1_000) == 90
    assert not world_of(cluster).checkpoint(request.uid, at=after(1_001))


# Utilisation ----------------------------------------------------------------------------------------------


def test_samples_follow_the_profile(backend):
    request = gang(utilisation=0.8, idle_after=100, idle_for=50)
    backend.launch(request, now=T0)

    def sample(at):
        (found,) = backend.utilisation(now=after(at))
        return found.utilisation, found.idle_since

    assert sample(99) == (0.8, None)
    assert sample(100) == (0.0, after(100))
    assert sample(149) == (0.0, after(100))
    assert sample(150) == (0.8, None)


def test_an_idle_stretch_without_an_end_lasts(backend):
    backend.launch(gang(idle_after=100), now=T0)

    (sample,) = backend.utilisation(now=after(1_000_000))

    assert (sample.utilisation, sample.idle_since) == (0.0, after(100))


def test_a_missing_sample_is_unknown_not_idle(backend):
    backend.launch(gang(unknown=True, idle_after=0), now=T0)

    (sample,) = backend.utilisation(now=after(60))

    assert sample.utilisation is None
    assert sample.idle_since is None


# Workloads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "script"),
        ("runtime", -1),
        ("runtime", float("nan")),
        ("runtime", float("inf")),
        ("runtime", "60"),
        ("runtime", True),
        ("runtime", 10**400),
        ("outcome", "cancelled"),
        ("outcome", ["failed"]),
        ("checkpoint_every", 0),
        ("checkpoint_takes", "always"),
        ("checkpoint_takes", None),
        ("utilisation", 1.5),
        ("utilisation", None),
        ("idle_after", -0.1),
        ("idle_for", 5),
        ("unknown", 1),
        ("speed", 2),
    ],
)
def test_a_workload_that_cannot_be_names_its_key(backend, key, value):
    with pytest.raises(Invalid) as refusal:
        backend.check_workload({key: value})

    assert refusal.value.field == f"workload.{key}"


def test_a_workload_that_is_no_object_is_refused(backend):
    with pytest.raises(Invalid):
        backend.check_workload(["runtime"])


def test_a_launch_checks_its_workload_too(backend):
    with pytest.raises(Invalid):
        backend.launch(gang(runtime=-5), now=T0)
