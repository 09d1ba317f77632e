"""Where GPU time went: from roll-ups by UTC quarter-hour, and from intervals since the mark.

A sum from roll-ups is the sum from intervals: both come from ``sweep.split``, which is additive.
Everything here is integers; nothing before a cluster's first look is in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import gcd
from typing import Any

import numpy as np
from django.db.models import F, Min, Sum

from apps.backends.models import Cluster
from apps.common.time import DAY_US, QUARTER_US, quarter_of
from apps.ledger import sql
from apps.ledger.models import Interval, Price, RollUp, RollUpMark
from apps.ledger.sweep import CODE_OF, NOBODY, Piece, Rows, split
from apps.ledger.usage import follow_policy

LEAST_QUARTERS = 4
"""Fewer wait for the next call: until then they are summed from intervals."""

MOST_QUARTERS = 7 * 96
"""Quarter-hours one call rolls up at most: a long backlog is worked off over several ticks."""


@dataclass(frozen=True, slots=True)
class Slice:
    """GPU-microseconds, in the pool's unit, of one pool, price, tenant and state.

    ``price_id`` None: no price was in force; ``tenant_id`` None: nobody's.
    """

    pool_id: int
    price_id: int | None
    tenant_id: int | None
    state: str
    gpu_us: int


Key = tuple[int, int | None, int | None, str]
Stretch = tuple[int, int]
Dated = Mapping[int, Sequence[tuple[int, int]]]
"""Prices by pool: the instant each is in force from, ascending, and its id."""


def tally(cluster: Cluster, since_us: int, until_us: int) -> list[Slice]:
    """Return where the GPU time of a half-open range went."""
    return tally_between(cluster, [since_us, until_us])[0]


def tally_between(
    cluster: Cluster, edges: Sequence[int], dated: Dated | None = None
) -> list[list[Slice]]:
    """Return where GPU time went between neighbouring edges, which ascend: one list per bucket.

    ``dated`` are the prices of the cluster's pools, where they are read already.
    """
    dated = _dated(cluster) if dated is None else dated
    while True:
        mark = _mark_of(cluster.pk)
        sums: list[Counter[Key]] = [Counter() for _ in edges[1:]]
        head, tail = _rolled_span(edges, mark)
        if head < tail:
            _add_rolled(sums, cluster, edges, head, tail)
            _add_raw(sums, cluster, edges, [(edges[0], head), (tail, edges[-1])], dated)
        else:
            _add_raw(sums, cluster, edges, [(edges[0], edges[-1])], dated)
        if _mark_of(cluster.pk) == mark:  # else a tick moved it while we read
            return [_slices(counter) for counter in sums]


def tally_raw(
    cluster: Cluster, since_us: int, until_us: int, dated: Dated | None = None
) -> list[Slice]:
    """Return the same as ``tally`` from intervals alone."""
    sums: list[Counter[Key]] = [Counter()]
    dated = _dated(cluster) if dated is None else dated
    _add_raw(sums, cluster, [since_us, until_us], [(since_us, until_us)], dated)
    return _slices(sums[0])


def roll_up(cluster: Cluster, *, until_us: int) -> int:
    """Roll up the whole quarter-hours before ``until_us``, if enough are due; return how many were.

    Runs in the caller's transaction: rows and mark are written together or not at all.
    """
    rolled = _mark_of(cluster.pk)
    if rolled is not None and quarter_of(until_us) < rolled + LEAST_QUARTERS * QUARTER_US:
        return 0
    mark = RollUpMark.objects.select_for_update().filter(cluster=cluster).first()
    if mark is None:
        first = Interval.objects.filter(cluster=cluster).aggregate(at=Min("start_us"))["at"]
        if first is None or first >= until_us:
            return 0
        mark = RollUpMark(cluster=cluster, until_us=quarter_of(first))
    since = mark.until_us
    until = min(quarter_of(until_us), since + MOST_QUARTERS * QUARTER_US)
    if until < since + LEAST_QUARTERS * QUARTER_US:
        return 0
    edges = range(since, until + 1, QUARTER_US)
    sql.write_many(sql.ADD_ROLLUP, _rolled(cluster, edges))
    mark.until_us = until
    mark.save()
    follow_policy(cluster)
    return len(edges) - 1


def lower_mark(cluster_id: int, at_us: int) -> None:
    """Forget the roll-ups that an instant reaches back into; the next ``roll_up`` redoes them."""
    quarter = quarter_of(at_us)
    if sql.write(sql.LOWER_MARK, quarter, cluster_id, quarter):
        RollUp.objects.filter(cluster_id=cluster_id, quarter_us__gte=quarter).delete()


def reprice(price: Price) -> None:
    """Put a price that is new in the table into the roll-ups it is in force for.

    Whole quarter-hours change their price in place; the one it starts in is split anew.
    """
    pool = price.pool
    # A tick that rolls up now has read the prices: wait for it, then change its rows too.
    row = RollUpMark.objects.select_for_update().filter(cluster_id=pool.cluster_id).first()
    mark = 0 if row is None else row.until_us
    after = pool.prices.filter(from_us__gt=price.from_us).order_by("from_us").first()
    rolled = RollUp.objects.filter(pool=pool, quarter_us__gte=quarter_of(price.from_us))
    if after is not None:
        rolled = rolled.filter(quarter_us__lt=after.from_us)
    starts = quarter_of(price.from_us)
    ends = None if after is None else quarter_of(after.from_us)
    rolled.exclude(quarter_us__in=[starts, ends or starts]).update(price=price)
    for quarter in sorted({starts, starts if ends is None else ends}):
        if quarter < mark:
            RollUp.objects.filter(pool=pool, quarter_us=quarter).delete()
            again = _rolled(pool.cluster, [quarter, quarter + QUARTER_US])
            sql.write_many(sql.ADD_ROLLUP, [row for row in again if row[2] == pool.pk])


def _rolled(cluster: Cluster, edges: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the rows of whole quarter-hours, in the columns of ``sql.ADD_ROLLUP``."""
    sums: list[Counter[Key]] = [Counter() for _ in edges[1:]]
    _add_raw(sums, cluster, edges, [(edges[0], edges[-1])], _dated(cluster))
    return [
        (cluster.pk, quarter, *key, gpu_us)
        for quarter, counter in zip(edges, sums, strict=False)
        for key, gpu_us in counter.items()
    ]


