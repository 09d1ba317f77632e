"""What every test shares: data of its own, private servers, the legs, and no silent skip."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from hypothesis import HealthCheck, core
from hypothesis import settings as hypothesis_settings

from tests.services import Redis, private_redis

pytest_plugins = ["tests.fixtures", "tests.skips"]

ROOT = Path(__file__).resolve().parents[1]

# No test touches the demo's data: neither this process (its settings are read already) nor another
# that a test starts.
_DATA = Path(tempfile.mkdtemp(prefix="rollcall-test-"))
os.environ["ROLLCALL_DATA"] = str(_DATA)
settings.DATA_DIR = _DATA
settings.STATIC_ROOT = _DATA / "static"
settings.STATIC_ROOT.mkdir()

FULL = os.environ.get("FULL", "") not in ("", "0")

# Legs that need a process, a server or a browser of their own (tools/test.sh).
APART = ("browser", "faults", "postgres", "slurm")

_common: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
hypothesis_settings.register_profile("sample", max_examples=60, **_common)
hypothesis_settings.register_profile("full", max_examples=2_000, **_common)
hypothesis_settings.load_profile("full" if FULL else "sample")


def pytest_configure(config: pytest.Config) -> None:
    """Choose one seed for every random test of this run, workers of xdist included."""
    seed = int(
        os.environ.setdefault("HYPOTHESIS_SEED", str(random.SystemRandom().randrange(2**32)))
    )
    core.global_force_seed = seed


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove this process's data."""
    shutil.rmtree(_DATA, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what makes this run different from another."""
    database = "PostgreSQL" if os.environ.get("DATABASE_URL") else "SQLite"
    seed = os.environ["HYPOTHESIS_SEED"]
    return [
        f"rollcall: {database}, random tests: {'full' if FULL else 'sample'}, HYPOTHESIS_SEED={seed}"
    ]


def _leg_of(item: pytest.Item) -> str | None:
    tests = ROOT / "tests"
    folder = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
    for leg in APART:
        if folder == leg or item.get_closest_marker(leg):
            return leg
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to its leg what this process cannot run; a path on the command line names it too."""
    legs = set(os.environ.get("LEG", "").split())
    legs.update(leg for leg in APART if any(f"tests/{leg}" in str(path) for path in config.args))
    if os.environ.get("DATABASE_URL"):
        legs.add("postgres")
    kept, left = [], []
    for item in items:
        leg = _leg_of(item)
        (kept if leg is None or leg in legs else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(autouse=True)
def _worlds_of_its_own(settings: Any, tmp_path: Path) -> None:
    """Give each test simulated clusters that no other test has seen."""
    settings.SIMULATOR_DIR = tmp_path / "worlds"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The material beside the work tree; a test that uses it is skipped where it is absent."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("../shared is absent")
    return path


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A real Redis on a socket of its own, for as long as the session."""
    with private_redis() as server:
        yield server
