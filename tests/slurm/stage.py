"""Slurm as a cluster of Rollcall's, and what tests do with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.utils import timezone

from apps.backends.adapters.slurm import SlurmBackend
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, Grade
from apps.backends.port import LaunchRequest, Observation, SeenAttempt
from tests.labs.slurm.lab import BIN, Lab

PATIENCE = 30.0
POOL, GPUS = "h100", 8
SLEEPS = {"script": "#!/bin/bash\nsleep 600\n"}
SAVES = {
    # An older slurmrestd signals the sleep too, perhaps before its script.
    "script": "#!/bin/bash\ntrap 'sleep 1; exit 75' USR1\necho ready\n"
    "while :; do sleep 600 & wait; done\n",
    "checkpoint_signal": "USR1",
}
STUBBORN = {
    "script": "#!/bin/bash\ntrap '' USR1\nwhile :; do sleep 600 & wait; done\n",
    "checkpoint_signal": "USR1",
}


def options_of(lab: Lab, **changes: Any) -> dict[str, Any]:
    """Return the options of a cluster that is the lab."""
    settled: dict[str, Any] = {"settle_seconds": 0, "partition": "main"}
    if BIN:
        settled["bin"] = BIN
    return {"conf": str(lab.conf), "directory": str(lab.dir / "jobs"), **settled, **changes}


def now() -> datetime:
    """Return the time: Slurm knows no other."""
    return timezone.now()


@dataclass
class Stage:
    """A backend of the lab, not stored, and the cursor of its last look."""

    lab: Lab
    grade: str = Grade.DRIVE
    changes: dict[str, Any] = field(default_factory=dict)
    cursor: str = ""

    def __post_init__(self) -> None:
        self.cluster = Cluster(
            name=f"lab-{uuid4().hex[:8]}", kind="slurm", grade=self.grade, created_at=now(),
            options=options_of(self.lab, **self.changes),
        )  # fmt: skip

    @property
    def backend(self) -> SlurmBackend:
        """A new backend, as each tick has one."""
        made = backend_of(self.cluster)
        assert isinstance(made, SlurmBackend)
        return made

    def gang(self, *nodes: str, **changes: Any) -> LaunchRequest:
        """Return what is asked for one member on each node."""
        workload = self.backend.check_workload(changes.pop("workload", SLEEPS))
        asked = {
            "uid": str(uuid4()), "name": "train", "tenant": "vision", "pool": POOL,
            "gpus_per_member": GPUS, "limit_seconds": 3_600,
        }  # fmt: skip
        return LaunchRequest(**(asked | changes), nodes=nodes, workload=workload)

    def look(self) -> Observation:
        """Look, from the beginning."""
        return self.backend.observe("", now=now())

    def attempt(self, uid: str) -> SeenAttempt:
        """Return an attempt as a look shows it."""
        (found,) = [one for one in self.look().attempts if one.uid == uid]
        return found

    def until(self, uid: str, state: str) -> SeenAttempt:
        """Look until an attempt is in a state."""
        end = time.monotonic() + PATIENCE
        while True:
            found = self.attempt(uid)
            if found.state == state:
                return found
            assert time.monotonic() < end, f"{found} is not {state}"
            time.sleep(0.1)

    def start(self, request: LaunchRequest) -> SeenAttempt:
        """Launch a gang and wait until it runs."""
        result = self.backend.launch(request, now=now())
        assert result.outcome == "accepted", result
        return self.until(request.uid, "running")

    def wait(self, so: Callable[[], bool], what: str) -> None:
        """Wait until something is so."""
        self.lab.wait(so, what, patience=PATIENCE)

    def foreign(self) -> dict[str, int]:
        """Return the GPUs that are not ours, by node, where there are any."""
        return {node.name: node.foreign_gpus for node in self.look().nodes if node.foreign_gpus}