def _mark_of(cluster_id: int) -> int | None:
    rows = sql.read(sql.MARK, cluster_id)
    return int(rows[0][0]) if rows else None


def _rolled_span(edges: Sequence[int], mark: int | None) -> tuple[int, int]:
    """Return the quarter-hours between the edges that roll-ups can answer; empty: head >= tail.

    They can where no edge cuts a quarter-hour in two, the outermost edges apart.
    """
    if mark is None or any(edge % QUARTER_US for edge in edges[1:-1]):
        return 0, 0
    return quarter_of(edges[0] + QUARTER_US - 1), min(quarter_of(edges[-1]), mark)


def _add_rolled(
    sums: list[Counter[Key]], cluster: Cluster, edges: Sequence[int], head: int, tail: int
) -> None:
    """Add roll-ups, grouped in SQL by the widest step that every bucket is a multiple of."""
    inner = [head, *(edge for edge in edges[1:-1] if head < edge < tail), tail]
    step = gcd(*(after - before for before, after in pairwise(inner)))
    rows = (
        RollUp.objects.filter(cluster=cluster, quarter_us__gte=head, quarter_us__lt=tail)
        .annotate(from_us=F("quarter_us") - (F("quarter_us") - head) % step)
        .order_by()
        .values_list("from_us", "pool_id", "price_id", "tenant_id", "state")
        .annotate(total=Sum("gpu_us"))
    )
    for from_us, pool_id, price_id, tenant_id, state, total in rows:
        bucket = bisect_right(edges, from_us) - 1
        sums[bucket][pool_id, price_id, tenant_id, state] += int(total)


