"""Gangs that waited to be whole: what each held, from when to when, and what that cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from django.db.models import Q

from apps.backends.models import Cluster, Pool
from apps.common.time import to_us
from apps.jobs.models import Job, Reservation
from apps.jobs.states import ReservationOutcome
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.reports import Amount
from apps.ledger.selectors import Prices, observed_until
from apps.tenants.models import Tenant

WAITING = "waiting"
"""The outcome of a reservation that still waits, in words of this module."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A member's GPUs held on one node; ``end_us`` None: they still are."""

    rank: int
    node_id: int
    node: str
    start_us: int
    end_us: int | None


@dataclass(frozen=True, slots=True)
class HoldRow:
    """An open hold."""

    reservation_id: int
    job_id: int
    rank: int
    node_id: int
    start_us: int


@dataclass(frozen=True, slots=True)
class GangWait:
    """One reservation: who waited, with what, how it ended and what it cost."""

    reservation: Reservation
    job: Job
    holds: tuple[Hold, ...]  # by rank, then start
    pending_ranks: tuple[int, ...]  # members that hold, or held at the end, nothing
    until_us: int  # its end, or the last look
    gpu_us: int  # in the pool's unit
    amount: Amount  # of the whole wait
    in_range: Amount  # of what lies inside the range asked for

    @property
    def outcome(self) -> str:
        """Return started, timed_out, released, cancelled or waiting."""
        return self.reservation.outcome or WAITING

    @property
    def since_us(self) -> int:
        """Return the instant the first GPU was held."""
        first = min((hold.start_us for hold in self.holds), default=None)
        return to_us(self.reservation.since) if first is None else first

    @property
    def started_us(self) -> int | None:
        """Return the instant the whole gang could start, or None."""
        return self.until_us if self.outcome == ReservationOutcome.STARTED else None

    @property
    def timeout_us(self) -> int | None:
        """Return the instant it gives up at, or None."""
        seconds = self.reservation.timeout_seconds
        return None if seconds is None else self.since_us + seconds * 1_000_000


def open_hold_rows(cluster: Cluster) -> list[HoldRow]:
    """Return what is held on a cluster now, by reservation and rank."""
    rows = Interval.objects.filter(cluster=cluster, kind=IntervalKind.HOLD, end_us__isnull=True)
    return [
        HoldRow(reservation_id or 0, job_id or 0, rank or 0, node_id or 0, start_us)
        for reservation_id, job_id, rank, node_id, start_us in rows.order_by(
            "reservation_id", "rank"
        ).values_list("reservation_id", "job_id", "rank", "node_id", "start_us")
    ]


def gang_waits(
    clusters: Iterable[Cluster],
    since_us: int,
    until_us: int,
    *,
    pool: Pool | None = None,
    tenants: Iterable[Tenant] | None = None,
    visible: Q | None = None,
    outcome: str | None = None,
    job: Job | None = None,
    prices: Prices | None = None,
) -> list[GangWait]:
    """Return the reservations that held something inside a range, costliest first.

    ``outcome`` may also be "waiting"; ``visible`` is a condition on ``job__tenant``.
    """
    of = {cluster.pk: cluster for cluster in clusters}
    touching = Interval.objects.filter(
        Q(end_us__gt=since_us) | Q(end_us__isnull=True),
        cluster__in=of,
        kind=IntervalKind.HOLD,
        start_us__lt=until_us,
    )
    wanted = Reservation.objects.filter(pk__in=touching.values("reservation_id"))
    if pool is not None:
        wanted = wanted.filter(job__pool=pool)
    if tenants is not None:
        wanted = wanted.filter(job__tenant__in=list(tenants))
    if visible is not None:
        wanted = wanted.filter(visible)
    if outcome is not None:
        wanted = wanted.filter(outcome="" if outcome == WAITING else outcome)
    if job is not None:
        wanted = wanted.filter(job=job)
    reservations = {
        row.pk: row for row in wanted.select_related("job__tenant", "job__pool", "job__cluster")
    }
    prices = prices or Prices(Pool.objects.filter(cluster__in=of))
    holds = Interval.objects.filter(
        reservation__in=wanted.order_by().values("pk"), kind=IntervalKind.HOLD
    ).order_by("reservation_id", "rank", "start_us", "id")
    waits = [
        _wait(
            reservations[pk or 0],
            list(rows),
            prices,
            observed_until(of[reservations[pk or 0].job.cluster_id]),
            (since_us, until_us),
        )
        for pk, rows in groupby(holds.select_related("node"), lambda row: row.reservation_id)
        if pk in reservations
    ]
    return sorted(
        waits,
        key=lambda wait: (-wait.in_range.money, -wait.in_range.gpu_hours, wait.reservation.pk),
    )


def _wait(
    reservation: Reservation,
    rows: list[Interval],
    prices: Prices,
    now_us: int,
    within: tuple[int, int],
) -> GangWait:
    job = reservation.job
    ended = reservation.ended_at
    until = now_us if ended is None else to_us(ended)
    gpu_us, amount, inside = 0, Amount(), Amount()
    for row in rows:
        end = max(row.start_us, now_us) if row.end_us is None else row.end_us
        gpu_us += row.gpus * (end - row.start_us)
        amount += prices.amount(row.pool_id, row.gpus, row.start_us, end)
        inside += prices.amount(
            row.pool_id, row.gpus, max(row.start_us, within[0]), min(end, within[1], now_us)
        )
    held = {row.rank for row in rows if row.end_us is None or row.end_us >= until}
    return GangWait(
        reservation=reservation,
        job=job,
        holds=tuple(_joined(rows)),
        pending_ranks=tuple(rank for rank in range(job.size) if rank not in held),
        until_us=until,
        gpu_us=gpu_us,
        amount=amount,
        in_range=inside,
    )


def _joined(rows: list[Interval]) -> list[Hold]:
    """Return holds, those that a drain cut in two joined again."""
    holds: list[Hold] = []
    for row in rows:
        if row.end_us == row.start_us or row.node is None:
            continue
        last = holds[-1] if holds else None
        if (
            last is not None
            and (last.rank, last.node_id) == (row.rank, row.node_id)
            and last.end_us == row.start_us
        ):
            holds[-1] = Hold(last.rank, last.node_id, last.node, last.start_us, row.end_us)
        else:
            holds.append(Hold(row.rank or 0, row.node.pk, row.node.name, row.start_us, row.end_us))
    return holds
