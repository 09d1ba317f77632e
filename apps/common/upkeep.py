"""What a database needs now and then from those who use it."""

from __future__ import annotations

import time

from django.db import connection

EVERY_SECONDS = 5.0
ROWS_LOOKED_AT = 1_000

_done = float("-inf")


def refresh_statistics() -> bool:
    """Let SQLite look at the tables that have grown; return whether it was asked to.

    Without figures its planner walks through all jobs of a cluster where an index of the few that
    run would do: harmless on an empty table, tens of milliseconds a query once there are thousands.
    PostgreSQL looks by itself. Costs milliseconds; at most once in EVERY_SECONDS of this process.
    """
    global _done
    if connection.vendor != "sqlite" or time.monotonic() - _done < EVERY_SECONDS:
        return False
    _done = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA analysis_limit = {ROWS_LOOKED_AT}")
        cursor.execute("PRAGMA optimize")
    return True
