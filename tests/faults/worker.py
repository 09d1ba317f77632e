"""A real Celery worker that kills itself with SIGKILL when a tick reaches the step it is told.

Each file in BLOWS, ``step.number``, is one blow; it goes before the blow, so each is dealt once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from apps.config.celery import app
from apps.scheduling import steps

BLOWS = Path(os.environ["BLOWS"])


def strike(step: str) -> None:
    """Die here if this is a step the test asked for."""
    for blow in BLOWS.glob(f"{step}.*"):
        blow.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


steps.reached = strike

if __name__ == "__main__":
    app.worker_main(["worker", *sys.argv[1:]])
