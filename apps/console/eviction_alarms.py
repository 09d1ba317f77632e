"""What evictions need somebody's look: jobs evicted again and again, and graces that ran out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from django.db.models import Q
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode

from apps.backends.models import Cluster
from apps.common import show
from apps.common.money import MICROS, gpu_hours_of
from apps.console.marks import Alert
from apps.console.people import Viewer
from apps.jobs.eviction_facts import HOUR, fraction_of, left_alone_until, within
from apps.jobs.models import Eviction, Job
from apps.jobs.states import LEAVES, EvictionOutcome
from apps.ledger.reports import Amount, total_of
from apps.queues.models import ClusterPolicy
from apps.tenants.selectors import top_name

DAY = timedelta(days=1)
MOST = 2_000
"""Rows looked at: a storm of evictions is an alarm long before it is read to its end."""


@dataclass(frozen=True, slots=True)
class Thrash:
    """A job that was evicted so often within the hour that it is left alone."""

    job: Job
    times: int
    until: datetime
    now: datetime

    @property
    def words(self) -> str:
        """Return what happened, from the verb on."""
        until = show.instant(self.until, now=self.now)
        return f"was evicted {show.counted(self.times, 'time')} within an hour. It is left alone until {until}."


def recent(
    viewer: Viewer, clusters: Sequence[Cluster], pools: Iterable[int] | None = None
) -> list[Eviction]:
    """Return the evictions alarms are about: of the last hour, and graces run out in a day; one query.

    Only of the reader's own jobs: what happens to another team's is for that team to mend.
    """
    exceeded = Q(outcome=EvictionOutcome.GRACE_EXCEEDED) & within(clusters, DAY)
    counted = Q(mode__in=sorted(LEAVES)) & within(clusters, HOUR)
    rows = Eviction.objects.filter(exceeded | counted, viewer.own("job__tenant__"))
    if pools is not None:
        rows = rows.filter(job__pool__in=list(pools))
    rows = rows.select_related("job__tenant", "job__pool").defer("considered", "standings")
    return list(rows.order_by("-id")[:MOST])


def thrashing(evictions: Iterable[Eviction], clusters: Iterable[Cluster]) -> list[Thrash]:
    """Return the jobs that are left alone now, most often evicted first."""
    known = {cluster.pk: cluster for cluster in clusters}
    times: dict[int, list[datetime]] = defaultdict(list)
    jobs: dict[int, Job] = {}
    for one in evictions:
        if one.mode in LEAVES and one.at > known[one.cluster_id].now() - HOUR:
            times[one.job_id].append(one.at)
            jobs.setdefault(one.job_id, one.job)
    found = []
    for pk, job in jobs.items():
        cluster = known[job.cluster_id]
        until = left_alone_until(times[pk], _limit(cluster))
        if until is not None:
            found.append(Thrash(job, len(times[pk]), until, cluster.now()))
    return sorted(found, key=lambda one: (-one.times, one.job.pk))


def _limit(cluster: Cluster) -> int:
    try:
        return cluster.policy.thrash_after
    except ClusterPolicy.DoesNotExist:
        return ClusterPolicy().thrash_after


def thrash_alerts(evictions: Iterable[Eviction], clusters: Iterable[Cluster]) -> list[Alert]:
    """Return a sentence per job that is left alone."""
    found = []
    for one in thrashing(evictions, clusters):
        name = show.cut(show.spoken(one.job.name))
        text = format_html("<bdi>{}</bdi> {}", name, one.words)
        found.append(Alert("warn", text, _url({"job": str(one.job.pk)}), "evictions"))
    return found


def exceeded_alerts(evictions: Iterable[Eviction], *, money: bool) -> list[Alert]:
    """Return a sentence per team at the top whose jobs ran out of their grace, the costliest first."""
    by_team: dict[str, list[Eviction]] = defaultdict(list)
    for one in evictions:
        if one.outcome == EvictionOutcome.GRACE_EXCEEDED:
            by_team[top_name(one.job.tenant.path)].append(one)
    found = []
    for team, rows in by_team.items():
        lost = total_of(map(_amount, rows))
        found.append((lost.gpu_hours, _exceeded(team, rows, lost, money=money)))
    return [alert for _, alert in sorted(found, key=lambda pair: -pair[0])]


def _amount(eviction: Eviction) -> Amount:
    hours = gpu_hours_of(eviction.lost_gpu_us or 0, fraction_of(eviction.job.pool))
    if eviction.lost_micros is None:
        return Amount(hours, unpriced=hours)
    return Amount(hours, Fraction(eviction.lost_micros, MICROS))


def _exceeded(team: str, rows: Sequence[Eviction], lost: Amount, *, money: bool) -> Alert:
    jobs = {one.job_id for one in rows}
    whom = f"{show.counted(len(jobs), 'job')} of {show.cut(team)}"
    if len(jobs) == 1:
        whom = show.cut(show.spoken(rows[0].job.name))
    often = "" if len(rows) == len(jobs) else f", {show.whole(len(rows))} times"
    cost = show.gpu_hours(lost.gpu_hours)
    if money and lost.has_money:
        cost += f", {show.money(lost.money)}"
    text = format_html(
        "Grace ran out before a checkpoint of <bdi>{}</bdi> in 24 h{}: <b>{}</b> of work lost.",
        whom, often, cost,
    )  # fmt: skip
    link = {"outcome": EvictionOutcome.GRACE_EXCEEDED.value, "range": "24h"}
    return Alert("warn", text, _url(link), "evictions")


def _url(query: dict[str, str]) -> str:
    return f"{reverse('console:evictions')}?{urlencode(query)}"
