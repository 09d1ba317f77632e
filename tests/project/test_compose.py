"""The production shape without Docker: each service's very command, and its very health check."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.netns import private_network
from tests.services import Postgres, die_with_parent, private_postgres, redis_program

ROOT = Path(__file__).resolve().parents[2]
FILE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = FILE["services"]
OURS = ("migrate", "web", "worker", "beat")
PATIENCE = 300.0


def filled_in(value: str, given: dict[str, str]) -> str:
    """Fill ``${NAME:-default}`` and ``${NAME:?why}`` in, as compose does."""

    def one(found: re.Match[str]) -> str:
        name, how, rest = found[1], found[2], found[3]
        if given.get(name):
            return given[name]
        assert how == ":-", f"{name} is not set: {rest}"
        return rest

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", one, value)


class Stage:
    """A network, a PostgreSQL and a folder, in which services are started as compose would."""

    def __init__(self, enter: list[str], server: Postgres, folder: Path) -> None:
        self.enter, self.folder = enter, folder
        self.server = server
        self.given = {
            "SECRET_KEY": secrets.token_urlsafe(64),
            "ALLOWED_HOSTS": "rollcall.example.com",
            "POSTGRES_PASSWORD": secrets.token_urlsafe(16),
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, name: str) -> dict[str, str]:
        """What compose would set, but for the two addresses and the folder, which are ours."""
        wanted = {
            k: filled_in(str(v), self.given)
            for k, v in SERVICES[name].get("environment", {}).items()
        }
        image = {"ROLLCALL_DATA": str(self.folder), "STATIC_ROOT": str(self.folder / "static")}
        ours = {
            "DATABASE_URL": self.server.url("rollcall"),
            "REDIS_URL": "redis://127.0.0.1:6379/0",
        }
        return {
            "PATH": f"{Path(sys.executable).parent}:{self.server.programs}:{os.environ['PATH']}",
            "PGHOST": str(self.server.home),
            **image,
            **{k: ours.get(k, v) for k, v in wanted.items()},
        }

    def words(self, command: list[str]) -> list[str]:
        first = redis_program() if command[0] == "redis-server" else command[0]
        return [*self.enter, first, *command[1:]]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def run(self, name: str) -> int:
        return self.start(name).wait(PATIENCE)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as out:
            self.running[name] = subprocess.Popen(
                self.words(SERVICES[name]["command"]), cwd=ROOT, env=self.environment(name),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        return self.running[name]

    def check(self, name: str) -> subprocess.CompletedProcess[str]:
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return subprocess.run(
            self.words(command), cwd=ROOT, env=self.environment(name),
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    def wait_until_well(self, name: str) -> None:
        end = time.monotonic() + PATIENCE
        while (answer := self.check(name)).returncode != 0:
            ended = name in self.running and self.running[name].poll() is not None
            assert not ended, self.log(name)
            assert time.monotonic() < end, answer.stdout + answer.stderr + self.log(name)
            time.sleep(0.5)

    def stop(self) -> None:
        for process in reversed(self.running.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with private_postgres() as server, private_network() as enter:
        server.create("rollcall")
        stage = Stage(enter, server, tmp_path_factory.mktemp("compose"))
        subprocess.run(
            [sys.executable, "manage.py", "collectstatic", "--noinput", "-v", "0"],
            cwd=ROOT, env=stage.environment("web"), check=True,
        )  # fmt: skip
        yield stage
        stage.stop()


def test_every_service_starts_by_its_command_and_is_well_by_its_check(stage):
    assert set(SERVICES) == {"postgres", "redis", *OURS}
    assert stage.check("postgres").returncode == 0
    # Nothing runs yet: a check that says "well" now would always say it.
    for name in ("redis", "web", "worker", "beat"):
        assert stage.check(name).returncode != 0, name

    stage.start("redis")
    stage.wait_until_well("redis")
    assert stage.run("migrate") == 0, stage.log("migrate")
    for name in ("web", "worker", "beat"):
        stage.start(name)
    for name in ("web", "worker", "beat"):
        stage.wait_until_well(name)

    # And none says so once its process is gone.
    for name in ("web", "worker"):
        stage.running[name].terminate()
        stage.running[name].wait(30)
        assert stage.check(name).returncode != 0, name


def test_no_log_holds_a_secret(stage):
    logs = "".join(path.read_text() for path in stage.folder.glob("*.log"))

    assert logs
    assert stage.given["SECRET_KEY"] not in logs
    assert stage.given["POSTGRES_PASSWORD"] not in logs


def test_the_file_holds_no_secret_and_asks_for_each():
    text = (ROOT / "docker-compose.yml").read_text()

    for name in ("SECRET_KEY", "POSTGRES_PASSWORD", "ALLOWED_HOSTS"):
        assert f"${{{name}:?" in text
    assert re.findall(r"(?:PASSWORD|SECRET_KEY): (?!\$\{)\S+", text) == []


def test_every_lasting_service_is_watched_and_waits_for_what_it_needs():
    lasting = [name for name in SERVICES if name != "migrate"]

    assert all("healthcheck" in SERVICES[name] for name in lasting)
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("web", "worker", "beat"):
        assert SERVICES[name]["depends_on"]["migrate"] == {
            "condition": "service_completed_successfully"
        }
    # Reachable from this machine alone; a proxy that speaks TLS stands before it.
    assert SERVICES["web"]["ports"] == ["127.0.0.1:8000:8000"]
    assert all("ports" not in SERVICES[name] for name in SERVICES if name != "web")


def test_the_image_runs_as_an_ordinary_user_and_its_command_is_the_web_services():
    lines = (ROOT / "Dockerfile").read_text().splitlines()

    assert "USER rollcall" in lines
    assert yaml.safe_load(lines[-1].removeprefix("CMD ")) == SERVICES["web"]["command"]
    assert not any(
        re.search(r"(SECRET_KEY|PASSWORD)=[^\"$]*[A-Za-z0-9]{12}", line) for line in lines
    )
