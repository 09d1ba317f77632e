"""What needs somebody: gangs that wait, GPUs held idle, evictions, clusters that do not answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode

from apps.backends.models import Cluster
from apps.common import show
from apps.common.time import HOUR_US, from_us
from apps.console import ranges
from apps.console.eviction_alarms import exceeded_alerts, recent, thrash_alerts
from apps.console.marks import Alert
from apps.console.stamps import state_of
from apps.console.units import gpus_text
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.reports import Amount
from apps.ledger.selectors import Prices, observed_until
from apps.tenants.selectors import top_name

if TYPE_CHECKING:
    from apps.console.views_overview import OverviewPage

IDLE_FOR = timedelta(minutes=30)


def alarms_of(page: OverviewPage) -> list[Alert]:
    """Return the alarms of a page's scope that concern its reader, the worst first."""
    own = [one for one in page.held if page.viewer.sees(_tenant_of(one))]
    clusters = {cluster.pk: cluster for cluster in page.scope.clusters}
    evictions = recent(page.viewer, page.scope.clusters, [pool.pk for pool in page.scope.pools])
    return [
        *silent(page.scope.clusters, timezone.now()),
        *gathering(own, clusters, page.prices, money=page.money),
        *thrash_alerts(evictions, page.scope.clusters),
        *exceeded_alerts(evictions, money=page.money),
        *held_idle(own, clusters, page.prices, money=page.money),
    ]


def _tenant_of(one: Interval):  # type: ignore[no-untyped-def]  # a tenant, whichever row names it
    return one.job.tenant if one.job is not None else one.tenant


def silent(clusters: Iterable[Cluster], wall: datetime) -> list[Alert]:
    """Return a sentence per cluster that does not answer, or whose tick failed."""
    alerts = []
    for cluster in clusters:
        state, silence = state_of(cluster, wall)
        if state in ("late", "lost") and silence is not None and cluster.observed_at is not None:
            at = show.instant(cluster.observed_at, now=wall, style="seconds")
            since = show.duration(silence)
            text = f"{cluster.name} has not reported for {since}. Its figures are as of {at}."
            alerts.append(Alert("bad" if state == "lost" else "warn", text))
        elif cluster.trouble:
            alerts.append(Alert("warn", f"{cluster.name}: {show.cut(cluster.trouble, 200)}"))
    return alerts


def gathering(
    held: Iterable[Interval], clusters: dict[int, Cluster], prices: Prices, *, money: bool
) -> list[Alert]:
    """Return a sentence per gang that holds GPUs and cannot start yet, the costliest first."""
    by_job: dict[int, list[Interval]] = defaultdict(list)
    for one in held:
        if one.kind == IntervalKind.HOLD and one.job_id is not None:
            by_job[one.job_id].append(one)
    found = []
    for rows in by_job.values():
        now_us = observed_until(clusters[rows[0].cluster_id])
        so_far, rate = Amount(), Amount()
        for row in rows:
            end = now_us if row.end_us is None else row.end_us
            so_far += prices.amount(row.pool_id, row.gpus, row.start_us, end)
            if row.end_us is None:
                rate += prices.amount(row.pool_id, row.gpus, now_us, now_us + HOUR_US)
        if not rate.gpu_hours:
            continue
        found.append((so_far.gpu_hours, _gang_words(rows, now_us, so_far, rate, money=money)))
    return [alert for _, alert in sorted(found, key=lambda pair: -pair[0])]


def _gang_words(
    rows: list[Interval], now_us: int, so_far: Amount, rate: Amount, *, money: bool
) -> Alert:
    job, reservation = rows[0].job, rows[0].reservation
    assert job is not None  # noqa: S101  grouped by it
    since = min(row.start_us for row in rows)
    now = from_us(now_us)
    waited = show.duration(max(0, now_us - since) // 1_000_000)
    gpus = sum(row.gpus for row in rows if row.end_us is None)
    head = f"holds {gpus} of {show.counted(job.gpus, rows[0].pool.unit)} and has waited {waited} to be whole"
    tail = ""
    if reservation is not None and reservation.timeout_seconds:
        at = reservation.since + timedelta(seconds=reservation.timeout_seconds)
        tail = f" Times out at {show.instant(at, now=now, style='seconds')}."
    name = show.cut(show.spoken(job.name))
    if money and so_far.has_money:
        text = format_html(
            "<bdi>{}</bdi> {}: <b>{} so far</b>, {} an hour.{}",
            name, head, show.money(so_far.money), show.money(rate.money), tail,
        )  # fmt: skip
    else:
        text = format_html("<bdi>{}</bdi> {}.{}", name, head, tail)
    return Alert("warn", text, reverse("console:job-waterfall", args=[job.pk]), "waterfall")


def held_idle(
    held: Iterable[Interval], clusters: dict[int, Cluster], prices: Prices, *, money: bool
) -> list[Alert]:
    """Return a sentence per top-level tenant and cluster with GPUs held idle for half an hour."""
    gpus: dict[tuple[str, int], Fraction] = defaultdict(Fraction)
    rates: dict[tuple[str, int], Amount] = defaultdict(Amount)
    for one in held:
        now_us = observed_until(clusters[one.cluster_id])
        long = from_us(now_us) - IDLE_FOR >= from_us(one.start_us)
        if one.kind != IntervalKind.MARK or one.tenant is None or not long:
            continue
        key = (top_name(one.tenant.path), one.cluster_id)
        gpus[key] += one.gpus * prices.fractions[one.pool_id]
        rates[key] += prices.amount(one.pool_id, one.gpus, now_us, now_us + HOUR_US)
    found = []
    for key, count in sorted(gpus.items(), key=lambda item: (-item[1], item[0])):
        tenant, cluster_id = key
        rate = rates[key]
        cluster = clusters[cluster_id].name
        day = ranges.day_of(observed_until(clusters[cluster_id]), show.zone())
        today = {"cluster": cluster, "range": "day", "from": str(day)}
        units, verb = ("GPU", "has") if count == 1 else ("GPUs", "have")
        text = f"{gpus_text(count)} {units} of {tenant} on {cluster} {verb} been held but idle for more than 30 min"
        words = (
            format_html("{}: <b>{} an hour</b>.", text, show.money(rate.money))
            if money and rate.has_money
            else f"{text}."
        )
        found.append(
            Alert(
                "warn",
                words,
                f"{reverse('console:idle')}?{urlencode(today)}#longest",
                "idle cost",
            )
        )
    return found
