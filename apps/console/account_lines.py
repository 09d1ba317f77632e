"""Users of an account, and QOS of a cluster, as lines of the page *Accounts*."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from apps.backends.port import SeenQos, SeenUser
from apps.common import show
from apps.scheduling.account_rows import AccountRow

NOWHERE = "–"
# More is in the API; a page with all of thousands of users would be long to load.
MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class UserLine:
    """A user as a line of their account's table."""

    name: str
    shares: str
    gpus: str
    gpus_per_job: str
    raw_usage: str
    share: str
    usage: str
    factor: str


@dataclass(frozen=True, slots=True)
class UsersTable:
    """The users of an account; ``left`` are those of the least usage, who are not shown."""

    account: str
    count: int
    lines: tuple[UserLine, ...]
    left: int


@dataclass(frozen=True, slots=True)
class QosLine:
    """A QOS as a line of the table."""

    qos: SeenQos
    priority: str
    evicts: str
    how: str
    flags: str
    longest: str


def users_tables(rows: Iterable[AccountRow]) -> list[UsersTable]:
    """Return a table for each account that has users right in it."""
    return [
        UsersTable(
            row.name,
            row.users,
            tuple(_user(one) for one in row.people[:MOST_SHOWN]),
            row.users - len(row.people[:MOST_SHOWN]),
        )
        for row in rows
        if row.people
    ]


def _user(one: SeenUser) -> UserLine:
    return UserLine(
        one.name,
        "parent" if one.shares is None else show.whole(one.shares),
        _whole(one.gpu_limit),
        _whole(one.gpus_per_job),
        _whole(one.raw_usage),
        number(one.norm_shares),
        number(one.effective_usage),
        number(one.fair_share),
    )


def qos_lines(rows: Iterable[SeenQos]) -> list[QosLine]:
    """Return each QOS as the table shows it."""
    return [
        QosLine(
            one,
            show.whole(one.priority),
            ", ".join(one.preempts) or NOWHERE,
            _how(one),
            ", ".join(one.flags) or NOWHERE,
            NOWHERE if one.longest_seconds is None else show.duration(one.longest_seconds),
        )
        for one in rows
    ]


def _how(one: SeenQos) -> str:
    """Return how a job of a QOS is evicted: by its mode, after its grace."""
    mode = "as the cluster has it" if one.preempt_mode == "cluster" else one.preempt_mode
    if not one.grace_seconds:
        return mode
    return f"{mode}, after {show.duration(one.grace_seconds)}"


def _whole(value: float | None) -> str:
    return NOWHERE if value is None else show.whole(value)


def number(value: float | None) -> str:
    """Return a figure with the six digits that sshare prints."""
    return NOWHERE if value is None else show.decimals(value, 6)
