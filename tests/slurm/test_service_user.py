"""The service user is nobody special: it changes only jobs of its own, as Slurm allows everyone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.labs.slurm.lab import PATH, Lab
from tests.slurm.stage import SAVES, Stage, now

COMMANDS = ("scontrol", "squeue", "sbatch", "scancel")


@pytest.fixture
def stage(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A stage whose commands run as the user nobody."""
    if os.geteuid() != 0:
        pytest.skip("only root can run commands as somebody else")
    folder: Path = lab.dir / "as-nobody"
    folder.mkdir(exist_ok=True)
    for name in COMMANDS:
        (folder / name).write_text(
            "#!/bin/sh\n"
            f"PATH={PATH}\n"
            f'exec setpriv --reuid=nobody --regid=nogroup --clear-groups {name} "$@"\n'
        )
        (folder / name).chmod(0o755)
    return Stage(lab, changes={"bin": str(folder)})


def test_it_starts_demotes_asks_and_is_told(stage: Stage) -> None:
    request = stage.gang("gpu1", "gpu2", workload=SAVES)
    stage.start(request)
    at = now()

    stage.backend.demote(request.uid, now=at)
    stage.backend.ask_to_leave(request.uid, until=at, now=at)
    seen = stage.until(request.uid, "ended")

    name = f"--name=train.{request.uid}"
    assert stage.lab.run("squeue", "-h", "-t", "all", name, "-o", "%u %T") == "nobody FAILED"
    assert seen.outcome == "stopped"
    assert seen.checkpoint_at is not None
    assert seen.checkpoint_at >= at


def test_it_stops_its_own_and_cannot_touch_what_is_not(stage: Stage) -> None:
    other = Stage(stage.lab)
    other.cluster.name = stage.cluster.name
    ours, theirs = stage.gang("gpu1"), other.gang("gpu2")
    stage.start(ours)
    other.start(theirs)

    stage.backend.stop(ours.uid, now=now())
    stage.backend.stop(theirs.uid, now=now())

    assert stage.until(ours.uid, "ended").outcome == "stopped"
    assert other.attempt(theirs.uid).state == "running"
    assert stage.foreign() == {"gpu2": 8}
    assert [one.uid for one in stage.look().attempts] == [ours.uid]
