"""Redis dies and comes back, and a second beat: ticks go on, nothing piles up, saving works."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from django.conf import settings
from redis import Redis as Client

from tests.faults.stage import Stage, wait_until
from tests.services import Redis, private_redis


@pytest.fixture
def redis() -> Iterator[Redis]:
    with private_redis() as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path, redis: Redis) -> Iterator[Stage]:
    """A cluster on wall time, with a worker; nothing beats yet."""
    stage = Stage(tmp_path / "data", redis_url=redis.url)
    stage.migrate()
    stage.run("-m", "tests.faults.story", "set-up", "1")
    stage.ask("DELETE FROM jobs_arrival")
    stage.ask("UPDATE backends_cluster SET clock_now = NULL, clock_until = NULL, tick_seconds = 1")
    stage.worker()
    yield stage
    stage.end()


def ticks(stage: Stage) -> int:
    return int(stage.ask("SELECT count(*) FROM scheduling_tick")[0])


def wait_for_ticks(stage: Stage, more: int) -> None:
    since = ticks(stage)
    wait_until(lambda: ticks(stage) >= since + more, f"{more} ticks")


def test_ticks_go_on_after_redis_was_killed_and_what_is_saved_meanwhile_is_kept(
    stage: Stage, redis: Redis
) -> None:
    stage.beat()
    wait_for_ticks(stage, 2)

    redis.kill()
    saved = json.loads(stage.run("-m", "tests.faults.submit"))
    redis.start()
    wait_for_ticks(stage, 3)

    assert saved == {"api": 201, "form": 302, "saved": ["by-api", "by-form"]}
    started = "SELECT count(*) FROM jobs_move WHERE what = 'started'"
    wait_until(lambda: stage.ask(started)[0] == 2, "both start")
    assert Client(unix_socket_path=str(redis.socket)).llen(settings.CELERY_TASK_DEFAULT_QUEUE) <= 2


def test_a_second_beat_out_of_phase_changes_nothing(stage: Stage) -> None:
    stage.beat()
    wait_for_ticks(stage, 2)
    stage.beat()
    wait_for_ticks(stage, 8)

    at = stage.ask("SELECT group_concat(at, '|') FROM (SELECT at FROM scheduling_tick ORDER BY id)")
    times = [datetime.fromisoformat(text) for text in at[0].split("|")]
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
    # A busy machine shifts single instants by the time from claim to look; the rate stays.
    assert sum(gaps) >= 0.9 * len(gaps) - 0.5
    assert min(gaps) > 0.5
