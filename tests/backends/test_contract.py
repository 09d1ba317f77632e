"""The port's promises, asked of every kind of cluster there is."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from apps.backends.kinds import KINDS, backend_of
from apps.backends.models import Grade
from apps.backends.port import Backend, LaunchRequest
from apps.common.errors import Invalid
from tests.backends.harness import GPUS, HARNESSES, NODES, POOL, REAL, T0

ROOT = Path(__file__).resolve().parents[2]


def promises(path: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.M))


def test_every_kind_has_a_harness():
    assert set(HARNESSES) | set(REAL) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(REAL))
def test_a_kind_with_servers_of_its_own_is_asked_every_promise(kind):
    own = {
        "test_every_kind_has_a_harness",
        test_a_kind_with_servers_of_its_own_is_asked_every_promise.__name__,
    }

    asked = promises(Path(__file__)) - own

    assert len(asked) > 10
    assert asked <= promises(ROOT / REAL[kind])


@pytest.fixture(params=sorted(HARNESSES))
def backend(request) -> Backend:
    return backend_of(HARNESSES[request.param]())


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def gang(nodes: tuple[str, ...] = ("n1", "n2"), **changes) -> LaunchRequest:
    request = LaunchRequest(
        uid=str(uuid4()),
        name="train",
        tenant="vision",
        pool=POOL,
        gpus_per_member=GPUS,
        nodes=nodes,
        limit_seconds=3_600,
        workload={},
    )
    return replace(request, **changes)


def test_it_says_what_it_can_do_and_what_not(backend):
    able = backend.capabilities()

    assert able.grade in Grade.values
    assert {"observe", "launch", "stop"} <= able.can
    assert not able.can & set(able.cannot)
    assert all(words.endswith(".") for words in able.cannot.values())


def test_defaults_are_filled_in_once(backend):
    checked = backend.check_workload({})

    assert checked
    assert backend.check_workload(checked) == checked


def test_an_unknown_key_of_a_workload_is_named(backend):
    with pytest.raises(Invalid) as refusal:
        backend.check_workload({"runtme": 5})

    assert refusal.value.field == "workload.runtme"


def test_a_look_shows_the_nodes(backend):
    seen = backend.observe("", now=T0)

    assert seen.as_of == T0
    assert sorted(node.name for node in seen.nodes) == list(NODES)
    assert {(node.pool, node.gpus, node.state) for node in seen.nodes} == {(POOL, GPUS, "up")}
    assert list(seen.attempts) == []


def test_a_gang_starts_whole_and_is_seen(backend):
    request = gang()

    result = backend.launch(request, now=after(5))
    (seen,) = backend.observe("", now=after(6)).attempts

    assert result.outcome in ("started", "accepted")
    assert seen.uid == request.uid
    assert seen.nodes == request.nodes
    assert seen.state == "running"
    assert seen.started_at == after(5)


def test_launching_again_is_success_and_starts_nothing_new(backend):
    request = gang()
    first = backend.launch(request, now=after(5))

    again = backend.launch(request, now=after(9))

    assert again.outcome == "exists"
    assert again.started_at == first.started_at == after(5)
    assert again.cluster_ref == first.cluster_ref
    assert len(backend.observe("", now=after(9)).attempts) == 1


@pytest.mark.parametrize("nodes", [("n1", "n9"), ("n1", "n1")], ids=["unknown node", "no room"])
def test_a_gang_that_cannot_start_whole_is_refused_and_holds_nothing(backend, nodes):
    result = backend.launch(gang(nodes), now=T0)

    assert result.outcome == "refused"
    assert result.detail
    assert list(backend.observe("", now=T0).attempts) == []
    assert backend.launch(gang(("n1",)), now=T0).outcome != "refused"


def test_what_runs_takes_its_room(backend):
    backend.launch(gang(("n1", "n2")), now=T0)

    assert backend.launch(gang(("n2", "n3")), now=T0).outcome == "refused"
    assert backend.launch(gang(("n3",)), now=T0).outcome != "refused"


def test_stopping_ends_it_and_gives_its_room_back(backend):
    request = gang()
    backend.launch(request, now=T0)

    backend.stop(request.uid, now=after(60))
    (seen,) = backend.observe("", now=after(61)).attempts

    assert (seen.state, seen.outcome, seen.ended_at) == ("ended", "stopped", after(60))
    assert backend.launch(gang(), now=after(61)).outcome != "refused"


def test_stopping_what_is_gone_or_never_was_changes_nothing(backend):
    request = gang()
    backend.launch(request, now=T0)
    backend.stop(request.uid, now=after(60))
    before = backend.observe("", now=after(70))

    backend.stop(request.uid, now=after(70))
    backend.stop(str(uuid4()), now=after(70))

    assert replace(backend.observe("", now=after(70)), cost_ms=0) == replace(before, cost_ms=0)


def test_an_ended_attempt_launched_again_does_not_come_back(backend):
    request = gang()
    backend.launch(request, now=T0)
    backend.stop(request.uid, now=after(60))

    assert backend.launch(request, now=after(61)).outcome == "exists"
    assert [a.state for a in backend.observe("", now=after(62)).attempts] == ["ended"]


def test_the_same_cursor_gives_the_same_answer_and_the_next_one_only_what_is_new(backend):
    request, stays = gang(("n1",)), gang(("n2",))
    backend.launch(request, now=T0)
    backend.launch(stays, now=T0)
    first = backend.observe("", now=after(10))
    backend.stop(request.uid, now=after(20))

    once = backend.observe(first.cursor, now=after(30))
    twice = backend.observe(first.cursor, now=after(30))
    then = backend.observe(once.cursor, now=after(30))

    assert {a.uid: a.state for a in once.attempts} == {request.uid: "ended", stays.uid: "running"}
    assert replace(twice, cost_ms=0) == replace(once, cost_ms=0)
    assert [a.uid for a in then.attempts] == [stays.uid]


def test_each_running_attempt_has_one_sample(backend):
    requests = [gang(("n1",)), gang(("n2",))]
    for request in requests:
        backend.launch(request, now=T0)

    samples = backend.utilisation(now=after(60))

    assert sorted(sample.uid for sample in samples) == sorted(r.uid for r in requests)
    assert all(s.utilisation is None or 0 <= s.utilisation <= 1 for s in samples)
