"""The port's promises, asked of a real Slurm by each way: the same as tests/backends, on a clock that runs."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from apps.backends.models import Grade
from apps.common.errors import Invalid
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import GPUS, POOL, SLEEPS, Stage, now


@pytest.fixture(params=["commands", "rest"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """The same by each way into Slurm; that by REST has no commands beside."""
    if request.param == "commands":
        return Stage(request.getfixturevalue("lab"))
    lab: Lab = request.getfixturevalue("rest_lab")
    return Stage(lab, changes={**lab.rest.options()})


def test_it_says_what_it_can_do_and_what_not(stage: Stage) -> None:
    able = stage.backend.capabilities()

    assert able.grade in Grade.values
    assert {"observe", "launch", "stop"} <= able.can
    assert not able.can & set(able.cannot)
    assert all(words.endswith(".") for words in able.cannot.values())


def test_defaults_are_filled_in_once(stage: Stage) -> None:
    checked = stage.backend.check_workload(SLEEPS)

    assert set(checked) > set(SLEEPS)
    assert stage.backend.check_workload(checked) == checked


def test_an_unknown_key_of_a_workload_is_named(stage: Stage) -> None:
    with pytest.raises(Invalid) as refusal:
        stage.backend.check_workload({"runtme": 5})

    assert refusal.value.field == "workload.runtme"


def test_a_look_shows_the_nodes(stage: Stage) -> None:
    at = now()
    seen = stage.backend.observe("", now=at)

    assert seen.as_of == at
    assert [node.name for node in seen.nodes] == stage.lab.nodes
    assert {(node.pool, node.gpus, node.state) for node in seen.nodes} == {(POOL, GPUS, "up")}
    assert list(seen.attempts) == []


def test_a_gang_starts_whole_and_is_seen(stage: Stage) -> None:
    request, at = stage.gang("gpu1", "gpu2"), now()

    result = stage.backend.launch(request, now=at)
    seen = stage.until(request.uid, "running")

    assert result.outcome == "accepted"
    assert seen.nodes == request.nodes
    assert seen.started_at is not None
    assert at <= seen.started_at <= now()
    assert seen.cluster_ref == result.cluster_ref


def test_launching_again_is_success_and_starts_nothing_new(stage: Stage) -> None:
    request = stage.gang("gpu1", "gpu2")
    first = stage.backend.launch(request, now=now())
    running = stage.until(request.uid, "running")

    again = stage.backend.launch(request, now=now())

    assert again.outcome == "exists"
    assert again.started_at == running.started_at
    assert again.cluster_ref == first.cluster_ref
    assert len(stage.lab.jobs()) == 1


@pytest.mark.parametrize("nodes", [("gpu1", "gpu99"), ("gpu1", "gpu1")], ids=["unknown", "no room"])
def test_a_gang_that_cannot_start_whole_is_refused_and_holds_nothing(
    stage: Stage, nodes: tuple[str, ...]
) -> None:
    result = stage.backend.launch(stage.gang(*nodes), now=now())

    assert result.outcome == "refused"
    assert result.detail
    assert stage.lab.jobs() == []
    assert stage.backend.launch(stage.gang("gpu1"), now=now()).outcome != "refused"


def test_what_runs_takes_its_room(stage: Stage) -> None:
    stage.start(stage.gang("gpu1", "gpu2"))
    late, other = stage.gang("gpu2", "gpu3"), stage.gang("gpu4")
    stage.backend.launch(late, now=now())

    stage.start(other)

    assert stage.attempt(late.uid).state == "waiting"


def test_stopping_ends_it_and_gives_its_room_back(stage: Stage) -> None:
    request = stage.gang("gpu1", "gpu2")
    stage.start(request)

    at = now()
    stage.backend.stop(request.uid, now=at)
    seen = stage.until(request.uid, "ended")

    assert seen.outcome == "stopped"
    assert seen.ended_at is not None
    assert at <= seen.ended_at <= now()
    stage.start(stage.gang("gpu1", "gpu2"))


def test_stopping_what_is_gone_or_never_was_changes_nothing(stage: Stage) -> None:
    request = stage.gang("gpu1")
    stage.start(request)
    stage.backend.stop(request.uid, now=now())
    before = stage.until(request.uid, "ended")

    stage.backend.stop(request.uid, now=now())
    stage.backend.stop(str(uuid4()), now=now())

    assert stage.attempt(request.uid) == before


def test_an_ended_attempt_launched_again_does_not_come_back(stage: Stage) -> None:
    request = stage.gang("gpu1")
    stage.start(request)
    stage.backend.stop(request.uid, now=now())
    stage.until(request.uid, "ended")

    assert stage.backend.launch(request, now=now()).outcome == "exists"
    assert stage.lab.jobs() == []


def test_the_same_cursor_gives_the_same_answer_and_the_next_one_only_what_is_new(
    stage: Stage,
) -> None:
    request, stays = stage.gang("gpu1"), stage.gang("gpu2")
    stage.start(request)
    stage.start(stays)
    first = stage.look()
    stage.backend.stop(request.uid, now=now())
    stage.until(request.uid, "ended")

    at = now()
    once, twice = (stage.backend.observe(first.cursor, now=at) for _ in range(2))
    then = stage.backend.observe(once.cursor, now=at)

    assert {a.uid: a.state for a in once.attempts} == {request.uid: "ended", stays.uid: "running"}
    assert replace(twice, cost_ms=0) == replace(once, cost_ms=0)
    assert [a.uid for a in then.attempts] == [stays.uid]


def test_each_running_attempt_has_one_sample(stage: Stage) -> None:
    requests = [stage.gang("gpu1"), stage.gang("gpu2")]
    for request in requests:
        stage.start(request)

    samples = stage.backend.utilisation(now=now())

    assert sorted(sample.uid for sample in samples) == sorted(r.uid for r in requests)
    assert {sample.utilisation for sample in samples} == {None}
