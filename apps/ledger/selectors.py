"""Read the ledger: the five parts of a range, what GPUs do now, what a job cost, prices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import pairwise

from django.db.models import Q

from apps.backends.models import Cluster, Pool
from apps.common.money import MICROS
from apps.common.time import to_us
from apps.jobs.models import Job
from apps.ledger.models import Interval, IntervalKind, Price
from apps.ledger.reports import Amount, Entry, Report, amount_of, entries_of, total_of
from apps.ledger.rollup import tally_between, tally_raw
from apps.ledger.sweep import EXCESS, HELD_IDLE, STATES
from apps.tenants.models import Tenant


def observed_until(cluster: Cluster) -> int:
    """Return the instant up to which a cluster's figures are: its last look, else its clock."""
    return to_us(cluster.observed_at or cluster.now())


class Prices:
    """The dated prices of some pools, read once; money of any stretch of time from them."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self.fractions = {
            pool.pk: Fraction(pool.fraction_numerator, pool.fraction_denominator) for pool in pools
        }
        self._of_pool: defaultdict[int, list[Price]] = defaultdict(list)
        for price in Price.objects.filter(pool__in=list(self.fractions)).order_by("from_us"):
            self._of_pool[price.pool_id].append(price)

    @property
    def micros(self) -> dict[int, int]:
        """Return price id → millionths of the currency per GPU-hour."""
        return {
            price.pk: price.micros_per_gpu_hour
            for prices in self._of_pool.values()
            for price in prices
        }

    @property
    def all(self) -> list[Price]:
        """Return every price, the oldest first."""
        every = (price for prices in self._of_pool.values() for price in prices)
        return sorted(every, key=lambda price: (price.from_us, price.pool_id))

    @property
    def dated(self) -> dict[int, list[tuple[int, int]]]:
        """Return the prices of each pool: the instant each is in force from, and its id."""
        return {
            pool: [(price.from_us, price.pk) for price in prices]
            for pool, prices in self._of_pool.items()
        }

    def at(self, pool_id: int, at_us: int) -> Price | None:
        """Return the price in force at an instant, or None."""
        found = None
        for price in self._of_pool[pool_id]:
            if price.from_us <= at_us:
                found = price
        return found

    def amount(self, pool_id: int, gpus: int, start_us: int, end_us: int) -> Amount:
        """Return the amount of GPUs used over a stretch of time, split where prices change."""
        if end_us <= start_us:
            return Amount()
        changes = [p.from_us for p in self._of_pool[pool_id] if start_us < p.from_us < end_us]
        total = Amount()
        for start, end in pairwise([start_us, *changes, end_us]):
            price = self.at(pool_id, start)
            total += amount_of(
                gpus * (end - start),
                self.fractions[pool_id],
                None if price is None else price.micros_per_gpu_hour,
            )
        return total


def price_at(pool: Pool, at_us: int) -> Price | None:
    """Return the price of a pool in force at an instant, or None."""
    return pool.prices.filter(from_us__lte=at_us).order_by("-from_us").first()


def price_changes(
    clusters: Iterable[Cluster], since_us: int, until_us: int, *, pool: Pool | None = None
) -> list[Price]:
    """Return the prices that came into force inside a range, oldest first: marked in figures."""
    prices = Price.objects.filter(
        pool__cluster__in=list(clusters), from_us__gt=since_us, from_us__lt=until_us
    )
    if pool is not None:
        prices = prices.filter(pool=pool)
    return list(prices.select_related("pool__cluster").order_by("from_us", "pool_id"))


def top_level_of(tenants: Iterable[Tenant]) -> dict[int, int | None]:
    """Return tenant id → id of the tenant at the top of its branch."""
    parents = {tenant.pk: tenant.parent_id for tenant in tenants}
    tops: dict[int, int | None] = {}
    for pk in parents:
        top = pk
        while (parent := parents.get(top)) is not None:
            top = parent
        tops[pk] = top
    return tops


def five_parts(
    clusters: Iterable[Cluster],
    since_us: int,
    until_us: int,
    *,
    pool: Pool | None = None,
    tenants: Iterable[Tenant] | None = None,
    row_of: Mapping[int, int | None] | None = None,
    prices: Prices | None = None,
) -> Report:
    """Return where the GPU time of a half-open range went, as far as it was observed.

    ``tenants`` None: a row per top-level tenant; given: a row for each of them alone, and one row
    for what all others held. The parts are the whole pools' either way. ``row_of`` (tenant id →
    the tenant whose row it is in) and ``prices`` of the clusters' pools may be known already.
    """
    return five_parts_over(
        clusters, [since_us, until_us], pool=pool, tenants=tenants, row_of=row_of, prices=prices
    )[0]


def five_parts_over(
    clusters: Iterable[Cluster],
    edges: Sequence[int],
    *,
    pool: Pool | None = None,
    tenants: Iterable[Tenant] | None = None,
    row_of: Mapping[int, int | None] | None = None,
    prices: Prices | None = None,
) -> tuple[Report, list[list[Entry]]]:
    """Return the report of a range as ``five_parts``, and its entries between neighbouring edges.

    ``report.over_time`` shows those so that they add up to it.
    """
    clusters = list(clusters)
    prices = prices or Prices(Pool.objects.filter(cluster__in=clusters))
    found: list[list[Entry]] = [[] for _ in edges[1:]]
    capacity, assumed, spans = Amount(), Amount(), []
    for cluster in clusters:
        start, end = _observed(cluster, edges[0], edges[-1])
        if end <= start:
            continue
        spans.append((start, end))
        cut = [start, *(edge for edge in edges if start < edge < end), end]
        first = sum(1 for edge in edges if edge <= start) - 1
        for offset, bucket in enumerate(_entries(cluster, cut, pool, prices)):
            found[first + offset] += bucket
        whole, gaps = _capacity(cluster, start, end, pool, prices)
        capacity += whole
        assumed += gaps
    if row_of is None:
        row_of = (
            top_level_of(Tenant.objects.all()) if tenants is None else {t.pk: t.pk for t in tenants}
        )
    report = Report(
        [entry for bucket in found for entry in bucket],
        since_us=min((start for start, _ in spans), default=edges[0]),
        until_us=max((end for _, end in spans), default=edges[0]),
        capacity=capacity,
        assumed=assumed,
        row_of=dict(row_of),
    )
    return report, found


def gpu_time(
    clusters: Iterable[Cluster], since_us: int, until_us: int, *, prices: Prices
) -> list[Entry]:
    """Return where the GPU time of a range went, as far as it was observed: exact, as no report."""
    found: list[Entry] = []
    for cluster in clusters:
        start, end = _observed(cluster, since_us, until_us)
        if start < end:
            found += _entries(cluster, [start, end], None, prices)[0]
    return [entry for entry in found if entry.state != EXCESS]


def buckets(
    clusters: Iterable[Cluster],
    edges: Sequence[int],
    *,
    pool: Pool | None = None,
) -> list[list[Entry]]:
    """Return the entries between neighbouring edges, one list a bucket.

    With the edges of a report's range they add up to it; ``report.over_time`` shows them so.
    """
    return five_parts_over(clusters, edges, pool=pool, row_of={})[1]


@dataclass(frozen=True, slots=True)
class Now:
    """What the GPUs of a pool do at the last look, in the pool's unit."""

    pool: Pool
    gpus: Mapping[str, int]  # by state, in the order of STATES
    price: Price | None

    @property
    def total(self) -> int:
        """Return all of them."""
        return sum(self.gpus.values())

    @property
    def fraction(self) -> Fraction:
        """Return what part of a physical GPU one unit is."""
        return Fraction(self.pool.fraction_numerator, self.pool.fraction_denominator)

    def per_hour(self, state: str | None = None) -> Fraction | None:
        """Return what a state, or all, costs an hour; None: no price."""
        if self.price is None:
            return None
        gpus = self.total if state is None else self.gpus[state]
        return gpus * self.fraction * Fraction(self.price.micros_per_gpu_hour, MICROS)


