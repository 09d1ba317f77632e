"""What the form of a quota says: what changes, what that writes to a cluster, and what it was before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from apps.audit.models import Entry
from apps.backends.models import Cluster, Pool
from apps.common import show
from apps.quotas.models import AccountValue, Quota, What
from apps.quotas.selectors import Terms
from apps.tenants.models import Tenant

HISTORY_SHOWN = 10
LABELS = {
    "guarantee": "guarantee",
    "ceiling": "ceiling",
    "quota_weight": "weight on {}",
    "weight": "weight",
}
NONE_OF_IT = {"ceiling": "none", "quota_weight": "the tenant’s own"}
THERE = {
    What.SHARES.value: "Fairshare",
    What.GPUS.value: "GrpTRES=gres/gpu",
    What.GUARANTEE.value: "Description, guarantee of {}",
}
NONE_THERE = {
    What.SHARES.value: "its parent’s",
    What.GPUS.value: "none",
    What.GUARANTEE.value: "none",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A line of before and after."""

    what: str
    before: str
    after: str

    @property
    def differs(self) -> bool:
        """Return whether it is another one afterwards."""
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class Past:
    """A change that was made, for the history."""

    at: datetime
    who: str
    changes: tuple[Change, ...]
    reason: str


def number(value: Any, none: str = "none") -> str:
    """Write a weight, or a count of GPUs."""
    if value is None:
        return none
    places = next((n for n in range(7) if round(value, n) == value), 6)
    return show.decimals(value, places)


def changes_of(before: Terms, after: Terms, pool: Pool) -> list[Change]:
    """Return all that the form has, before and after."""
    old, new = asdict(before), asdict(after)
    return [
        Change(
            label.format(show.cut(pool.name)),
            number(old[field], NONE_OF_IT.get(field, "none")),
            number(new[field], NONE_OF_IT.get(field, "none")),
        )
        for field, label in LABELS.items()
    ]


def changes_words(changes: Iterable[Change]) -> str:
    """Return what differs in a line: ``guarantee 64 → 80, weight 30 → 45``."""
    return ", ".join(f"{one.what} {one.before} → {one.after}" for one in changes if one.differs)


def effect_rows(values: Sequence[AccountValue]) -> list[Change]:
    """Return what would be written to accounts, in the cluster's own terms."""
    rows = []
    for value in values:
        pool = "" if value.pool is None else show.cut(value.pool.name)
        there = THERE[value.what].format(pool)
        none = NONE_THERE[value.what]
        rows.append(
            Change(
                f"{show.cut(value.account.name)}: {there}",
                number(value.seen, none),
                number(value.wanted, none),
            )
        )
    return rows


def effect_words(cluster: Cluster) -> str:
    """Return when it is written there."""
    if cluster.driven:
        return "Written within a minute of saving, then read back; what somebody there changes after that is shown as drift."
    return f"{cluster.name} is in grade {cluster.grade}: it waits until the grade is drive."


def history_of(tenant: Tenant, pool: Pool) -> list[Past]:
    """Return the last changes of a tenant's weight and of its quota in a pool, the newest first."""
    quota = Quota.objects.filter(tenant=tenant, pool=pool).values_list("pk", flat=True).first()
    about = Q(object_kind="tenant", object_id=tenant.pk, verb="weight changed") | Q(
        object_kind="quota", object_id=quota or 0
    )
    found = Entry.objects.filter(about).select_related("actor")[:HISTORY_SHOWN]
    return [_past(entry, pool) for entry in found]


def _past(entry: Entry, pool: Pool) -> Past:
    of_quota = {"weight": LABELS["quota_weight"].format(show.cut(pool.name))}
    labels = of_quota if entry.object_kind == "quota" else {}
    changes = tuple(
        Change(labels.get(field, field), number(before), number(after))
        for field, (before, after) in entry.changes.items()
    )
    who = "Rollcall" if entry.actor is None else str(entry.actor)
    if entry.token_name:
        who = f"{who}, by the token {entry.token_name}"
    return Past(entry.at, who, changes, entry.reason)
