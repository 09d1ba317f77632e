"""The demo as a person meets it: one command, real processes, and what may be in its way."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
# A busy machine starts it slowly.
PATIENCE = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: Callable[[], object], patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, f"waited {patience} s in vain"
        time.sleep(0.1)


# In the form of the Philly traces; three jobs that nobody ran.
TRACE = """timestamp,duration,num_gpus,gpu_time,cluster
2017-09-01 08:00:00,600.0,1,600.0,one
2017-09-01 08:01:00,1200.0,8,9600.0,two
2017-09-01 08:02:00,300.0,16,4800.0,one
"""


class Run:
    """One demo in a folder of its own."""

    def __init__(self, folder: Path, port: int, **environment: str) -> None:
        self.folder, self.port = folder, port
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.environment = {
            **kept, "ROLLCALL_MODE": "demo", "ROLLCALL_DATA": str(folder), **environment,
        }  # fmt: skip
        self.process: subprocess.Popen[str] | None = None

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "manage.py", "demo", "--port", str(self.port), *arguments]

    def start(self, *arguments: str) -> None:
        with (self.folder.parent / "said").open("w") as out:
            self.process = subprocess.Popen(
                self.command(*arguments), cwd=ROOT, env=self.environment, text=True,
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        wait_for(self.settled)

    def settled(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        return "Rollcall runs at" in self.said()

    def refused(self, *arguments: str) -> str:
        answer = subprocess.run(
            self.command(*arguments), cwd=ROOT, env=self.environment,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert answer.returncode == 1, answer.stdout
        lines = answer.stderr.strip().splitlines()
        assert len(lines) == 1, answer.stderr
        return lines[0]

    def said(self) -> str:
        return (self.folder.parent / "said").read_text()

    def ask(self, path: str = "/healthz") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def pids(self) -> dict[int, str]:
        """Every process that holds this demo's folder in its environment, but for the first."""
        found = {}
        for home in Path("/proc").glob("[0-9]*"):
            try:
                environment = (home / "environ").read_bytes()
                line = (home / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            # Redis writes over its environment, but its title names its socket.
            ours = (
                f"ROLLCALL_DATA={self.folder}\0".encode() in environment
                or f"{self.folder}/redis" in line
            )
            if ours and line and (self.process is None or int(home.name) != self.process.pid):
                found[int(home.name)] = line
        return found

    def ticks(self) -> int:
        with sqlite3.connect(
            f"file:{self.folder}/rollcall.sqlite3?mode=ro", uri=True, timeout=20
        ) as c:
            return int(c.execute("SELECT coalesce(max(id), 0) FROM scheduling_tick").fetchone()[0])

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Run]:
    folder = tmp_path / "data"
    folder.mkdir()
    run = Run(folder, free_port())
    yield run
    run.stop()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of a demo that was loaded before, with a day of submissions."""
    folder = tmp_path_factory.mktemp("loaded")
    environment = Run(folder, 0).environment
    for command in (["migrate", "-v", "0"], ["load_demo", "--days", "1", "-v", "0"]):
        subprocess.run(
            [sys.executable, "manage.py", *command], cwd=ROOT, env=environment, check=True
        )
    return folder


@pytest.fixture
def known(demo: Run, loaded: Path) -> Run:
    """A demo that goes on with such data: it starts in less time."""
    shutil.copytree(loaded, demo.folder, dirs_exist_ok=True)
    return demo


def test_one_command_starts_it_and_ctrl_c_ends_every_process(demo):
    demo.start()

    said = demo.said()
    assert f"http://127.0.0.1:{demo.port}/" in said
    assert all(word in said for word in ("admin", "lead", "member", "rollcall"))
    assert demo.ask() == 200
    assert demo.ask("/") == 302
    assert demo.ask("/login/") == 200
    wait_for(lambda: demo.ticks() > 0)
    names = " ".join(demo.pids().values())
    assert all(word in names for word in ("redis-server", "worker", "beat", "gunicorn"))

    # A second start in the same folder, and another demo on the same port.
    assert "already runs at http://127.0.0.1" in demo.refused()

    demo.process.send_signal(signal.SIGINT)

    assert demo.process.wait(60) == 0
    assert "has stopped" in demo.said()
    wait_for(lambda: not demo.pids(), 5)


def test_a_second_run_goes_on_after_everything_was_killed(known):
    known.start()
    wait_for(lambda: known.ticks() > 0)

    victims = [known.process.pid, *known.pids()]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    known.process.wait()
    wait_for(lambda: not known.pids(), 10)
    seen = known.ticks()
    known.start()

    # The same database, and the ticks go on.
    assert known.ticks() >= seen
    wait_for(lambda: known.ticks() > seen)


def test_killing_the_first_process_ends_the_others(known):
    known.start()

    known.process.kill()
    known.process.wait()

    wait_for(lambda: not known.pids(), 15)


def test_a_dead_child_is_started_again(known):
    known.start()
    (worker,) = [pid for pid, line in known.pids().items() if " worker " in line]

    os.kill(worker, signal.SIGKILL)

    wait_for(
        lambda: [pid for pid, line in known.pids().items() if " worker " in line and pid != worker]
    )
    assert re.search(r"worker ended \(-9\) and is started again", known.said())
    seen = known.ticks()
    wait_for(lambda: known.ticks() > seen)


def test_a_taken_port_is_one_sentence_that_names_a_free_one(demo):
    with socket.socket() as other:
        other.bind(("127.0.0.1", demo.port))
        other.listen()

        sentence = demo.refused()

    free = int(re.search(r"type: make demo PORT=(\d+)$", sentence)[1])
    assert f"port {demo.port} is taken" in sentence
    assert free != demo.port
    assert not (demo.folder / "rollcall.sqlite3").exists()


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "８０"])
def test_a_port_that_is_none_is_one_sentence(demo, port):
    demo.port = port

    assert "PORT must be a number from 1 to 65535" in demo.refused()


def test_a_trace_that_is_not_there_is_one_sentence(demo):
    sentence = demo.refused("--trace", "/nowhere/philly.csv")

    assert "there is no trace at /nowhere/philly.csv; type: make demo TRACE=" in sentence


def test_a_trace_is_replayed_on_its_own_clock(demo, tmp_path):
    trace = tmp_path / "philly.csv"
    trace.write_text(TRACE)

    demo.start("--trace", str(trace))

    wait_for(lambda: demo.ticks() > 0)
    assert demo.ask("/login/") == 200


def test_a_trace_that_is_none_is_one_sentence_and_leaves_nothing_behind(demo, tmp_path):
    trace = tmp_path / "shopping.csv"
    trace.write_text("milk,eggs\n1,12\n")

    sentence = demo.refused("--trace", str(trace))

    assert "has no column timestamp" in sentence
    wait_for(lambda: not demo.pids(), 10)
