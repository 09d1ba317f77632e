"""Stories that are lived through again by slurmrestd alone: the same tests, another way in."""

from __future__ import annotations

from typing import Any

import pytest

from apps.tenants.models import Tenant
from tests.labs.slurm.lab import Lab
from tests.slurm import test_stories as stories
from tests.slurm.play import Play

test_a_gang_starts_whole = stories.test_a_gang_of_four_whole_nodes_starts_where_it_was_planned
test_work_is_saved = stories.test_a_victim_that_exits_75_has_saved_its_work
test_grace_is_kept = stories.test_a_victim_that_does_not_save_in_time_is_stopped
test_a_victim_is_demoted = stories.test_a_victim_is_demoted_and_runs_on_below_the_others
test_foreign_work_is_seen = stories.test_foreign_work_is_seen_and_its_gpus_are_promised_to_nobody
test_what_does_not_start_is_planned_anew = (
    stories.test_a_gang_that_slurm_does_not_start_is_taken_back_and_planned_anew
)
test_watched_is_left_alone = stories.test_a_cluster_that_is_only_observed_is_left_as_it_is
test_slurm_is_down = stories.test_slurm_that_is_down_is_trouble_and_nobody_is_lost
test_nothing_starts_twice = (
    stories.test_a_crash_right_after_a_submission_starts_nothing_twice_and_loses_nothing
)


@pytest.fixture
def lab(rest_lab: Lab) -> Lab:
    return rest_lab


@pytest.fixture
def way(lab: Lab) -> dict[str, Any]:
    return lab.rest.options()


@pytest.fixture
def slurm(lab: Lab, way: dict[str, Any], db: None) -> Play:
    return Play(lab, **way)


def test_slurmrestd_that_is_down_is_trouble_and_its_gang_runs_on(
    slurm: Play, vision: Tenant
) -> None:
    job = slurm.submit(vision, 4)
    slurm.until_state(job, "RUNNING")
    slurm.lab.end("slurmrestd")

    slurm.tick()
    trouble = slurm.trouble
    slurm.lab.rest.start()
    slurm.until(lambda: slurm.trouble == "", "back")

    assert "slurmrestd" in trouble
    assert "Connection refused" in trouble
    assert slurm.state(job) == "RUNNING"
    assert len(slurm.attempts(job)) == len(slurm.lab.jobs()) == 1
