"""The line of jobs as one reader may see it: which rows, in what order, and what each says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from django.conf import settings
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    F,
    IntegerField,
    Min,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from apps.backends.models import Cluster
from apps.common.errors import Invalid
from apps.console.paging import Key
from apps.console.people import Viewer
from apps.console.query import Query
from apps.console.scope import Scope
from apps.console.units import fraction_of
from apps.jobs.models import Job
from apps.jobs.states import HOLDING, TERMINAL, WAITING, JobState
from apps.scheduling.models import Verdict
from apps.tenants.models import Tenant
from apps.tenants.selectors import in_subtree

UNDECIDED = 2**40
"""The place of a job no tick has judged yet: after all others."""

STATES = (
    ("waiting", "waiting"),
    ("pending", "pending"),
    ("reserving", "reserving"),
    ("on_hold", "on hold"),
    ("running", "running"),
    ("leaving", "leaving"),
    ("ended", "ended"),
)
REASONS = (
    "held", "dependency", "begin_time", "paused", "never_fits", "no_nodes", "weightless",
    "guarantee", "leaving", "deferred", "ceiling", "capacity", "placement", "reserved",
    "watched", "elsewhere",
)  # fmt: skip
SORTS = ("priority", "waiting", "gpus")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a queue page was asked for."""

    state: str
    tenant: str | None
    reason: str | None
    size: int | None
    longer: int | None
    sort: str

    @property
    def waits(self) -> bool:
        """Return whether the rows wait: then they have a place, a priority and a reason."""
        return self.state not in {"running", "leaving", "ended"}


def tenants_offered(viewer: Viewer) -> list[str]:
    """Return the tenants a reader may filter by: their own and, where those are told, the tops."""
    condition = viewer.own("")
    if not viewer.is_admin and settings.OTHER_TENANTS == "size":
        condition |= Q(parent__isnull=True)
    elif settings.OTHER_TENANTS == "named":
        condition = Q()
    rows = Tenant.objects.filter(condition, archived_at__isnull=True)
    return list(rows.order_by("path").values_list("path", flat=True))


def read_asked(query: Query, tenants: Sequence[str]) -> Asked:
    """Return what the address asks of the line.

    :raises Invalid: naming the parameter.
    """
    tenant = query.get("tenant")
    if tenant is not None and tenant not in tenants:
        raise Invalid(f"There is no tenant {tenant!r} that you can see.", field="tenant")
    return Asked(
        state=query.one_of("state", [name for name, _ in STATES]) or "waiting",
        tenant=tenant,
        reason=query.one_of("reason", REASONS),
        size=query.whole("size", least=1),
        longer=query.seconds("waiting_longer"),
        sort=query.one_of("sort", SORTS) or "priority",
    )


def in_scope(scope: Scope) -> QuerySet[Job]:
    """Return the jobs of the clusters and the pool a page is about."""
    jobs = Job.objects.filter(cluster__in=[cluster.pk for cluster in scope.clusters])
    if scope.pool is not None:
        jobs = jobs.filter(pool__in=[pool.pk for pool in scope.pools])
    return jobs


def of_state(jobs: QuerySet[Job], state: str) -> QuerySet[Job]:
    """Return the jobs in one of the words of ``STATES``."""
    if state == "running":
        return jobs.filter(state__in=sorted(HOLDING))
    if state == "leaving":
        return jobs.filter(state=JobState.PREEMPTING)
    if state == "ended":
        return jobs.filter(state__in=sorted(TERMINAL))
    jobs = jobs.filter(state__in=sorted(WAITING))
    if state == "pending":
        return jobs.filter(state=JobState.PENDING, held_at__isnull=True)
    if state == "reserving":
        return jobs.filter(state=JobState.RESERVING)
    if state == "on_hold":
        return jobs.filter(held_at__isnull=False)
    return jobs


def rows_of(scope: Scope, viewer: Viewer, asked: Asked) -> QuerySet[Job]:
    """Return the rows asked for, with what a row shows; unordered.

    Of what ended only the reader's own is listed: it is no longer in anybody's way.
    """
    jobs = of_state(in_scope(scope), asked.state)
    if asked.state == "ended":
        jobs = jobs.filter(viewer.own())
    if asked.tenant is not None:
        jobs = jobs.filter(in_subtree(asked.tenant, "tenant__"))
    if asked.reason is not None:
        # Why another team's job waits is not told, and so is no way to find it either.
        jobs = jobs.filter(_told(viewer), verdict__code=asked.reason)
    if asked.size is not None:
        jobs = jobs.filter(size__gte=asked.size)
    if asked.longer is not None:
        jobs = jobs.filter(_told(viewer) & _waiting_longer(scope.clusters, asked.longer))
    jobs = jobs.annotate(
        place=Coalesce(F("verdict__position"), Value(UNDECIDED), output_field=BigIntegerField()),
        mine=_mine(viewer),
        total=F("size") * F("gpus_per_member"),
    )
    return jobs.select_related("tenant__parent", "pool", "verdict", "held_by")


