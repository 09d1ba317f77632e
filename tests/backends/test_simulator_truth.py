"""A simulated world under many hands: looks, processes, threads, forks and kill -9."""

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
from apps.backends.worlds import NodeChange, forget_world, world_of
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


def play(cluster: Cluster, ops, *, each=lambda: None, looks=True, since=0):
    """Do everything in order, from the op ``since`` on; return all that is to be seen at the end."""
    backend, launched = SimulatorBackend(cluster), 0
    for number, op in enumerate(ops):
        launched += op[0] == "launch"
        if number < since:
            continue
        each()
        world, now = world_of(cluster), after(op[1])
        if op[0] == "launch":
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
import itertools, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "apps.config.settings"
os.environ["SIMULATOR_DIR"] = sys.argv[1]
import django
django.setup()
from tests.backends.test_simulator_truth import long_story
from tests.backends.harness import simulated
count = itertools.count()
print("ready", flush=True)
long_story(simulated(), each=lambda: print(next(count), flush=True))
"""


def long_story(cluster: Cluster, **how):
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
    return play(cluster, ops, **how)


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
    told = process.stdout.read().rpartition("\n")[0].split()
    process.stdout.close()

    # As a worker does: the call that was cut off is made again, those before it are not.
    survivor = long_story(simulated(), since=int(told[-1]) if told else 0)

    undisturbed = simulated(2, in_memory=True)
    assert survivor == long_story(undisturbed)
    forget_world(undisturbed)
