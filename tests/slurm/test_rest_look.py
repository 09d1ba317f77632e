"""What slurmrestd shows is what the commands show, field by field; and what is said when it does not."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from apps.backends.adapters.slurm.client import Client
from apps.backends.adapters.slurm.look import look
from apps.backends.adapters.slurm.options import read_options
from apps.backends.adapters.slurm.tokens import signed
from apps.backends.port import BackendError
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import SAVES, Stage, now


@pytest.fixture
def lab(rest_lab: Lab) -> Lab:
    return rest_lab


def over_rest(lab: Lab, **changes: object) -> Stage:
    """A stage that has slurmrestd alone."""
    return Stage(lab, changes={**lab.rest.options(**changes)})


def make_busy(lab: Lab, stage: Stage) -> None:
    """Fill the lab: ours that run, wait and ended, everybody's, arrays, and nodes that are not up."""
    stage.start(stage.gang("gpu1", "gpu2"))
    gone = stage.gang("gpu3", workload={"script": "#!/bin/bash\nexit 3\n"})
    stage.backend.launch(gone, now=now())
    saved = stage.gang("gpu3", workload=SAVES)
    stage.start(saved)
    stage.backend.ask_to_leave(saved.uid, until=now(), now=now())
    stage.until(gone.uid, "ended")
    stage.until(saved.uid, "ended")
    stage.backend.launch(stage.gang("gpu1"), now=now())
    killed = stage.gang("gpu3", workload={"script": "#!/bin/bash\nkill -9 $$\n"})
    stage.backend.launch(killed, now=now())
    stage.until(killed.uid, "ended")
    lab.submit("sleep 600", "--gres=gpu:2", "--time=UNLIMITED", "--nodelist=gpu3", user="nobody")
    lab.submit("sleep 600", "--gres=gpu:h100:4", "--array=1-20%1", "--nodelist=gpu3")
    lab.submit("sleep 600", "--gres=gpu:h100:8", "--nodes=2", "--partition=short,main")
    lab.submit("sleep 600", "--gres=gpu:8", "--hold", "--time=2-06:30:00")
    lab.submit("sleep 600", "--gpus=3", "--comment=rollcall:lab:x | y")
    lab.submit("exit 1", "--gres=gpu:1", "--nodelist=gpu3")
    lab.run("scontrol", "update", "NodeName=gpu5", "State=DRAIN", "Reason=fan, [again] @ noon")
    lab.kill_node("gpu4")
    lab.run("scontrol", "update", "NodeName=gpu4", "State=DOWN", "Reason=power")


def test_it_shows_what_the_commands_show(lab: Lab) -> None:
    stage = Stage(lab)
    make_busy(lab, stage)
    rest = over_rest(lab)
    rest.cluster.name = stage.cluster.name
    stage.wait(lambda: "CG" not in lab.run("squeue", "-h", "-o", "%t"), "nothing to complete")
    at, name = now(), stage.cluster.name

    # Reasons come and go by themselves: what the commands say before and after must be the same.
    for _ in range(20):
        shown = look(stage.backend._way, name, frozenset(), now=at)
        told = look(rest.backend._way, name, frozenset(), now=at)
        first, second = (replace(s.backend.observe("", now=at), cost_ms=0) for s in (stage, rest))
        still = look(stage.backend._way, name, frozenset(), now=at)
        if (shown.rows, shown.nodes) == (still.rows, still.nodes):
            break
    else:
        pytest.fail("The lab does not come to rest.")

    assert len(shown.own) == 5
    assert {job.state for job in shown.own.values()} >= {"RUNNING", "PENDING", "FAILED"}
    assert len(shown.rows) >= 10
    assert any(row.label.endswith("]") for row in shown.rows)
    for uid, job in shown.own.items():
        assert told.own[uid] == job
    assert told.details == shown.details
    # How ours lie on their nodes is known without asking.
    ours = {job.id for job in shown.own.values()}
    rows = {row.id: replace(row, kind="", laid=()) if row.id in ours else row for row in told.rows}
    assert rows == {row.id: row for row in shown.rows}
    assert told.nodes == shown.nodes
    assert (told.slurm, told.spare, told.clock) == (shown.slurm, shown.spare, shown.clock)
    assert second.nodes == first.nodes
    assert sorted(second.attempts, key=lambda a: a.uid) == sorted(
        first.attempts, key=lambda a: a.uid
    )
    assert second.foreign is not None
    assert first.foreign is not None
    assert sorted(second.foreign, key=lambda w: w.ref) == sorted(first.foreign, key=lambda w: w.ref)
    assert second.cursor == first.cursor


