"""A real Slurm cluster for the tests of this folder: one for the session, idle before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs.slurm.accounting import Accounting
from tests.labs.slurm.conf import Shape
from tests.labs.slurm.lab import BIN, Lab, missing
from tests.labs.slurm.rest import Rest
from tests.slurm.play import Play


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


@pytest.fixture
def slurm(lab: Lab, db: None) -> Play:
    """The lab as a driven cluster in the database; a file may have one of its own."""
    return Play(lab)


@pytest.fixture(scope="session")
def running_accounting_lab() -> Iterator[Lab]:
    """A lab with accounts, in which usage does not decay, started once."""
    reason = missing(*Accounting.PROGRAMS)
    if reason:
        pytest.skip(reason)
    shape = Shape(
        accounting=True,
        extra=(
            # Without decay Slurm wants usage to be forgotten some time: not while this runs.
            "PriorityDecayHalfLife=0",
            "PriorityUsageResetPeriod=YEARLY",
            "PriorityWeightFairshare=1000",
        ),
    )
    with Lab(shape) as lab:
        yield lab


@pytest.fixture
def accounting_lab(running_accounting_lab: Lab) -> Lab:
    """The lab with accounts and nothing on it; the accounts of earlier tests stay."""
    running_accounting_lab.clear()
    return running_accounting_lab


@pytest.fixture(scope="session")
def running_rest_lab() -> Iterator[Lab]:
    """A lab with a slurmrestd, started once."""
    # This system's needs a slurmdbd to start, the next one has none.
    accounting = not BIN
    reason = missing(*Rest.PROGRAMS, *(Accounting.PROGRAMS if accounting else ()))
    if reason:
        pytest.skip(reason)
    with Lab(Shape(accounting=accounting, rest=True)) as lab:
        if accounting:
            lab.run("sacctmgr", "-i", "add", "account", "research")
            lab.run("sacctmgr", "-i", "add", "user", "nobody", "account=research")
        yield lab


@pytest.fixture
def rest_lab(running_rest_lab: Lab) -> Lab:
    """The lab with a slurmrestd and nothing on it."""
    if not running_rest_lab.alive("slurmrestd"):
        running_rest_lab.rest.start()
    running_rest_lab.clear()
    return running_rest_lab
