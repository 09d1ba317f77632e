"""Who was asked to give way, as a decision needs to know it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from apps.backends.models import Cluster
from apps.common.prepared import Prepared
from apps.jobs.models import Eviction
from apps.jobs.states import LEAVES, EvictionMode

THRASH_WINDOW = timedelta(hours=1)

OPEN = Prepared(
    lambda cluster_id: (
        Eviction.objects.filter(cluster=cluster_id, ended_at__isnull=True)
        .order_by("id")
        .values_list("attempt_id", "mode", "leave_by", "beneficiary_id", "members")
    )
)
DEMOTED = Prepared(
    lambda cluster_id: (
        Eviction.objects.filter(
            cluster=cluster_id,
            mode=EvictionMode.DEMOTE,
            attempt__ended_at__isnull=True,
            attempt__demoted_at__isnull=False,
        )
        .order_by("id")
        .values_list("attempt_id", "at", "beneficiary_id")
    )
)
RECENT = Prepared(
    lambda cluster_id, since: (
        Eviction.objects.filter(cluster=cluster_id, at__gt=since, mode__in=sorted(LEAVES))
        .order_by()
        .values_list("job_id")
    )
)


@dataclass(frozen=True, slots=True)
class Leaver:
    """What an attempt was asked: to be gone by an instant, for a job; ``shrinking`` 0: whole."""

    until: datetime
    job_id: int
    shrinking: int


@dataclass(frozen=True, slots=True)
class Leavers:
    """By attempt: who leaves, and since when and for whom who is demoted; by job: how often."""

    leaving: dict[int, Leaver] = field(default_factory=dict)
    demoted: dict[int, tuple[datetime, int]] = field(default_factory=dict)
    evictions: Counter[int] = field(default_factory=Counter)


def recent_evictions(cluster: Cluster, now: datetime) -> Counter[int]:
    """Return how often each job was evicted within the hour before ``now``."""
    return Counter(job_id for (job_id,) in RECENT.rows(cluster.pk, now - THRASH_WINDOW))


def leavers_on(cluster: Cluster, *, now: datetime, rule: str) -> Leavers:
    """Return who was asked to give way; with the rule ``none`` only who is still leaving."""
    leaving = {
        attempt_id: Leaver(until, job_id, members if mode == EvictionMode.SHRINK else 0)
        for attempt_id, mode, until, job_id, members in OPEN.rows(cluster.pk)
        if mode != EvictionMode.DEMOTE
    }
    if rule == "none":
        return Leavers(leaving)
    demoted = {pk: (at, job_id) for pk, at, job_id in DEMOTED.rows(cluster.pk)}
    return Leavers(leaving, demoted, recent_evictions(cluster, now))