def gpus_now(
    cluster: Cluster,
    *,
    at_us: int | None = None,
    pools: Sequence[Pool] | None = None,
    prices: Prices | None = None,
) -> list[Now]:
    """Return what the GPUs of each pool do now: at the last look, or at an instant.

    ``pools`` are all of the cluster's, and ``prices`` theirs, where they are read already.
    """
    at = observed_until(cluster) if at_us is None else at_us
    pools = list(cluster.pools.all()) if pools is None else pools
    prices = Prices(pools) if prices is None else prices
    gpus = {pool.pk: dict.fromkeys(STATES, 0) for pool in pools}
    # GPU-microseconds of one microsecond are GPUs.
    for one in tally_raw(cluster, at, at + 1, prices.dated):
        if one.state != EXCESS:
            gpus[one.pool_id][one.state] += one.gpu_us
    return [Now(pool, gpus[pool.pk], prices.at(pool.pk, at)) for pool in pools]


@dataclass(frozen=True, slots=True)
class JobCost:
    """What a job took: ``held_idle`` is a part of ``run``; ``gang_wait`` is beside it."""

    run: Amount
    gang_wait: Amount
    held_idle: Amount
    waits: Mapping[tuple[int, datetime], Amount]  # by reservation: its id and when it began

    @property
    def total(self) -> Amount:
        """Return what it took in all."""
        return self.run + self.gang_wait