def _add_raw(
    sums: list[Counter[Key]],
    cluster: Cluster,
    edges: Sequence[int],
    stretches: Sequence[Stretch],
    dated: Dated,
) -> None:
    """Add the intervals of some stretches, a day at a time so that memory stays small."""
    for windows in _days(stretches):
        cuts = _cuts(edges, dated, windows)
        for piece in split(_intervals(cluster, windows), cuts):
            at = cuts[piece.cut]
            sums[bisect_right(edges, at) - 1][_key(piece, dated, at)] += piece.gpu_us


def _days(stretches: Sequence[Stretch]) -> Iterator[list[Stretch]]:
    """Cut stretches into batches of a day in all; one batch is read by one statement."""
    batch: list[Stretch] = []
    room = DAY_US
    for since, until in stretches:
        while since < until:
            to = min(until, since + room)
            batch.append((since, to))
            room -= to - since
            since = to
            if not room:
                yield batch
                batch, room = [], DAY_US
    if batch:
        yield batch


def _cuts(edges: Sequence[int], dated: Dated, windows: Sequence[Stretch]) -> list[int]:
    since, until = windows[0][0], windows[-1][1]
    inner = set(edges) | {from_us for of_pool in dated.values() for from_us, _ in of_pool}
    inner |= {at for window in windows for at in window}
    return [since, *sorted(at for at in inner if since < at < until), until]


def _key(piece: Piece, dated: Dated, at_us: int) -> Key:
    of_pool = dated.get(piece.pool, [])
    which = bisect_right(of_pool, at_us, key=lambda price: price[0]) - 1
    return (
        piece.pool,
        None if which < 0 else of_pool[which][1],
        None if piece.tenant == NOBODY else piece.tenant,
        piece.state,
    )


def _dated(cluster: Cluster) -> Dated:
    """Return the prices of a cluster's pools."""
    prices: dict[int, list[tuple[int, int]]] = {}
    for pool_id, from_us, pk in (
        Price.objects.filter(pool__cluster=cluster)
        .order_by("pool_id", "from_us")
        .values_list("pool_id", "from_us", "pk")
    ):
        prices.setdefault(pool_id, []).append((from_us, pk))
    return prices


def _intervals(cluster: Cluster, windows: Sequence[Stretch]) -> Rows:
    """Read the intervals that overlap windows, clipped to them: one in two windows is two rows."""
    each = [sql.OVERLAPPING.format(number) for number in range(len(windows))]
    params = [(cluster.pk, since, until, cluster.pk, until) for since, until in windows]
    rows = sql.read(" UNION ALL ".join(each), *chain.from_iterable(params))
    columns = zip(*rows, strict=True) if rows else [()] * 9
    pool, kind, state, tenant, gpus, start, end, out, window = columns
    since, until = np.array(windows, dtype=np.int64)[_ints(window)].T
    ends = (at if row is None else row for row, at in zip(end, until.tolist(), strict=True))
    return Rows(
        pool=_ints(pool),
        code=_ints(CODE_OF[key] for key in zip(kind, state, strict=True)),
        tenant=_ints(NOBODY if pk is None else pk for pk in tenant),
        gpus=_ints(gpus),
        start=np.maximum(_ints(start), since),
        end=np.minimum(_ints(ends), until),
        out=np.fromiter(out, dtype=np.bool_),
    )


def _ints(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, dtype=np.int64)


def _slices(sums: Counter[Key]) -> list[Slice]:
    return [
        Slice(*key, gpu_us)
        for key, gpu_us in sorted(
            sums.items(),
            key=lambda item: (item[0][0], item[0][1] or 0, item[0][2] or 0, item[0][3]),
        )
    ]
