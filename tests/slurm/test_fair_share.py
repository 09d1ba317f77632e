"""Fair share against a real slurmctld: what sshare prints is what the engine says, to six digits.

An account is a tenant, a user's association a leaf of it. Every account here has a user somewhere
below: one without ranks nobody in Slurm, and would rank itself in Rollcall. Nobody has the share
``parent``: Rollcall has no such share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest

from tests.conftest import FULL
from tests.labs.slurm.accounting import Association
from tests.labs.slurm.lab import Lab
from tests.slurm.trees import ROOT, Tree, grow

TREES = 50 if FULL else 8
USERS, ACCOUNTS = (3_000, 300) if FULL else (120, 30)


@pytest.fixture(scope="module")
def tree_lab(running_accounting_lab: Lab) -> Iterator[Lab]:
    """The lab with accounts, on which no job keeps them from being taken away."""
    running_accounting_lab.clear()
    return running_accounting_lab


@pytest.mark.parametrize("number", range(TREES))
def test_a_random_tree_has_the_factors_that_sshare_prints(tree_lab: Lab, number: int) -> None:
    random = Random(f"{os.environ['HYPOTHESIS_SEED']}/{number}")
    # The first is as large as they come, and every other one is full of ties.
    part = 1.0 if number == 0 else random.uniform(0.05, 1.0)
    accounts, users = round(ACCOUNTS * part), round(USERS * part)
    tree = grow(random, f"t{number}", accounts, users, ties=number % 2 == 1)

    theirs = tree.theirs(tree_lab)

    assert len(theirs) == users + 1
    assert tree.ours() == theirs


def test_a_tied_account_begins_with_the_rank_before_it(tree_lab: Lab) -> None:
    used = {"b0": [1, 1], "b1": [2, 1, 1], "b2": [0], "b3": [0, 0]}
    users = {
        Association(account, f"u{number}"): (1, usage)
        for account, usages in used.items()
        for number, usage in enumerate(usages)
    }
    tree = Tree({account: ("root", 1) for account in used}, {ROOT: (1, 0)} | users)

    theirs = tree.theirs(tree_lab)

    rank = {who: round(float(factor) * 9) for who, factor in theirs.items()}
    # root, b2 and b3 used nothing; b1 begins with the rank that b0 ended on, or the other way.
    assert [rank[ROOT], *(rank[who] for who in users)][-3:] == [9, 9, 9]
    assert tree.ours() == theirs


def test_what_is_a_tie_on_paper_only_is_none_in_slurm(tree_lab: Lab) -> None:
    """1/5 of the shares with 1/8 of the usage and 3/5 with 3/8 are one level, but not to Slurm.

    Its share is rounded before it is divided, so the last bit of 3/5 ranks two users as if one
    were better off. Rollcall takes levels as tied that are equal to 40 digits (binary).
    """
    one, three, rest = (Association("c0", name) for name in ("one", "three", "rest"))
    tree = Tree(
        {"c0": ("root", 1)},
        {ROOT: (1, 0), one: (1, 1_000), three: (3, 3_000), rest: (1, 4_000)},
    )

    theirs, ours = tree.theirs(tree_lab), tree.ours()

    assert ours[one] == ours[three] == "0.750000"
    assert sorted([theirs[one], theirs[three]]) == ["0.500000", "0.750000"]
    assert ours[rest] == theirs[rest] == "0.250000"
