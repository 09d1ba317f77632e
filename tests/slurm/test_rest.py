"""Driven by slurmrestd alone: a gang is asked to save its work, demoted and stopped, and told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from apps.backends.adapters.slurm.client import Client
from apps.backends.adapters.slurm.rest import SIGNALS_ALONE, Rest
from apps.backends.port import BackendError
from tests.labs.slurm.lab import BIN, Lab
from tests.slurm.stage import Stage, now

SAYS_WHEN_READY = """\
#!/bin/bash
trap 'sleep 0.5; exit 75' USR1
(trap 'echo heard' USR1; echo ready; sleep 600 & wait) &
wait
"""


@pytest.fixture
def lab(rest_lab: Lab) -> Lab:
    return rest_lab


@pytest.fixture
def stage(lab: Lab) -> Stage:
    return Stage(lab, changes={**lab.rest.options()})


def field(lab: Lab, stage: Stage, uid: str, name: str) -> str:
    """A field of an attempt's job, as scontrol shows it."""
    number = stage.attempt(uid).cluster_ref.split(":")[1]
    words = lab.run("scontrol", "-o", "show", "job", number).split()
    return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))


def start(stage: Stage, *nodes: str, **asked: Any) -> tuple[str, Path]:
    """Start a gang that can save its work, and wait until it can; return its uid and output."""
    out = stage.lab.dir / "jobs" / f"{uuid4().hex}.out"
    told = {"script": SAYS_WHEN_READY, "checkpoint_signal": "USR1", "output": str(out), **asked}
    request = stage.gang(*nodes, workload=told)
    stage.start(request)
    members = 1 if told["script"] else len(nodes)
    stage.wait(lambda: out.exists() and out.read_text().count("ready") == members, "it to be ready")
    return request.uid, out


def test_one_that_is_asked_saves_and_exits_75(stage: Stage) -> None:
    uid, _ = start(stage, "gpu1", "gpu2")
    at = now()

    stage.backend.ask_to_leave(uid, until=at, now=at)
    stage.backend.ask_to_leave(uid, until=at, now=at)
    seen = stage.until(uid, "ended")

    assert seen.outcome == "stopped"
    assert seen.checkpoint_at is not None
    assert at <= seen.checkpoint_at <= now()


def test_a_command_saves_in_every_member(stage: Stage) -> None:
    words = (
        "trap 'echo saved; sleep 1; exit 75' USR1; echo ready; while :; do sleep 600 & wait; done"
    )
    uid, out = start(stage, "gpu1", "gpu2", script=None, command=["bash", "-c", words])

    stage.backend.ask_to_leave(uid, until=now(), now=now())

    assert stage.until(uid, "ended").outcome == "stopped"
    # By an older slurmrestd each may be told more than once.
    assert out.read_text().count("saved") >= 2


def test_a_demoted_one_runs_on_below_all_others_and_on_hold(lab: Lab, stage: Stage) -> None:
    request = stage.gang("gpu1")
    stage.start(request)

    stage.backend.demote(request.uid, now=now())

    assert stage.attempt(request.uid).state == "running"
    assert field(lab, stage, request.uid, "Nice") == "100000"
    assert field(lab, stage, request.uid, "Priority") == "0"
    stage.backend.stop(request.uid, now=now())
    assert stage.until(request.uid, "ended").outcome == "stopped"


def test_one_without_a_signal_may_stay_after_all(lab: Lab, stage: Stage) -> None:
    request = stage.gang("gpu1")
    stage.start(request)
    stage.backend.ask_to_leave(request.uid, until=now(), now=now())
    held = field(lab, stage, request.uid, "Priority")

    stays = stage.backend.stay(request.uid, now=now())

    assert (held, stays) == ("0", True)
    assert field(lab, stage, request.uid, "Priority") != "0"


def test_what_was_refused_is_told_in_slurm_s_words(stage: Stage) -> None:
    stage.cluster.options |= {"partition": "nowhere"}

    result = stage.backend.launch(stage.gang("gpu1"), now=now())

    assert result.outcome == "refused"
    assert "Invalid partition" in result.detail


