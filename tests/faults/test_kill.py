"""kill -9 of real workers at each step of a tick: the same ledger as an undisturbed run."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.conf import settings

from tests.conftest import FULL
from tests.faults.stage import Stage
from tests.faults.story import START
from tests.services import Redis

KILLS = 20 if FULL else 3
MINUTES = 60
BLOWS_A_MINUTE = 4 if FULL else 1
STEPS = ("observe", "decide", "write", "act", "launched", "book")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The ledger of a run that nobody disturbed."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    stage.migrate()
    stage.run("-m", "tests.faults.story", "set-up", str(MINUTES))
    stage.run("-m", "tests.faults.story", "run", str(MINUTES))
    return stage.ledger()


@pytest.fixture
def stage(tmp_path: Path, redis_server: Redis) -> Iterator[Stage]:
    stage = Stage(tmp_path / "data", redis_url=redis_server.url)
    stage.migrate()
    yield stage
    stage.end()


class Driver:
    """Steps the clock by messages to a real worker, and starts another when it was killed."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.app = Celery(broker=stage.redis_url)
        self.app.conf.task_default_queue = settings.CELERY_TASK_DEFAULT_QUEUE
        self.cluster = stage.ask("SELECT id FROM backends_cluster")[0]
        self.worker = stage.worker()
        self.deaths = 0

    def send(self) -> None:
        name = "apps.scheduling.tasks.tick_cluster"
        self.app.send_task(name, kwargs={"cluster_id": self.cluster}, expires=5)

    def step_to(self, minute: int) -> None:
        """Have the worker tick up to a minute, however often it dies on the way."""
        until = START + timedelta(minutes=minute)
        self.stage.set_until(until)
        since = self.fence()
        sent = 0.0
        end = time.monotonic() + 90
        while not self.settled(until, since):
            assert time.monotonic() < end, self.log()
            if self.worker.poll() is not None:
                assert self.worker.returncode == -signal.SIGKILL, self.log()
                self.deaths += 1
                self.worker = self.stage.worker()
                sent = 0.0
            if time.monotonic() - sent > 0.5:
                self.send()
                sent = time.monotonic()
            time.sleep(0.02)

    def log(self) -> str:
        return (self.stage.home / "log").read_text()[-4000:]

    def fence(self) -> int:
        return int(self.stage.ask("SELECT lease_fence FROM backends_cluster")[0])

    def settled(self, until: datetime, since: int) -> bool:
        """Return whether a tick since a fence came to its end, with the clock there."""
        holder = self.stage.ask("SELECT lease_holder FROM backends_cluster")[0]
        return not holder and self.fence() > since and self.stage.clock() == until


def test_workers_killed_at_each_step_leave_the_ledger_of_an_undisturbed_run(
    stage: Stage, undisturbed: Any
) -> None:
    stage.run("-m", "tests.faults.story", "set-up", str(MINUTES))
    blows = [step for step in STEPS for _ in range(KILLS)]
    random.Random(11).shuffle(blows)
    driver = Driver(stage)

    for minute in range(MINUTES + 1):
        # A blow that no step of this minute took (nothing was launched) waits for the next.
        for _ in range(BLOWS_A_MINUTE):
            if blows and not stage.kill_file.exists():
                stage.kill_file.write_text(blows.pop())
            driver.step_to(minute)
    driver.step_to(MINUTES)
    found = stage.ledger()

    assert not blows
    assert driver.deaths == KILLS * len(STEPS)
    assert undisturbed["intervals"]
    for key in ("jobs", "moves", "intervals", "usage"):
        assert found[key] == undisturbed[key], key


def test_a_lease_of_a_killed_worker_is_taken_after_two_seconds_and_not_before(
    stage: Stage, undisturbed: Any
) -> None:
    stage.run("-m", "tests.faults.story", "set-up", "5")
    stage.kill_file.write_text("decide")
    driver = Driver(stage)
    while driver.worker.poll() is None:
        driver.send()
        time.sleep(0.5)
    died = time.monotonic()

    driver.step_to(0)

    assert time.monotonic() - died >= 1.5
