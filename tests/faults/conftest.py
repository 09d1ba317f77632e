"""An installation of its own for each test of faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.stage import Stage
from tests.services import Redis


@pytest.fixture
def stage(tmp_path: Path, redis_server: Redis) -> Iterator[Stage]:
    """A data directory that is migrated, and a Redis; its processes end with the test."""
    stage = Stage(tmp_path / "data", redis_url=redis_server.url)
    stage.migrate()
    yield stage
    stage.end()