def test_a_key_on_the_worker_signs_what_slurm_takes(lab: Lab) -> None:
    stage = over_rest(lab, token="", jwt_key=str(lab.rest.key))

    assert [node.name for node in stage.look().nodes] == lab.nodes


def test_only_jobs_of_the_token_s_user_are_ours_whatever_their_comment_says(lab: Lab) -> None:
    stage = over_rest(lab)
    request = stage.gang("gpu1")
    Stage(lab).backend.launch(request, now=now())
    forged = f"rollcall:{stage.cluster.name}:{request.uid} at=1 shape=1x8 pool=h100"
    lab.submit("sleep 600", "--gres=gpu:2", "--nodelist=gpu2", f"--comment={forged}", user="nobody")
    stage.wait(lambda: stage.foreign() == {"gpu1": 8, "gpu2": 2}, "both to run")

    assert list(stage.look().attempts) == []


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            lambda key, user: signed(b"0" * 32, user, now=time.time()),
            r"(does not take|refuses) the token of",
        ),
        (lambda key, user: signed(key, user, now=time.time() - 900), "it ended at 2"),
        (lambda key, user: signed(key, "nobody", now=time.time()), "it is for nobody"),
    ],
    ids=["another key", "of yesterday", "of somebody else"],
)
def test_a_token_that_is_not_taken_is_said_and_never_told(
    lab: Lab, caplog: pytest.LogCaptureFixture, made: Callable[[bytes, str], str], told: str
) -> None:
    token = made(lab.rest.key.read_bytes(), lab.rest.user)
    caplog.set_level(logging.DEBUG)
    stage = over_rest(lab, token=token)

    with pytest.raises(BackendError, match=told) as error:
        stage.look()

    assert error.value.retry
    for part in token.split("."):
        assert part not in f"{error.value!r} {error.value.__context__!r} {caplog.text}"
        assert part not in repr(stage.backend._options)


def test_a_slurmrestd_that_is_down_is_said_and_is_found_when_it_is_back(lab: Lab) -> None:
    stage = over_rest(lab)
    stage.look()
    lab.end("slurmrestd")

    with pytest.raises(
        BackendError, match=r"slurmrestd at 127\.0\.0\.1:\d+: Connection refused"
    ) as error:
        stage.look()
    lab.rest.start()

    assert error.value.retry
    assert [node.name for node in stage.look().nodes] == lab.nodes


def test_a_slurmctld_that_is_down_is_said(lab: Lab) -> None:
    stage = over_rest(lab, timeout_seconds=1)
    lab.kill_controller()
    try:
        with pytest.raises(BackendError, match="Slurm does not answer: slurmrestd") as error:
            stage.look()
    finally:
        lab.start_controller()

    assert error.value.retry


def test_one_that_is_slow_is_given_up(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"

        with pytest.raises(BackendError, match="no answer within 1 s") as error:
            over_rest(lab, url=url, timeout_seconds=1).look()

    assert error.value.retry


def test_it_speaks_the_newest_version_that_both_know(lab: Lab) -> None:
    client = Client(read_options(over_rest(lab).cluster.options))

    assert client.version in client.offered()
    assert client.version >= 38
