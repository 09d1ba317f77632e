"""A real Celery worker that kills itself with SIGKILL when a tick reaches the step it is told.

The file named by KILL_FILE holds the step; it is removed before the blow, so each is dealt once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from apps.config.celery import app
from apps.scheduling import steps

FILE = Path(os.environ["KILL_FILE"])


def strike(step: str) -> None:
    """Die here if this is the step the test asked for."""
    try:
        wanted = FILE.read_text().strip()
    except FileNotFoundError:
        return
    if wanted == step:
        FILE.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


steps.reached = strike

if __name__ == "__main__":
    app.worker_main(["worker", *sys.argv[1:]])
