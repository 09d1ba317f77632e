"""Slurm's accounts as Rollcall reads and writes them, held against sacctmgr and sshare."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from apps.backends.models import Grade
from apps.backends.port import SeenAccount
from tests.labs.slurm.accounting import Association
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import Stage, now

ME = getpass.getuser()
TREE = (
    "Parent - 'root'",
    f"User - '{ME}':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1",
    "Account - 'org':Description='d':Organization='o':Fairshare=3",
    "Parent - 'org'",
    "Account - 'cv':Description='d':Organization='o':Fairshare=30:GrpTRES=gres/gpu=8,cpu=100",
    "Account - 'nlp':Description='d':Organization='o':Fairshare=50",
    "Account - 'odd x':Description='d':Organization='o':Fairshare=parent",
    "Parent - 'cv'",
    f"User - '{ME}':Fairshare=1",
    "User - 'ana':Fairshare=2",
    "Parent - 'nlp'",
    "User - 'bo':Fairshare=parent",
)
USAGE = {Association("cv", "ana"): 600.0, Association("nlp", "bo"): 200.0}


@pytest.fixture
def lab(accounting_lab: Lab) -> Lab:
    """The lab with this tree in it, and slurmctld knowing it."""
    accounting_lab.accounting.load(TREE, clean=True)
    accounting_lab.accounting.seed_usage(USAGE)
    return accounting_lab


def accounts(stage: Stage) -> dict[str, SeenAccount]:
    return {one.name: one for one in stage.backend.accounts(now=now())}


def shown(lab: Lab, account: str) -> str:
    """Return an account's shares and limits as sacctmgr prints them."""
    out = lab.run(
        "sacctmgr", "-nP", "show", "assoc", f"account={account}", "user=", "format=share,grptres"
    )
    return out.split("\n")[0]


def shared(lab: Lab) -> dict[str, list[str]]:
    """Return what sshare prints of each account."""
    out = lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in out]
    return {row[0]: row for row in rows if not row[1]}


def test_the_tree_is_read_as_sacctmgr_and_sshare_have_it(lab: Lab) -> None:
    found = accounts(Stage(lab, Grade.OBSERVE))

    told: dict[str, Any] = {
        name: (one.parent, one.shares, one.gpu_limit, one.users) for name, one in found.items()
    }
    assert told == {
        "root": ("", 1, None, 1),
        "org": ("root", 3, None, 0),
        "cv": ("org", 30, 8, 2),
        "nlp": ("org", 50, None, 1),
        "odd x": ("org", None, None, 0),
    }
    assert (found["cv"].raw_usage, found["nlp"].raw_usage, found["org"].raw_usage) == (
        600,
        200,
        800,
    )
    for name, row in shared(lab).items():
        one = found[name]
        assert [one.norm_shares, one.effective_usage, one.level] == [
            float(row[at]) if row[at] else None for at in (3, 6, 8)
        ]
    assert found["cv"].effective_usage == 0.75
    assert found["cv"].fair_share == max(
        float(row.split("|")[7])
        for row in lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
        if row.strip().startswith("cv|") and row.split("|")[1]
    )
