"""Processes of a fault test: a data directory, a Redis, workers and beats that may be killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORKER = ("-P", "threads", "-c", "2", "--without-gossip", "--without-mingle", "--without-heartbeat")


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait for something to be true, or fail with what was awaited."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)


@dataclass
class Stage:
    """An installation of its own in a directory; every process of it is a real one."""

    home: Path
    redis_url: str = "redis://127.0.0.1:1/0"
    extra: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def blows(self) -> Path:
        return self.home / "blows"

    def environment(self) -> dict[str, str]:
        """Return the environment of its processes."""
        return {
            **os.environ,
            "ROLLCALL_DATA": str(self.home),
            "REDIS_URL": self.redis_url,
            "BLOWS": str(self.blows),
            "LEASE_SECONDS": "2",
            "TICK_SECONDS": "1",
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "apps.config.settings",
            **self.extra,
        }

    def run(self, *command: str) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=self.environment(), capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def migrate(self) -> None:
        self.blows.mkdir(parents=True, exist_ok=True)
        self.run("manage.py", "migrate", "-v0")

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own."""
        log = (self.home / "log").open("ab")
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=self.environment(), stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start("-m", "tests.faults.worker", *WORKER, "-l", "WARNING")

    def beat(self) -> subprocess.Popen[bytes]:
        return self.start(
            "-m", "celery", "-A", "apps.config", "beat", "-S", "celery.beat:Scheduler",
            "--pidfile=", "-l", "WARNING",
        )  # fmt: skip

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def ask(self, query: str, *values: Any) -> Any:
        """Return the first row of a query on the installation's database."""
        with sqlite3.connect(self.home / "rollcall.sqlite3", timeout=20) as connection:
            row = connection.execute(query, values).fetchone()
        connection.close()
        return row

    def clock(self) -> datetime:
        """Return the virtual clock of the one cluster."""
        row = self.ask("SELECT clock_now FROM backends_cluster")
        return datetime.fromisoformat(row[0]).replace(tzinfo=UTC)

    def set_until(self, at: datetime) -> None:
        """Let the virtual clock go on to an instant."""
        text = at.strftime("%Y-%m-%d %H:%M:%S")
        self.ask("UPDATE backends_cluster SET clock_until = ?", text)

    def ledger(self) -> Any:
        return json.loads(self.run("-m", "tests.faults.story", "ledger"))
