"""Read evictions: whose each was, what it lost, and what may be told of it to whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet

from apps.backends.models import Cluster, Pool
from apps.common.money import MICROS, gpu_hours_of
from apps.jobs.models import Eviction, Job
from apps.jobs.selectors import told_of
from apps.jobs.states import EvictionOutcome
from apps.tenants.models import Tenant
from apps.tenants.selectors import Sight, in_subtree, sight_of, top_name

LEAVING = "leaving"
"""The outcome of one that goes on, as filters and exports spell it."""
OUTCOMES = (LEAVING, *(outcome.value for outcome in EvictionOutcome))
SIDES = ("victim", "beneficiary")
HOUR = timedelta(hours=1)


def either_side(sight: Sight) -> Q:
    """Return the condition for evictions with a side in a subtree that is seen in full."""
    if sight.admin:
        return Q()
    return sight.condition("job__tenant__") | sight.condition("beneficiary__tenant__")


def evictions_visible_to(user: Any) -> QuerySet[Eviction]:
    """Return the evictions a user may see: those in which a job of theirs left, or gained."""
    return Eviction.objects.filter(either_side(sight_of(user)))


def of_tenant(path: str) -> Q:
    """Return the condition for evictions with a side at or below a tenant."""
    return in_subtree(path, "job__tenant__") | in_subtree(path, "beneficiary__tenant__")


def of_outcome(outcome: str) -> Q:
    """Return the condition for one of ``OUTCOMES``."""
    return Q(ended_at__isnull=True) if outcome == LEAVING else Q(outcome=outcome)


def with_sides(rows: QuerySet[Eviction]) -> QuerySet[Eviction]:
    """Return the rows with all a line about each shows, in one query."""
    return rows.select_related(
        "cluster", "attempt", "job__tenant", "job__pool", "beneficiary__tenant"
    )


def within(clusters: Iterable[Cluster], length: timedelta) -> Q:
    """Return the condition for evictions no longer ago than ``length``, by each cluster's clock."""
    condition = Q(pk__in=())
    for cluster in clusters:
        condition |= Q(cluster=cluster, at__gt=cluster.now() - length)
    return condition


# What was lost -----------------------------------------------------------------------------------


def fraction_of(pool: Pool) -> Fraction:
    """Return what one unit of a pool is of a physical GPU."""
    return Fraction(pool.fraction_numerator, pool.fraction_denominator)


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost work: exact GPU-hours of physical GPUs, and their price; None: no price was in force."""

    gpu_hours: Fraction
    money: Fraction | None


def loss_of(eviction: Eviction) -> Loss | None:
    """Return what an eviction lost; None: not known yet. ``job.pool`` is loaded."""
    if eviction.lost_gpu_us is None:
        return None
    money = eviction.lost_micros
    return Loss(
        gpu_hours_of(eviction.lost_gpu_us, fraction_of(eviction.job.pool)),
        None if money is None else Fraction(money, MICROS),
    )


def lost_seconds(eviction: Eviction) -> int:
    """Return the stretch of work that was lost, by each of the members that left."""
    return (eviction.lost_gpu_us or 0) // max(1, eviction.gpus) // 1_000_000


# Who stood where ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stood:
    """Where the tenant of one side stood at the decision; None: not written down.

    ``before`` and ``after`` are the GPUs it held in the pool; ``level`` None: no usage, or weight 0.
    """

    tenant_id: int
    share: float | None
    usage_share: float | None
    level: float | None
    guarantee: int | None
    ceiling: int | None
    entitlement: int | None
    before: int | None
    after: int | None
    borrowed: int | None
    over_quota: int | None


def stood(eviction: Eviction, side: str) -> Stood | None:
    """Return where the tenant of one of ``SIDES`` stood."""
    told: Mapping[str, Any] | None = eviction.standings.get(side)
    if not told or told.get("tenant") is None:
        return None
    pool = told.get("pool") or {}
    after = told.get("after") or {}
    return Stood(
        tenant_id=told["tenant"],
        share=told.get("share"),
        usage_share=told.get("usage_share"),
        level=told.get("level"),
        guarantee=pool.get("guarantee"),
        ceiling=pool.get("ceiling"),
        entitlement=pool.get("entitlement"),
        before=pool.get("used"),
        after=after.get("used"),
        borrowed=pool.get("borrowed"),
        over_quota=pool.get("over_quota"),
    )


def tenants_in(evictions: Iterable[Eviction]) -> dict[int, str]:
    """Return the paths of the tenants whose standings are written on evictions; one query."""
    ids = {side.tenant_id for one in evictions for name in SIDES if (side := stood(one, name))}
    return paths_of(ids)


def paths_of(ids: Iterable[int]) -> dict[int, str]:
    """Return tenant id → path; one query, none for none."""
    wanted = set(ids)
    if not wanted:
        return {}
    return dict(Tenant.objects.filter(pk__in=wanted).values_list("pk", "path"))


def team_told(sight: Sight, path: str) -> str:
    """Return what may be told of a tenant: its path, or the team at the top it belongs to."""
    if settings.OTHER_TENANTS == "named" or sight.covers(path):
        return path
    if settings.OTHER_TENANTS != "size":
        return "another tenant"
    top = top_name(path)
    return top if top == path else f"a team of {top}"


# Who was considered ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running job that was looked at, in its place; ``name`` is what may be told of it."""

    place: int
    job: Job | None  # None: another tenant's, or gone
    name: str
    gpus: int
    lost: Fraction | None  # GPU-hours, were it killed at the decision
    passed: str


def candidates_of(eviction: Eviction, sight: Sight) -> list[Candidate]:
    """Return who was considered, in order, as somebody with this sight may know them; one query."""
    told: Sequence[Mapping[str, Any]] = eviction.considered
    ids = {row["job"] for row in told}
    jobs = Job.objects.select_related("tenant").in_bulk(ids) if ids else {}
    fraction = fraction_of(eviction.job.pool)
    found = []
    for place, row in enumerate(told, start=1):
        job = jobs.get(row["job"])
        lost = row.get("lost_gpu_us")
        found.append(
            Candidate(
                place,
                job if job is not None and sight.covers(job.tenant.path) else None,
                "a job that is gone" if job is None else told_of(sight, job),
                row["gpus"],
                None if lost is None else gpu_hours_of(lost, fraction),
                row["passed"],
            )
        )
    return found


# Left alone --------------------------------------------------------------------------------------


def left_alone_until(times: Iterable[datetime], thrash_after: int) -> datetime | None:
    """Return until when a job evicted at these times is left alone; None: it is not.

    Fewer than ``thrash_after`` of them must lie within an hour; 0: it never is.
    """
    sorted_times = sorted(times)
    if thrash_after < 1 or len(sorted_times) < thrash_after:
        return None
    return sorted_times[-thrash_after] + HOUR
