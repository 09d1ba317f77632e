"""The same adapter over SSH, through a real sshd: one round trip a look, and every word as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.backends.adapters.slurm.runner import Runner
from apps.backends.port import BackendError
from tests.labs.slurm.lab import Lab
from tests.labs.slurm.login import SSHD, Login, login_node
from tests.slurm.stage import SAVES, Stage, now


@pytest.fixture
def login(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    if not SSHD.exists():
        pytest.skip("sshd is absent: make test ONLY=slurm installs it")
    with login_node(tmp_path_factory.mktemp("login") / "node") as node:
        yield node


def test_a_gang_runs_saves_and_ends_over_ssh(lab: Lab, login: Login) -> None:
    stage = Stage(lab, changes=login.options)
    request = stage.gang("gpu1", "gpu2", name="it's $(id) ; train", workload=SAVES)

    running = stage.start(request)
    again = stage.backend.launch(request, now=now())
    stage.backend.ask_to_leave(request.uid, until=now(), now=now())
    seen = stage.until(request.uid, "ended")

    assert running.nodes == ("gpu1", "gpu2")
    assert again.outcome == "exists"
    assert seen.outcome == "stopped"
    assert seen.checkpoint_at is not None


def test_a_look_is_one_round_trip(lab: Lab, login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(lab, changes=login.options)
    local = Stage(lab)
    lines: list[str] = []
    real = Runner._ssh

    def counted(self: Runner, line: str, stdin: str, patience: float | None = None) -> object:
        lines.append(line)
        return real(self, line, stdin, patience)

    monkeypatch.setattr(Runner, "_ssh", counted)

    seen = stage.look()

    assert len(lines) == 1
    nodes = [(n.name, n.gpus, n.state, n.foreign_gpus) for n in seen.nodes]
    assert nodes == [(n.name, n.gpus, n.state, n.foreign_gpus) for n in local.look().nodes]


def test_a_login_node_that_is_somebody_else_is_not_believed(lab: Lab, login: Login) -> None:
    login.known_hosts.write_text("")

    with pytest.raises(BackendError, match="cannot be reached over SSH: Host key") as error:
        Stage(lab, changes=login.options).look()

    assert error.value.retry


def test_a_key_that_is_not_let_in_is_said(lab: Lab, login: Login) -> None:
    (login.key.parent / "authorized_keys").write_text("")

    with pytest.raises(BackendError, match="Permission denied"):
        Stage(lab, changes=login.options).look()