def test_a_submission_without_an_answer_is_not_made_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, real = stage.gang("gpu1"), Client.post

    def cut_off(self: Client, path: str, body: Any, **whose: str) -> dict[str, object]:
        real(self, path, body, **whose)
        raise BackendError("Slurm does not answer: cut off.", retry=True)

    monkeypatch.setattr(Client, "post", cut_off)
    with pytest.raises(BackendError):
        stage.backend.launch(request, now=now())
    monkeypatch.undo()

    assert stage.backend.launch(request, now=now()).outcome == "exists"
    assert len(stage.lab.jobs()) == 1


def test_it_is_not_started_again_by_slurm_itself(lab: Lab, stage: Stage) -> None:
    request = stage.gang("gpu1")
    stage.start(request)

    assert field(lab, stage, request.uid, "Requeue") == "0"


def test_it_finds_in_its_environment_what_sbatch_would_give(lab: Lab, stage: Stage) -> None:
    out = lab.dir / "jobs" / "env.out"
    script = {"script": "#!/bin/bash\nenv\n", "output": str(out)}
    by_rest, by_command = stage.gang("gpu1", workload=script), Stage(lab)
    stage.backend.launch(by_rest, now=now())
    stage.until(by_rest.uid, "ended")
    found = {line.partition("=")[0] for line in out.read_text().splitlines()}
    out.unlink()
    other = by_command.gang("gpu1", workload=script)
    by_command.backend.launch(other, now=now())
    by_command.until(other.uid, "ended")
    wanted = {line.partition("=")[0] for line in out.read_text().splitlines()}

    assert {name for name in wanted if name.startswith("ROLLCALL_")} <= found
    missed = {name for name in wanted - found if name.startswith(("SLURM_", "CUDA_", "PATH"))}
    assert missed <= {
        "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_PRIO_PROCESS", "SLURM_JOB_DEPENDENCY",
        "SLURM_TRES_PER_TASK",
    }  # fmt: skip


@pytest.mark.parametrize("commands", [False, True], ids=["rest alone", "with commands"])
def test_a_signal_goes_to_the_script_alone_only_by_commands(
    lab: Lab, stage: Stage, commands: bool
) -> None:
    if commands:
        stage.cluster.options |= {"conf": str(lab.conf), "bin": BIN}
    way = stage.backend._way
    assert isinstance(way, Rest)
    old = way._client.version < SIGNALS_ALONE
    uid, out = start(stage, "gpu1")

    stage.backend.ask_to_leave(uid, until=now(), now=now())

    assert stage.until(uid, "ended").checkpoint_at is not None
    heard = "heard" in out.read_text()
    assert heard is (old and not commands)
    assert ("signal_alone" in stage.backend.capabilities().cannot) is heard


def test_an_ordinary_user_s_token_is_enough_and_touches_nobody_else_s(
    lab: Lab, stage: Stage
) -> None:
    asked = {**stage.changes, "user": "nobody", "token": lab.rest.token("nobody")}
    ordinary = Stage(lab, changes={**asked, "account": "research"})
    stage.cluster.name = ordinary.cluster.name
    theirs = stage.gang("gpu2")
    stage.start(theirs)
    ours, _ = start(ordinary, "gpu1")

    ordinary.backend.stop(theirs.uid, now=now())
    ordinary.backend.demote(ours, now=now())
    ordinary.backend.ask_to_leave(ours, until=now(), now=now())
    seen = ordinary.until(ours, "ended")

    assert (seen.outcome, seen.checkpoint_at is not None) == ("stopped", True)
    assert stage.attempt(theirs.uid).state == "running"
    assert ordinary.foreign() == {"gpu2": 8}


def test_what_is_submitted_under_another_name_is_taken_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = stage.gang("gpu1")
    monkeypatch.setattr("apps.backends.adapters.slurm.rest.own_of", lambda *_: None)

    with pytest.raises(BackendError, match="its host must know the user"):
        stage.backend.launch(request, now=now())

    stage.wait(lambda: stage.lab.jobs() == [], "it to be gone")
