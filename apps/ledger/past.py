"""Write down what was before a cluster's first look: closed intervals, all at once.

Needs the cluster's row locked by the caller's transaction: a tick writes nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from django.db.models import F, Q

from apps.backends.models import Cluster, NodeState
from apps.common.time import to_us
from apps.ledger import sql
from apps.ledger.intervals import UNKNOWN
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.rollup import lower_mark
from apps.ledger.usage import Span, book_past

COLUMNS = (*sql.INTERVAL_COLUMNS, "end_us")


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that is over: so many GPUs on the node of each member."""

    pool_id: int
    tenant_id: int
    job_id: int
    attempt_id: int
    gpus_per_member: int
    usage_factor: float
    start_us: int
    end_us: int
    members: Sequence[tuple[int, int]]  # rank and node


@dataclass(frozen=True, slots=True)
class Use:
    """How a node was used: the most GPUs at once, the first instant and the last."""

    node_id: int
    pool_id: int
    most: int
    since_us: int
    until_us: int


def add_runs(cluster: Cluster, runs: Sequence[PastRun]) -> None:
    """Write the members of runs; all that they held counts as allocated, utilisation unknown."""
    cluster_id = cluster.pk
    rows: list[tuple[Any, ...]] = []
    spans = []
    for run in runs:
        gpus = len(run.members) * run.gpus_per_member
        rows += [_row(cluster_id, run, node_id=node_id, rank=rank) for rank, node_id in run.members]
        if run.end_us > run.start_us:
            rows.append(_row(cluster_id, run, gpus=gpus))
            weighted = gpus * run.usage_factor
            spans.append(Span(run.tenant_id, run.pool_id, weighted, run.start_us, run.end_us))
    sql.write_many(sql.ADD_PAST, rows)
    book_past(cluster_id, spans)
    # What nobody can see yet is rolled up once it can be (add_capacity).
    known_us = None if cluster.history_from is None else to_us(cluster.history_from)
    shown = [span.start_us for span in spans if known_us is not None and span.end_us > known_us]
    if shown and known_us is not None:
        lower_mark(cluster_id, max(min(shown), known_us))


def _row(
    cluster_id: int,
    run: PastRun,
    *,
    node_id: int | None = None,
    rank: int | None = None,
    gpus: int | None = None,
) -> tuple[Any, ...]:
    """Return a member of a run, or with ``gpus`` the mark on all of them."""
    return (
        cluster_id, run.pool_id,
        IntervalKind.MEMBER.value if gpus is None else IntervalKind.MARK.value,
        "" if gpus is None else UNKNOWN,
        node_id, run.tenant_id, run.job_id, run.attempt_id, rank,
        run.gpus_per_member if gpus is None else gpus,
        run.start_us, run.usage_factor if gpus is None else 1.0, False, False, run.end_us,
    )  # fmt: skip


def begin_earlier(cluster: Cluster, *, first_look_us: int) -> int:
    """Give what ran at the first look the time before it; return how many runs that were.

    Their members are open since the first look, as nothing before it was known then.
    """
    seen = Interval.objects.filter(
        cluster=cluster,
        kind=IntervalKind.MEMBER,
        start_us=first_look_us,
        attempt__started_at__isnull=False,
    ).order_by("attempt_id", "rank")
    known = set(
        Interval.objects.filter(
            cluster=cluster, kind=IntervalKind.MEMBER, end_us=first_look_us
        ).values_list("attempt_id", "rank")
    )
    columns = (
        "attempt_id", "rank", "node_id", "pool_id", "tenant_id", "job_id", "gpus", "usage_factor",
        "attempt__started_at",
    )  # fmt: skip
    runs = []
    for attempt_id, rows in groupby(seen.values_list(*columns), key=itemgetter(0)):
        members = [row for row in rows if row[:2] not in known]
        if not members:
            continue
        _, _, _, pool_id, tenant_id, job_id, gpus, factor, started_at = members[0]
        start_us = to_us(started_at)
        if start_us < first_look_us:
            runs.append(
                PastRun(
                    pool_id, tenant_id, job_id, attempt_id, gpus, factor, start_us, first_look_us,
                    [(row[1], row[2]) for row in members],
                )
            )  # fmt: skip
    add_runs(cluster, runs)
    return len(runs)


def add_capacity(cluster: Cluster, uses: Iterable[Use], *, since_us: int, until_us: int) -> None:
    """Write down nodes for a time in which nobody looked at them, marked as assumed.

    ``uses`` are those of the time by ``uses_of``, which takes long and needs no lock.

    Nodes that were there at ``until_us`` are taken to have been there, and up, since
    ``since_us``; others from the first to the last of what ran on them. Each has the GPUs it had
    at ``until_us``, or as many as were in use on it at once, if that is more.
    """
    there: dict[int, tuple[int, int]] = {
        node_id: (pool_id, gpus)
        for node_id, pool_id, gpus in Interval.objects.filter(
            Q(end_us__gt=until_us) | Q(end_us__isnull=True),
            cluster=cluster,
            kind=IntervalKind.NODE,
            start_us__lte=until_us,
        ).values_list("node_id", "pool_id", "gpus")
    }
    rows = []
    for use in uses:
        pool_id, gpus = there.pop(use.node_id, (use.pool_id, None))
        since, until = (use.since_us, use.until_us) if gpus is None else (since_us, until_us)
        most = max(use.most, gpus or 0)
        rows.append(_node(cluster.pk, pool_id, use.node_id, most, since, until))
    for node_id, (pool_id, gpus) in there.items():
        rows.append(_node(cluster.pk, pool_id, node_id, gpus, since_us, until_us))
    sql.write_many(sql.ADD_PAST, rows)
    lower_mark(cluster.pk, since_us)


def _node(
    cluster_id: int, pool_id: int, node_id: int, gpus: int, since_us: int, until_us: int
) -> tuple[Any, ...]:
    return (
        cluster_id, pool_id, IntervalKind.NODE.value, NodeState.UP.value, node_id, None, None, None,
        None, gpus, since_us, 1.0, False, True, until_us,
    )  # fmt: skip


def uses_of(cluster: Cluster, *, since_us: int, until_us: int) -> Iterator[Use]:
    """Yield how each node was used within a range; a node at a time is in memory."""
    rows = (
        Interval.objects.filter(
            cluster=cluster,
            kind=IntervalKind.MEMBER,
            start_us__lt=until_us,
            end_us__gt=since_us,
            end_us__gte=F("start_us") + 1,
            node__isnull=False,
        )
        .order_by("node_id")
        .values_list("node_id", "pool_id", "gpus", "start_us", "end_us")
        .iterator(chunk_size=5_000)
    )
    for node_id, of_node in groupby(rows, key=itemgetter(0)):
        table = np.array([row[1:] for row in of_node], dtype=np.int64)
        start = np.maximum(table[:, 2], since_us)
        end = np.minimum(table[:, 3], until_us)
        at = np.concatenate([start, end])
        step = np.concatenate([table[:, 1], -table[:, 1]])
        # What ends goes before what starts at the same instant.
        most = np.cumsum(step[np.lexsort((step, at))]).max()
        yield Use(node_id, int(table[0, 0]), int(most), int(start.min()), int(end.max()))
