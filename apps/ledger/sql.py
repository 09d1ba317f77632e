"""The ledger's statements of every tick, as plain SQL for both databases.

A tick of a replay does little, many times: there Django takes ten times as long to put a query
together as the database to answer it. All else goes through the ORM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection

from apps.common.statements import placeholders


def read(statement: str, *params: Any) -> list[tuple[Any, ...]]:
    """Return the rows a statement answers."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())


def write(statement: str, *params: Any) -> int:
    """Run a statement and return how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return int(cursor.rowcount)


def write_many(statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """Run a prepared statement once per row."""
    values = list(rows)
    if values:
        with connection.cursor() as cursor:
            cursor.executemany(statement, values)


OPEN_NODES = """
    SELECT id, kind, node_id, state, gpus FROM ledger_interval
    WHERE cluster_id = %s AND end_us IS NULL
    AND (kind = 'node' OR (kind = 'mark' AND state = 'foreign'))
"""
OPEN_MARKS = """
    SELECT id, state, attempt_id, node_id, gpus, start_us FROM ledger_interval
    WHERE cluster_id = %s AND end_us IS NULL AND kind = 'mark' AND state <> 'foreign'
"""
KNOWN_ATTEMPTS = """
    SELECT DISTINCT attempt_id FROM ledger_interval WHERE kind = 'member' AND attempt_id IN ({})
"""
PIECES = """
    SELECT id, kind, attempt_id, cluster_id, tenant_id, pool_id, gpus, usage_factor, start_us, end_us,
        rank
    FROM ledger_interval WHERE kind IN ('member', 'mark') AND attempt_id IN ({})
"""
INTERVAL_COLUMNS = (
    "cluster_id", "pool_id", "kind", "state", "node_id", "tenant_id", "job_id", "attempt_id",
    "rank", "gpus", "start_us", "usage_factor", "on_drained", "assumed",
)  # fmt: skip
ADD_INTERVAL = f"""
    INSERT INTO ledger_interval ({", ".join(INTERVAL_COLUMNS)})
    VALUES ({placeholders(len(INTERVAL_COLUMNS))})
"""  # noqa: S608  names of our own
ADD_PAST = f"""
    INSERT INTO ledger_interval ({", ".join(INTERVAL_COLUMNS)}, end_us)
    VALUES ({placeholders(len(INTERVAL_COLUMNS) + 1)})
"""  # noqa: S608  names of our own
"""One that is closed already."""
ADD_ROLLUP = """
    INSERT INTO ledger_rollup (cluster_id, quarter_us, pool_id, price_id, tenant_id, state, gpu_us)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
DROP_INTERVAL = "DELETE FROM ledger_interval WHERE id = %s"
SET_END = "UPDATE ledger_interval SET end_us = %s WHERE id = %s"
MARK = "SELECT until_us FROM ledger_rollupmark WHERE cluster_id = %s"
LOWER_MARK = "UPDATE ledger_rollupmark SET until_us = %s WHERE cluster_id = %s AND until_us > %s"
OVERLAPPING = """
    SELECT pool_id, kind, state, tenant_id, gpus, start_us, end_us, on_drained, {0}
    FROM ledger_interval WHERE cluster_id = %s AND end_us > %s AND start_us < %s
    UNION ALL
    SELECT pool_id, kind, state, tenant_id, gpus, start_us, end_us, on_drained, {0}
    FROM ledger_interval WHERE cluster_id = %s AND end_us IS NULL AND start_us < %s
"""
"""The intervals that overlap a window, with the window's number; UNION ALL joins several."""
ACCOUNTS = """
    SELECT id, tenant_id, pool_id, gpu_hours, running, as_of_us, half_life_seconds
    FROM ledger_usageaccount WHERE cluster_id = %s
"""
WEIGHTS = "SELECT id, usage_weight FROM backends_pool WHERE cluster_id = %s"
BALANCES = """
    SELECT tenant_id, at_us, gpu_hours FROM ledger_openingbalance
    WHERE cluster_id = %s AND at_us <= %s
"""
SET_ACCOUNT = """
    UPDATE ledger_usageaccount SET gpu_hours = %s, running = %s, as_of_us = %s WHERE id = %s
"""
RULE = """
    SELECT half_life_seconds, window_seconds FROM queues_clusterpolicy WHERE cluster_id = %s
"""
