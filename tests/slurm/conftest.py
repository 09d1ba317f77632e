"""A real Slurm cluster for the tests of this folder: one for the session, idle before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs.slurm.lab import Lab, missing


@pytest.fixture(scope="session")
def running_lab() -> Iterator[Lab]:
    """The lab, started once."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Lab() as lab:
        yield lab


@pytest.fixture
def lab(running_lab: Lab) -> Lab:
    """The lab with nothing on it."""
    running_lab.clear()
    return running_lab