def job_cost(job: Job, *, prices: Prices | None = None) -> JobCost:
    """Return what a job took so far: running, waiting to be whole, and held idle."""
    now_us = observed_until(job.cluster)
    prices = prices or Prices([job.pool])
    sums = {"member": Amount(), "hold": Amount(), HELD_IDLE: Amount()}
    waits: defaultdict[tuple[int, datetime], Amount] = defaultdict(Amount)
    columns = (
        "kind",
        "state",
        "gpus",
        "start_us",
        "end_us",
        "reservation_id",
        "reservation__since",
    )
    for kind, state, gpus, start_us, end_us, held_for, since in Interval.objects.filter(
        job=job
    ).values_list(*columns):
        key = state or kind
        if key not in sums:
            continue
        end = max(start_us, now_us) if end_us is None else end_us
        amount = prices.amount(job.pool_id, gpus, start_us, end)
        sums[key] += amount
        if held_for is not None:
            waits[held_for, since] += amount
    return JobCost(sums["member"], sums["hold"], sums[HELD_IDLE], dict(waits))


@dataclass(frozen=True, slots=True)
class HeldIdle:
    """A job that held GPUs without using them, inside a range."""

    job_id: int
    tenant_id: int
    pool_id: int
    since_us: int  # of the first of it
    until_us: int | None  # of the last; None: it still is
    gpus: int  # at most at once, per attempt
    amount: Amount


def held_idle_longest(
    clusters: Iterable[Cluster],
    since_us: int,
    until_us: int,
    *,
    pool: Pool | None = None,
    tenants: Iterable[Tenant] | None = None,
    limit: int = 20,
    prices: Prices | None = None,
) -> list[HeldIdle]:
    """Return the jobs that held GPUs idle, most GPU-hours first."""
    of = {cluster.pk: cluster for cluster in clusters}
    marks = Interval.objects.filter(
        Q(end_us__gt=since_us) | Q(end_us__isnull=True),
        cluster__in=of,
        kind=IntervalKind.MARK,
        state=HELD_IDLE,
        start_us__lt=until_us,
    )
    if pool is not None:
        marks = marks.filter(pool=pool)
    if tenants is not None:
        marks = marks.filter(tenant__in=list(tenants))
    prices = prices or Prices(Pool.objects.filter(cluster__in=of))
    rows: dict[int, HeldIdle] = {}
    for mark in marks.order_by("start_us", "id"):
        start, end = _observed(of[mark.cluster_id], since_us, until_us)
        start, end = max(start, mark.start_us), min(end, mark.end_us or end)
        if end <= start:
            continue
        amount = prices.amount(mark.pool_id, mark.gpus, start, end)
        job_id, known = mark.job_id or 0, rows.get(mark.job_id or 0)
        rows[job_id] = HeldIdle(
            job_id,
            mark.tenant_id or 0,
            mark.pool_id,
            start if known is None else known.since_us,
            mark.end_us,
            mark.gpus if known is None else max(known.gpus, mark.gpus),
            amount if known is None else known.amount + amount,
        )
    worst = sorted(rows.values(), key=lambda row: (-row.amount.gpu_hours, row.job_id))
    return worst[:limit]


def _observed(cluster: Cluster, since_us: int, until_us: int) -> tuple[int, int]:
    """Return what of a range was observed; empty: the end is not after the start."""
    known_from = cluster.known_from
    if known_from is None:
        return since_us, since_us
    return max(since_us, to_us(known_from)), min(until_us, observed_until(cluster))


def _entries(
    cluster: Cluster, edges: Sequence[int], pool: Pool | None, prices: Prices
) -> list[list[Entry]]:
    return [
        entries_of(
            (one for one in slices if pool is None or one.pool_id == pool.pk),
            prices.fractions,
            prices.micros,
        )
        for slices in tally_between(cluster, edges, prices.dated)
    ]


def _capacity(
    cluster: Cluster, since_us: int, until_us: int, pool: Pool | None, prices: Prices
) -> tuple[Amount, Amount]:
    """Return capacity × price × time from node intervals alone, and what of it is assumed."""
    nodes = Interval.objects.filter(
        Q(end_us__gt=since_us) | Q(end_us__isnull=True),
        cluster=cluster,
        kind=IntervalKind.NODE,
        start_us__lt=until_us,
    )
    if pool is not None:
        nodes = nodes.filter(pool=pool)
    # Nodes that came and went together are one line: a cluster has few instants of change.
    spans: defaultdict[tuple[int, int, int, bool], int] = defaultdict(int)
    for pool_id, gpus, start_us, end_us, assumed in nodes.values_list(
        "pool_id", "gpus", "start_us", "end_us", "assumed"
    ):
        end = until_us if end_us is None else min(end_us, until_us)
        spans[pool_id, max(start_us, since_us), end, assumed] += gpus
    amounts = [
        (assumed, prices.amount(pool_id, gpus, start, end))
        for (pool_id, start, end, assumed), gpus in spans.items()
    ]
    return (
        total_of(amount for _, amount in amounts),
        total_of(amount for assumed, amount in amounts if assumed),
    )
