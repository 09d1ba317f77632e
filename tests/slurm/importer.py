"""A Slurm cluster in an installation of its own, whose history is imported by processes that die.

``python -m tests.slurm.importer set-up OPTIONS`` adds it and looks once, ``begin SINCE`` begins,
``die AT`` goes on until so many windows are about to be committed, and then kills itself, and
``ledger`` prints what was written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime, timedelta
from itertools import count

import django

NAME = "lab"


def set_up(options: str) -> None:
    """Add the cluster, and look at it once."""
    from django.utils import timezone

    from apps.backends.services import add_cluster
    from apps.scheduling.services import tick

    assert tick(add_cluster(NAME, kind="slurm", now=timezone.now(), options=json.loads(options)))


def begin(since: str) -> None:
    """Begin an import, and do nothing for it yet."""
    from django.utils import timezone

    from apps.backends.services import find_cluster
    from apps.scheduling.history import start_history_import

    start_history_import(
        find_cluster(NAME), since=datetime.fromisoformat(since), by=None, now=timezone.now()
    )


def die(at: int) -> None:
    """Go on with the import, and kill this very process in the middle of a window."""
    from apps.scheduling import history, steps
    from apps.scheduling.models import HistoryImport

    windows = count(1)

    def strike(_step: str) -> None:
        if next(windows) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.reached = strike
    history.HOLD = timedelta(seconds=2)  # for so long it counts as alive
    history.go_on(HistoryImport.objects.get().pk, holder="doomed")


def ledger() -> list[list[str]]:
    """Return all that an import writes."""
    from apps.jobs.models import Attempt, Job, Member, Move
    from apps.ledger.models import Interval, RollUp, UsageAccount

    tables = {
        Job: ("foreign_ref", "name", "tenant__path", "state", "outcome", "size", "ended_at"),
        Attempt: ("uid", "number", "started_at", "ended_at", "outcome"),
        Member: ("attempt__uid", "rank", "node__name"),
        Move: ("job__foreign_ref", "at", "before", "after", "what"),
        Interval: ("kind", "state", "attempt__uid", "node__name", "gpus", "start_us", "end_us"),
        RollUp: ("quarter_us", "pool__name", "tenant__path", "state", "gpu_us"),
        UsageAccount: ("tenant__path", "pool__name", "running"),
    }
    return [
        sorted(map(str, table.objects.order_by().values_list(*columns)))
        for table, columns in tables.items()
    ]


if __name__ == "__main__":
    django.setup()
    command, *rest = sys.argv[1:]
    if command == "set-up":
        set_up(*rest)
    elif command == "begin":
        begin(*rest)
    elif command == "die":
        die(int(rest[0]))
    else:
        sys.stdout.write(json.dumps(ledger()))
