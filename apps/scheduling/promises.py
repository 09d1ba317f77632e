"""The room of victims that leave: promised to a gang until it holds it, or starts on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models import F, Q

from apps.backends.models import Node
from apps.common.rows import set_columns
from apps.common.time import to_us
from apps.jobs.models import Eviction, Job, Reservation
from apps.jobs.states import LEAVES, EvictionMode, EvictionOutcome
from apps.ledger.intervals import open_holds
from apps.scheduling.decision import Decision

Places = Mapping[int, Mapping[int, int]]
"""Job id → rank → node id."""


def promised_by(decision: Decision) -> dict[int, list[list[int]]]:
    """Return what the plan promises: job id → [rank, node id] of what is to come; may be empty."""
    ids, plan = decision.seen.pending_ids, decision.plan
    found: dict[int, list[list[int]]] = {ids[job]: [] for job in plan.leaving.job.tolist()}
    for job_id, place in decision.places(plan.promises).items():
        found[job_id] = [[rank, node] for rank, node in place.items()]
    return found


def _left(reservations: Iterable[Reservation]) -> dict[tuple[int, int], datetime]:
    """Return when the last victim of a gang left a node: by (job id, node id)."""
    # Of a gang that shrank only its last members left, and those did not leave again with it.
    shrank = Q(mode=EvictionMode.SHRINK, attempt__members__left_at=F("ended_at"))
    whole = Q(mode__in=sorted(LEAVES), attempt__members__left_at=None)
    rows = Eviction.objects.filter(
        shrank | whole, beneficiary__in=[r.job_id for r in reservations], ended_at__isnull=False
    )
    found: dict[tuple[int, int], datetime] = {}
    columns = "beneficiary_id", "attempt__members__node_id", "ended_at"
    for job_id, node_id, at in (
        rows.exclude(outcome=EvictionOutcome.STAYED).order_by("ended_at").values_list(*columns)
    ):
        if node_id is not None and at is not None:
            found[job_id, node_id] = at
    return found


def redeem(
    reservations: Mapping[int, Reservation], places: Places, current: dict[int, dict[int, int]]
) -> None:
    """Hold what a victim left from the very instant it left, where the gang gets it now.

    ``places`` is where the plan holds or starts each gang's members, ``current`` what is held as
    far as is written; what is redeemed is put in there.
    """
    due = [r for r in reservations.values() if r.promises and places.get(r.job_id)]
    if not due:
        return
    left = _left(due)
    nodes = Node.objects.in_bulk({node for r in due for _, node in r.promises})
    for reservation in due:
        place, held = places[reservation.job_id], current.setdefault(reservation.job_id, {})
        for rank, node in reservation.promises:
            at = left.get((reservation.job_id, node))
            if at is None or place.get(rank) != node or rank in held:
                continue
            since = max(at, reservation.since)
            open_holds(reservation, [(rank, nodes[node])], at_us=to_us(since))
            held[rank] = node


def reserve(job: Job, timeout_seconds: int | None, *, now: datetime) -> Reservation:
    """Open a reservation of a gang, which holds nothing yet."""
    return Reservation.objects.create(
        job=job,
        attempt_number=job.attempt_number,
        since=now,
        timeout_seconds=timeout_seconds,
    )


def keep_promises(
    promised: Mapping[int, list[list[int]]],
    reservations: dict[int, Reservation],
    jobs: Mapping[int, Job],
    timeout_seconds: int | None,
    *,
    now: datetime,
) -> None:
    """Write what is promised on reservations; a gang that has none yet gets one."""
    for job_id in promised:
        if job_id not in reservations and job_id in jobs:
            reservations[job_id] = reserve(jobs[job_id], timeout_seconds, now=now)
    changed = []
    for job_id, row in reservations.items():
        wanted = job_id in promised, promised.get(job_id, [])
        if (row.promised, row.promises) != wanted:
            row.promised, row.promises = wanted
            changed.append(row)
    set_columns(changed, ["promised", "promises"])