def _told(viewer: Viewer) -> Q:
    return Q() if settings.OTHER_TENANTS == "named" else viewer.own()


def _waiting_longer(clusters: Iterable[Cluster], seconds: int) -> Q:
    """Return the condition, each cluster by its own clock."""
    longer = timedelta(seconds=seconds)
    condition = Q(pk__in=())
    for cluster in clusters:
        try:
            condition |= Q(cluster=cluster, submitted_at__lte=cluster.now() - longer)
        except OverflowError:
            continue
    return condition


def _mine(viewer: Viewer) -> Any:
    """Return the rank that puts a member's own jobs first; leads and admins see the line as it is."""
    if viewer.is_lead:
        return Value(0, output_field=IntegerField())
    return Case(
        When(submitted_by=viewer.user.pk, then=Value(0)),
        When(viewer.own(), then=Value(1)),
        default=Value(2),
        output_field=IntegerField(),
    )


def keys_of(asked: Asked) -> tuple[Key, ...]:
    """Return the order: as the engine sorted, own jobs first for a member, unless asked else."""
    if not asked.waits:
        return (Key("mine"), Key("pk", descending=True))
    if asked.sort == "waiting":
        return (Key("submitted_at", instant=True), Key("pk"))
    if asked.sort == "gpus":
        return (Key("total", descending=True), Key("pk"))
    return (Key("mine"), Key("place"), Key("pk"))


@dataclass(frozen=True, slots=True)
class Totals:
    """How many jobs and physical GPUs; ``capped``: at least so many jobs."""

    jobs: int
    gpus: Fraction = Fraction(0)
    capped: bool = False
    first: int | None = None  # the best place among them


MOST_COUNTED = 10_000


def totals_of(jobs: QuerySet[Job], *, most: int = MOST_COUNTED) -> Totals:
    """Count jobs, but never more than ``most``; one query."""
    rows = jobs.order_by()[: most + 1].count()
    return Totals(min(rows, most), capped=rows > most)


def own_totals(scope: Scope, viewer: Viewer) -> Totals:
    """Count the reader's own jobs that wait, with the place of the first; one query."""
    own = of_state(in_scope(scope), "waiting").filter(viewer.own())
    counted = list(
        own.order_by()
        .values("pool_id")
        .annotate(
            rows=Count("pk"),
            units=Sum(F("size") * F("gpus_per_member")),
            first=Min("verdict__position"),
        )
    )
    fractions = {pool.pk: fraction_of(pool) for pool in scope.all_pools}
    return Totals(
        sum(pool["rows"] for pool in counted),
        sum((pool["units"] * fractions[pool["pool_id"]] for pool in counted), Fraction(0)),
        first=min((p["first"] for p in counted if p["first"] is not None), default=None),
    )


def job_at(scope: Scope, viewer: Viewer, place: int) -> Job | None:
    """Return the reader's own job at a place of the line, with its verdict."""
    own = of_state(in_scope(scope), "waiting").filter(viewer.own(), verdict__position=place)
    return own.select_related("tenant", "verdict").order_by("pk").first()


def verdict_on(job: Job) -> Verdict | None:
    """Return the newest tick's word on a job, loaded with it; None: not judged yet."""
    try:
        return job.verdict
    except Verdict.DoesNotExist:
        return None


def waited(job: Job, now: datetime) -> timedelta:
    """Return how long a job has waited since it was first submitted."""
    return max(timedelta(), now - job.submitted_at)


def tells_all(viewer: Viewer) -> bool:
    """Return whether this reader is told everything of every job."""
    return viewer.is_admin or settings.OTHER_TENANTS == "named"


def is_told(viewer: Viewer, job: Job) -> bool:
    """Return whether more than size, state and place is told of a job; ``job.tenant`` is loaded."""
    return settings.OTHER_TENANTS == "named" or viewer.sees(job.tenant)
