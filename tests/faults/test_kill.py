"""kill -9 of real workers at each step of a tick: the same ledger as an undisturbed run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conftest import FULL
from tests.faults.driver import Driver, deal
from tests.faults.stage import Stage

KILLS = 20 if FULL else 3
MINUTES = 60
BLOWS_A_STEP = 2 if FULL else 1
STEPS = ("observe", "decide", "write", "act", "launched", "book")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The ledger of a run that nobody disturbed."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    stage.migrate()
    stage.run("-m", "tests.faults.story", "set-up", str(MINUTES))
    stage.run("-m", "tests.faults.story", "run", str(MINUTES))
    return stage.ledger()


def test_workers_killed_at_each_step_leave_the_ledger_of_an_undisturbed_run(
    stage: Stage, undisturbed: Any
) -> None:
    stage.run("-m", "tests.faults.story", "set-up", str(MINUTES))
    driver = Driver(stage)

    deal(driver, STEPS, KILLS, MINUTES, BLOWS_A_STEP)
    found = stage.ledger()

    assert driver.deaths == KILLS * len(STEPS)
    assert undisturbed["intervals"]
    for key in ("jobs", "moves", "intervals", "usage"):
        assert found[key] == undisturbed[key], key


def test_a_lease_of_a_killed_worker_is_taken_after_two_seconds_and_not_before(
    stage: Stage, undisturbed: Any
) -> None:
    stage.run("-m", "tests.faults.story", "set-up", "5")
    (stage.blows / "decide.0").touch()
    driver = Driver(stage)
    while driver.worker.poll() is None:
        driver.send()
        time.sleep(0.5)
    died = time.monotonic()

    driver.step_to(0)

    assert time.monotonic() - died >= 1.5
