"""The database of one simulated world: plain SQLite, apart from the product's own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    name TEXT NOT NULL, pool TEXT NOT NULL, gpus INTEGER NOT NULL,
    rack TEXT NOT NULL, nvlink TEXT NOT NULL,
    state TEXT NOT NULL, since_us INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (name, pool)
);
CREATE TABLE IF NOT EXISTS attempt (
    id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL, tenant TEXT NOT NULL, pool TEXT NOT NULL,
    gpus INTEGER NOT NULL, nodes TEXT NOT NULL, workload TEXT NOT NULL,
    started_us INTEGER NOT NULL,
    end_us INTEGER, end_outcome TEXT NOT NULL, end_detail TEXT NOT NULL,
    checkpoint_us INTEGER,
    ended_us INTEGER, outcome TEXT NOT NULL DEFAULT '', detail TEXT NOT NULL DEFAULT '',
    seq INTEGER
);
CREATE INDEX IF NOT EXISTS attempt_alive ON attempt (id) WHERE ended_us IS NULL;
CREATE UNIQUE INDEX IF NOT EXISTS attempt_ended ON attempt (seq) WHERE seq IS NOT NULL;
CREATE TABLE IF NOT EXISTS planned (
    id INTEGER PRIMARY KEY, key TEXT UNIQUE, at_us INTEGER NOT NULL,
    node TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS planned_ahead ON planned (at_us, id) WHERE done = 0;
CREATE TABLE IF NOT EXISTS clock (
    one INTEGER PRIMARY KEY CHECK (one = 1), horizon_us INTEGER NOT NULL, seq INTEGER NOT NULL
);
INSERT OR IGNORE INTO clock VALUES (1, 0, 0);
PRAGMA user_version = 1;
"""

# What an attempt was asked: when it gives way, whether its work is saved by then, how many members
# stay (0: none), and when it shrank.
GIVING_WAY = """
ALTER TABLE attempt ADD COLUMN leaves_us INTEGER;
ALTER TABLE attempt ADD COLUMN saves INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempt ADD COLUMN keep INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempt ADD COLUMN shrunk_us INTEGER;
PRAGMA user_version = 2;
"""


def _give_way(connection: sqlite3.Connection) -> None:
    """Bring a world of the first version up to date, once, whoever comes first."""
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("PRAGMA user_version").fetchone()[0] < 2:
        for statement in GIVING_WAY.split(";"):
            connection.execute(statement)
    connection.execute("COMMIT")


def connect(path: Path | None) -> sqlite3.Connection:
    """Open a world, made on demand; None: one in memory, gone with its connection.

    Statements outside BEGIN … COMMIT commit at once. The caller serialises its threads.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=20,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if path is not None:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
        if (
            connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'clock'").fetchone()
            is None
        ):
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
        if connection.execute("PRAGMA user_version").fetchone()[0] < 2:
            _give_way(connection)
    except BaseException:
        connection.close()
        raise
    return connection
