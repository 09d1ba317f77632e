"""A driver of a real worker that dies: it steps the clock by messages, and starts another."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from celery import Celery
from django.conf import settings

from tests.faults.stage import Stage
from tests.faults.story import START


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
        end = time.monotonic() + 240  # many deaths, each a lease and a start long
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


def deal(driver: Driver, steps: Iterable[str], kills: int, minutes: int, a_minute: int) -> None:
    """Step through the minutes, with so many blows on offer at each step in each of them.

    A worker takes those whose steps it reaches. All of ``kills`` a step must be taken in the end.
    """
    left = {step: kills for step in steps}
    for minute in range(minutes + 1):
        offered = {
            driver.stage.blows / f"{step}.{n}": step
            for step, many in left.items()
            for n in range(min(many, a_minute))
        }
        for blow in offered:
            blow.touch()
        driver.step_to(minute)
        for blow, step in offered.items():
            left[step] -= not taken_back(blow)
    driver.step_to(minutes)
    assert not any(left.values()), left


def taken_back(blow: Path) -> bool:
    """Take a blow back from the workers; tell whether it was still there."""
    try:
        blow.unlink()
    except FileNotFoundError:
        return False
    return True
