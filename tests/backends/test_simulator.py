"""The simulated world: exact ends, lost gangs, and the same truth whoever looks, and when."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.backends.adapters.simulator import SimulatorBackend, worlds
from apps.backends.adapters.simulator.world import World
from apps.backends.adapters.simulator.worlds import path_of
from apps.backends.models import Cluster
from apps.backends.port import BackendError, LaunchRequest
from apps.backends.worlds import NodeChange, SimNode, forget_world, world_of
from apps.common.errors import Invalid
from tests.backends.harness import GPUS, NODES, POOL, T0, simulated

ROOT = Path(__file__).resolve().parents[2]


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


# The same truth, whoever looks ----------------------------------------------------------------------------

SECONDS = st.integers(0, 200)
OPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("launch"),
            SECONDS,
            st.lists(st.sampled_from(NODES), min_size=1, max_size=3),
            st.integers(1, GPUS),
            st.one_of(st.none(), st.integers(0, 120)),
            st.one_of(st.none(), st.integers(1, 120)),
        ),
        st.tuples(st.just("stop"), SECONDS, st.integers(0, 5)),
        st.tuples(
            st.just("node"),
            SECONDS,
            st.sampled_from(NODES),
            st.sampled_from(("up", "down", "drained")),
        ),
        st.tuples(
            st.just("plan"),
            SECONDS,
            st.sampled_from(NODES),
            st.sampled_from(("up", "down", "drained")),
            st.integers(0, 100),
        ),
        st.tuples(st.just("look"), SECONDS),
    ),
    max_size=25,
).map(lambda ops: sorted(ops, key=lambda op: op[1]))


def play(cluster: Cluster, ops, *, each=lambda: None, looks=True):
    """Do everything in order; return all that is to be seen at the end."""
    backend, launched = SimulatorBackend(cluster), 0
    for op in ops:
        each()
        world, now = world_of(cluster), after(op[1])
        if op[0] == "launch":
            launched += 1
            request = replace(
                gang(*op[2], gpus=op[3], limit=op[5], runtime=op[4]), uid=str(UUID(int=launched))
            )
            backend.launch(request, now=now)
        elif op[0] == "stop":
            backend.stop(str(UUID(int=op[2])), now=now)
        elif op[0] == "node":
            world.set_node_state(op[2], op[3], at=now)
        elif op[0] == "plan":
            world.plan([NodeChange(now + timedelta(seconds=op[4]), op[2], op[3])])
        elif looks:
            backend.observe("", now=now)
    each()
    return replace(backend.observe("", now=after(1_000)), cost_ms=0)


@given(ops=OPS, more=st.lists(SECONDS, max_size=10))
def test_looking_more_often_changes_nothing(ops, more):
    clusters = [simulated(n, in_memory=True) for n in (101, 102)]
    looks = [op for op in ops if op[0] == "look"] + [("look", at) for at in more]
    often = sorted([op for op in ops if op[0] != "look"] + looks, key=lambda op: op[1])

    try:
        assert play(clusters[0], ops, looks=False) == play(clusters[1], often)
    finally:
        for cluster in clusters:
            forget_world(cluster)


def drop_handles() -> None:
    """Close what this process holds open, as its end would."""
    for world in worlds._worlds.values():
        if world.inode:
            world.close()
    for key in [key for key, world in worlds._worlds.items() if world.inode]:
        del worlds._worlds[key]


@given(ops=OPS)
def test_a_world_read_anew_before_every_call_is_the_same_world(ops):
    """Another process does each call: nothing that matters is kept in one."""
    here, elsewhere = simulated(103, in_memory=True), simulated(104)

    try:
        expected = play(here, ops)
        assert play(elsewhere, ops, each=drop_handles) == expected
    finally:
        forget_world(here)
        forget_world(elsewhere)


@given(ops=OPS)
def test_no_node_is_ever_overfull_and_every_end_is_within_its_bounds(ops):
    cluster = simulated(105, in_memory=True)
    try:
        seen = play(cluster, ops)
        sizes = {str(UUID(int=n)): op for n, op in enumerate(_launches(ops), start=1)}

        spans = []
        for attempt in seen.attempts:
            _, at, _, gpus, runtime, limit = sizes[attempt.uid]
            assert attempt.started_at == after(at)
            bound = min((x for x in (runtime, limit) if x is not None), default=None)
            if bound is not None:
                assert attempt.ended_at is not None
                assert attempt.ended_at <= after(at + bound)
                if attempt.outcome in ("succeeded", "timed_out"):
                    assert attempt.ended_at == after(at + bound)
            if attempt.outcome == "timed_out":
                assert runtime is not None
                assert runtime > limit
            spans += [(n, gpus, attempt.started_at, attempt.ended_at) for n in attempt.nodes]
        for _, _, instant, _ in spans:
            for node in NODES:
                used = sum(
                    gpus
                    for name, gpus, start, end in spans
                    if name == node and start <= instant and (end is None or end > instant)
                )
                assert used <= GPUS
    finally:
        forget_world(cluster)


def _launches(ops):
    return [op for op in ops if op[0] == "launch"]


# Processes, threads, crashes --------------------------------------------------------------------------------


def test_two_processes_share_one_truth(cluster):
    path = path_of(cluster)
    one, other = World(path), World(path)
    request = replace(gang("n1", runtime=100), workload={"runtime": 100})

    assert one.launch(request, T0).outcome == "started"
    assert other.launch(request, after(5)).outcome == "exists"
    other.stop(request.uid, after(6))
    (seen,) = one.look("", after(7)).attempts

    assert (seen.outcome, seen.ended_at) == ("stopped", after(6))
    one.close()
    other.close()


def test_a_forked_process_opens_the_world_for_itself(cluster, backend):
    request = gang("n1", runtime=100)
    backend.launch(request, now=T0)
    context = multiprocessing.get_context("fork")
    child = context.Process(
        target=lambda: SimulatorBackend(cluster).stop(request.uid, now=after(9))
    )

    child.start()
    child.join(30)

    assert child.exitcode == 0
    assert end_of(backend, request, 50) == ("stopped", 9)


def test_threads_that_launch_at_once_never_overfill_a_node(backend):
    outcomes: list[str] = []

    def launch() -> None:
        for _ in range(5):
            outcomes.append(backend.launch(gang("n1"), now=T0).outcome)

    threads = [threading.Thread(target=launch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes.count("started") == GPUS
    assert outcomes.count("refused") == 40 - GPUS


def test_a_forgotten_world_starts_empty_and_its_file_is_gone(cluster, backend):
    backend.launch(gang("n1"), now=T0)
    path = path_of(cluster)
    assert path.exists()
    assert path.parent.stat().st_mode & 0o777 == 0o700

    forget_world(cluster)

    assert not path.exists()
    assert list(backend.observe("", now=T0).nodes) == []


def test_a_cursor_from_another_world_starts_from_the_beginning(backend):
    request = gang(runtime=10)
    backend.launch(request, now=T0)

    for cursor in ("99", "-1", "nonsense", "٣"):
        assert [a.uid for a in backend.observe(cursor, now=after(20)).attempts] == [request.uid]


def test_a_world_that_cannot_be_opened_is_the_ports_error(settings, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    settings.SIMULATOR_DIR = blocker

    with pytest.raises(BackendError) as refusal:
        simulated(7)

    assert refusal.value.retry


def test_a_cluster_that_is_not_stored_has_no_world():
    with pytest.raises(BackendError):
        world_of(Cluster(name="new", kind="simulator"))


SCRIPT = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "apps.config.settings"
os.environ["SIMULATOR_DIR"] = sys.argv[1]
import django
django.setup()
from tests.backends.test_simulator import long_story
from tests.backends.harness import simulated
print("ready", flush=True)
long_story(simulated())
print("done", flush=True)
"""


def long_story(cluster: Cluster):
    """Do a few hundred things to a world; the same ones each time."""
    ops = []
    for number in range(300):
        node = NODES[number % 3]
        ops.append(("launch", number, [node], 1 + number % 2, 5 + number % 17, None))
        if number % 7 == 0:
            ops.append(("stop", number, number))
        if number % 31 == 0:
            ops.append(("node", number, node, "down"))
        if number % 31 == 5:
            ops.extend(("node", number, name, "up") for name in NODES)
    return play(cluster, ops)


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.03, 0.06])
def test_kill_9_leaves_a_world_that_goes_on_as_if_nothing_had_been(tmp_path, settings, pause):
    settings.SIMULATOR_DIR = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(settings.SIMULATOR_DIR)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    threading.Event().wait(pause)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    survivor = long_story(simulated())

    undisturbed = simulated(2, in_memory=True)
    assert survivor == long_story(undisturbed)
    forget_world(undisturbed)
