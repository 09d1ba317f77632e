"""A cluster's own accounts beside the tenants they stand for: their numbers, ours, and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from apps.backends.models import Cluster
from apps.backends.port import SeenUser
from apps.quotas.account_users import people_of
from apps.quotas.models import Account, AccountValue, ValueState, What
from apps.scheduling.models import Standing
from apps.tenants.selectors import sight_of

NONE_OF_IT = {
    What.SHARES: "its parent's shares",
    What.GPUS: "no limit of GPUs",
    What.GUARANTEE: "no guarantee noted",
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Where one side sees an account: its part of the shares and the usage of those beside it.

    ``level`` None: infinite, as there is no usage, or not known; ``factor`` is the fair-share factor.
    """

    share: float | None = None
    usage_share: float | None = None
    level: float | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A value of an account: theirs, ours, and how these stand to each other.

    Its shares, its limit of GPUs, or the guarantee noted there of a pool.
    """

    what: str
    pool: str | None
    theirs: int | None
    ours: int | None
    state: str
    since: datetime | None
    sentence: str


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One account, ready to be shown; ``difference`` is ours less theirs, None where one is unknown."""

    name: str
    parent: str
    depth: int
    tenant: str | None
    users: int
    people: tuple[SeenUser, ...]
    seen_at: datetime
    raw_usage: float | None
    state: str
    theirs: Numbers
    ours: Numbers
    difference: Numbers
    values: tuple[ValueRow, ...]

    @property
    def people_left(self) -> int:
        """Return how many of its users, those with the least usage, are not among ``people``."""
        return self.users - len(self.people)


WHATS = [what.value for what in What]
WORST = (
    ValueState.DRIFTED, ValueState.REFUSED, ValueState.WAITING, ValueState.IN_STEP, ValueState.TAKEN,
)  # fmt: skip


def accounts_visible_to(user: Any, cluster: Cluster) -> QuerySet[Account]:
    """Return the accounts that a cluster has now, by name: an admin's all, others' their tenants'."""
    rows = Account.objects.filter(cluster=cluster, gone_at__isnull=True).order_by("name")
    sight = sight_of(user)
    if sight.admin:
        return rows
    return rows.filter(sight.condition("tenant__"), tenant__isnull=False)


def account_rows(cluster: Cluster, accounts: Iterable[Account]) -> list[AccountRow]:
    """Return accounts of a cluster with our numbers beside theirs, parents first; five queries."""
    found = list(accounts)
    parents = dict(Account.objects.filter(cluster=cluster).values_list("name", "parent"))
    values: dict[int, list[AccountValue]] = {account.pk: [] for account in found}
    for value in AccountValue.objects.filter(account__in=found).select_related("pool"):
        values[value.account_id].append(value)
    tenants = {account.tenant_id for account in found if account.tenant_id is not None}
    standings = {
        one.tenant_id: one
        for one in Standing.objects.filter(cluster=cluster, tenant__in=tenants).select_related(
            "tenant"
        )
    }
    paths = dict(
        Account.objects.filter(pk__in=[one.pk for one in found], tenant__isnull=False).values_list(
            "pk", "tenant__path"
        )
    )
    lines = {account.pk: _line(account.name, parents) for account in found}
    return [
        _row(
            cluster, account, values[account.pk], standings.get(account.tenant_id or 0),
            path=paths.get(account.pk), depth=len(lines[account.pk]) - 1,
        )
        for account in sorted(found, key=lambda one: (lines[one.pk], one.pk))
    ]  # fmt: skip


def _row(
    cluster: Cluster,
    account: Account,
    values: Sequence[AccountValue],
    standing: Standing | None,
    *,
    path: str | None,
    depth: int,
) -> AccountRow:
    theirs = Numbers(
        account.norm_shares, account.effective_usage, account.level, account.fair_share
    )
    ours = Numbers()
    if standing is not None:
        ours = Numbers(standing.share, standing.usage_share, standing.level, standing.factor)
    states = {value.state for value in values}
    return AccountRow(
        name=account.name,
        parent=account.parent,
        depth=depth,
        tenant=path,
        users=account.users,
        people=people_of(account.people),
        seen_at=account.seen_at,
        raw_usage=account.raw_usage,
        state=next((state.value for state in WORST if state in states), ValueState.TAKEN.value),
        theirs=theirs,
        ours=ours,
        difference=Numbers(
            _less(ours.share, theirs.share),
            _less(ours.usage_share, theirs.usage_share),
            _less(ours.level, theirs.level),
            _less(ours.factor, theirs.factor),
        ),
        values=tuple(_value(cluster, value) for value in sorted(values, key=_place)),
    )


def _place(value: AccountValue) -> tuple[int, str]:
    """Return where a value stands among those of its account."""
    return WHATS.index(value.what), "" if value.pool is None else value.pool.name


def _less(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs


def _line(name: str, parents: dict[str, str]) -> list[str]:
    """Return the accounts above one and itself, the top first; a ring in what was read has an end."""
    line, above = [name], parents.get(name, "")
    while above and above not in line:
        line.append(above)
        above = parents.get(above, "")
    return line[::-1]


def _value(cluster: Cluster, value: AccountValue) -> ValueRow:
    state = value.state
    since = {
        ValueState.IN_STEP: value.met_at,
        ValueState.DRIFTED: value.drifted_at,
    }.get(state, value.wanted_at)
    return ValueRow(
        what=value.what,
        pool=None if value.pool is None else value.pool.name,
        theirs=value.seen,
        ours=value.wanted if value.is_wanted else None,
        state=state.value,
        since=since,
        sentence=_sentence(cluster, value, state),
    )


def spelled(value: AccountValue, number: int | None) -> str:
    """Return an amount of a value in words."""
    what, of_pool = value.what, "" if value.pool is None else f" for {value.pool.name}"
    if number is None:
        return f"{NONE_OF_IT[What(what)]}{of_pool}"
    if what == What.GUARANTEE:
        return f"a guarantee of {number:,} noted{of_pool}"
    noun = "share" if what == What.SHARES else "GPU"
    most = "at most " if what == What.GPUS else ""
    return f"{most}{number:,} {noun}{'' if number == 1 else 's'}"


def _sentence(cluster: Cluster, value: AccountValue, state: ValueState) -> str:
    """Return in a sentence how a value stands."""
    theirs, ours = spelled(value, value.seen), spelled(value, value.wanted)
    name = cluster.name
    if state == ValueState.TAKEN:
        return f"{name} has {theirs}; nothing else is wanted here."
    if state == ValueState.IN_STEP:
        return f"{name} has {theirs}, as is wanted here."
    if state == ValueState.DRIFTED:
        return f"Somebody changed it on {name}: it has {theirs}; wanted here is {ours}."
    if state == ValueState.REFUSED:
        return f"Wanted is {ours}, {name} has {theirs}: {value.refused}"
    if not cluster.driven:
        return (
            f"Wanted is {ours}, {name} has {theirs}; in grade {cluster.grade} nothing is written."
        )
    return f"Wanted is {ours}, {name} has {theirs}; it is written within a minute."
