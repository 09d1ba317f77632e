"""Trees of accounts and users: made at random, as Slurm loads them and as the engine gets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from apps.engine.cycle import schedule
from tests.engine.build import snapshot_of
from tests.labs.slurm.accounting import Association
from tests.labs.slurm.lab import Lab

ROOT = Association("root", "root")


@dataclass(frozen=True)
class Tree:
    """``accounts`` are parent and share by name, ``users`` share and usage."""

    accounts: dict[str, tuple[str, int]]
    users: dict[Association, tuple[int, int]]

    def lines(self) -> Iterator[str]:
        """Spell it as sacctmgr loads it; a parent stands before its children."""
        for parent in ("root", *self.accounts):
            yield f"Parent - '{parent}'"
            for name, (above, share) in self.accounts.items():
                if above == parent:
                    yield f"Account - '{name}':Description='d':Organization='o':Fairshare={share}"
            for who, (share, _) in self.users.items():
                if who.account == parent:
                    yield f"User - '{who.user}':Fairshare={share}"

    def tenants(self) -> list[dict[str, Any]]:
        """Spell it as a scenario does: an account is a tenant, a user of one is a leaf of it."""
        inner = [
            {"name": name, "parent": parent, "weight": share}
            for name, (parent, share) in self.accounts.items()
        ]
        leaves = [
            {"name": leaf(who), "parent": who.account, "weight": share, "usage": usage}
            for who, (share, usage) in self.users.items()
        ]
        return inner + leaves

    def ours(self) -> dict[Association, str]:
        """Return the factors that a decision of the engine gives, as sshare would print them."""
        nothing = {"pools": [{"name": "gpu"}], "nodes": [], "tenants": self.tenants()}
        snapshot, policy = snapshot_of(nothing)
        factor = schedule(snapshot, policy).standings.factor.tolist()
        named = dict(zip(snapshot.tenants.name, factor, strict=True))
        return {who: f"{named[leaf(who)]:.6f}" for who in self.users}

    def theirs(self, lab: Lab, *, qos: Iterable[str] = ("normal",)) -> dict[Association, str]:
        """Load it, lay its usage into it, and return the factors that sshare prints."""
        lab.accounting.load(self.lines(), clean=True, qos=qos)
        lab.accounting.seed_usage({who: usage for who, (_, usage) in self.users.items()})
        return factors_of(lab)


def leaf(who: Association) -> str:
    """Return the name of a user's tenant."""
    return f"{who.account}/{who.user}"


def factors_of(lab: Lab) -> dict[Association, str]:
    """Return the FairShare of every user's association, as it is printed."""
    out = lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in out]
    return {Association(row[0], row[1]): row[7] for row in rows if row[1]}


def grow(random: Random, prefix: str, accounts: int, users: int, *, ties: bool) -> Tree:
    """Make a tree of so many accounts, each with a user somewhere below it.

    ``prefix`` is of no other tree in the lab: an account that is made again has its old id, and so
    its old place among those it is tied with.

    Some shares and usages are 0. ``ties``: shares and usages are few powers of two, so that many
    levels are equal, and equal to Slurm's last digit too.
    """
    shares = [0, 1, 1, 1, 2, 2, 4] if ties else [0, *range(1, 101)]
    usages = [0, 1_000, 2_000, 4_000] if ties else [0]
    inner: dict[str, tuple[str, int]] = {}
    for number in range(accounts):
        names = ["root", *inner]
        parent = random.choice(names[-12:] if random.random() < 0.7 else names)
        inner[f"{prefix}a{number}"] = (parent, random.choice(shares))
    outer = [name for name in inner if name not in {parent for parent, _ in inner.values()}]
    leaves = {ROOT: (1, 0)}
    while len(leaves) <= users:
        account = outer.pop() if outer else random.choice(list(inner))
        if not ties:
            usages = [0 if random.random() < 0.1 else random.randrange(1, 10**9)]
        who = Association(account, f"u{random.randrange(users)}")
        leaves[who] = (random.choice(shares), random.choice(usages))
    return Tree(inner, leaves)
