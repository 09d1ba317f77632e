"""kill -9 of real workers at each step of an eviction: one record, one end, the same ledger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.faults.driver import Driver, deal
from tests.faults.stage import Stage

MODES = ("checkpoint", "kill", "demote") if FULL else ("checkpoint",)
KILLS = 20 if FULL else 3
MINUTES = 150 if FULL else 30  # killed victims are asked once: so many evictions take long
BLOWS_A_STEP = 2 if FULL else 1
STEPS = ("recorded", "asking", "asked", "left")


@pytest.mark.parametrize("mode", MODES)
def test_workers_killed_at_each_step_of_an_eviction_leave_one_record_and_one_end(
    mode: str, stage: Stage, tmp_path: Path
) -> None:
    calm = Stage(tmp_path / "undisturbed")
    calm.migrate()
    for one in (calm, stage):
        one.run("-m", "tests.faults.story", "set-up", str(MINUTES), mode)
    calm.run("-m", "tests.faults.story", "run", str(MINUTES))
    driver = Driver(stage)

    deal(driver, STEPS, KILLS, MINUTES, BLOWS_A_STEP)

    found, undisturbed = stage.ledger(), calm.ledger()
    assert driver.deaths == KILLS * len(STEPS)
    for key in ("evictions", "jobs", "moves", "intervals", "usage"):
        assert found[key] == undisturbed[key], key
    assert len(found["evictions"]) >= KILLS
    assert max(Counter(found["evictions"]).values()) == 1
