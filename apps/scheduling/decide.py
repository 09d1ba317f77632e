"""The engine's plan becomes reservations, attempts, verdicts: one Tick row, one transaction."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from apps.backends.models import Cluster, Node
from apps.common.prepared import Prepared
from apps.common.rows import add_keyed, add_rows, set_columns
from apps.common.time import to_us
from apps.engine import codec
from apps.engine.cycle import schedule
from apps.engine.types import NONE
from apps.jobs.models import Attempt, Job, Member, Reservation
from apps.jobs.moves import Change, move_each
from apps.jobs.states import WAITING, JobState, Outcome, ReservationOutcome
from apps.ledger.intervals import close_holds, open_holds
from apps.scheduling import steps
from apps.scheduling.alive import Alive
from apps.scheduling.decision import Decision
from apps.scheduling.evict import record, release
from apps.scheduling.frame import Frames
from apps.scheduling.leases import Lease, fenced
from apps.scheduling.models import Tick
from apps.scheduling.promises import keep_promises, promised_by, redeem, reserve
from apps.scheduling.publish import publish
from apps.scheduling.snapshot import take_snapshot

LONGEST_BACK_OFF = timedelta(hours=1)
KEEP_ALL, KEEP_MINUTE, KEEP_MOVES = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
KEEP_EVICTIONS = timedelta(days=90)


def decide(
    cluster: Cluster, frames: Frames, *, now: datetime, alive: list[Alive] | None = None
) -> Decision:
    """Take a snapshot and ask the engine; nothing is written."""
    seen = take_snapshot(cluster, frames, now=now, alive=alive)
    return Decision(seen, schedule(seen.snapshot, seen.policy))


def starts_of(decision: Decision) -> dict[int, list[int]]:
    """Return what the plan starts: job id → the node id of each rank."""
    seen, starts = decision.seen, decision.plan.starts
    found: dict[int, list[int]] = {}
    for k, job in enumerate(starts.job.tolist()):
        low, high = int(starts.offsets[k]), int(starts.offsets[k + 1])
        found[seen.pending_ids[job]] = [seen.node_ids[n] for n in starts.node[low:high].tolist()]
    return found


def _still_waiting(job_ids: Sequence[int]) -> dict[int, Job]:
    """Return the jobs that still wait: a person may have come between."""
    rows = Job.objects.filter(pk__in=job_ids, state__in=sorted(WAITING))
    return {job.pk: job for job in rows.select_for_update().order_by("pk")}


def _end_reservations(
    reservations: Sequence[Reservation], outcome: ReservationOutcome, *, now: datetime
) -> None:
    for reservation in reservations:
        reservation.ended_at, reservation.outcome = now, outcome
        close_holds(reservation, at_us=to_us(now))
    set_columns(reservations, ["ended_at", "outcome"])


def _time_out(
    reservations: Sequence[Reservation], timeout_seconds: int | None, *, now: datetime
) -> None:
    """Give back what waited too long, and keep it from reserving again for a while."""
    if not reservations or timeout_seconds is None:
        return
    _end_reservations(reservations, ReservationOutcome.TIMED_OUT, now=now)
    changed = []
    for reservation in reservations:
        job = reservation.job
        wait = min(timedelta(seconds=timeout_seconds) * 2**job.reserve_timeouts, LONGEST_BACK_OFF)
        job.no_reserve_before = now + wait
        job.reserve_timeouts = min(job.reserve_timeouts + 1, 20)
        changed.append(job)
    set_columns(changed, ["no_reserve_before", "reserve_timeouts"])


def _hold(
    wanted: Mapping[int, Mapping[int, int]],
    current: Mapping[int, Mapping[int, int]],
    reservations: dict[int, Reservation],
    jobs: Mapping[int, Job],
    timeout_seconds: int | None,
    *,
    now: datetime,
) -> None:
    """Make what is held equal what the plan holds."""
    at_us = to_us(now)
    changed = [job_id for job_id in wanted if wanted[job_id] != current.get(job_id, {})]
    changed += [job_id for job_id in current if job_id not in wanted and job_id in reservations]
    nodes = Node.objects.in_bulk({n for j in changed for n in wanted.get(j, {}).values()})
    for job_id in changed:
        want, have = wanted.get(job_id, {}), current.get(job_id, {})
        gone = [r for r in have if want.get(r) != have[r]]
        new = [(r, nodes[n]) for r, n in want.items() if have.get(r) != n]
        if gone and job_id in reservations:
            close_holds(reservations[job_id], at_us=at_us, ranks=gone)
        if not new or job_id not in jobs:
            continue
        if job_id not in reservations:
            reservations[job_id] = reserve(jobs[job_id], timeout_seconds, now=now)
        open_holds(reservations[job_id], new, at_us=at_us)


def _start(
    placements: Mapping[int, list[int]], jobs: Mapping[int, Job], tick: Tick, *, now: datetime
) -> int:
    """Admit whole gangs: an attempt with a name of its own and a node for each member."""
    changes = [
        Change(
            jobs[job_id],
            JobState.ADMITTED,
            at=now,
            what="admitted",
            detail={"number": jobs[job_id].attempt_number},
            fields={"broken": False, "no_reserve_before": None, "reserve_timeouts": 0},
        )
        for job_id in placements
        if job_id in jobs
    ]
    if not changes:
        return 0
    admitted = move_each(changes, tick_id=tick.pk, locked=True)
    again = [job.pk for job in admitted if job.attempt_number > 1]
    kept, evicted = _kept_seconds(again), _evicted_before(again)
    attempts = [
        Attempt(
            job=job,
            number=job.attempt_number,
            created_at=now,
            kept_seconds=kept.get(job.pk, 0),
            after_eviction=evicted.get(job.pk) == job.attempt_number - 1,
        )
        for job in admitted
    ]
    add_keyed(attempts)
    add_rows(
        [
            Member(attempt=attempt, rank=rank, node_id=node_id)
            for attempt in attempts
            for rank, node_id in enumerate(placements[attempt.job_id])
        ]
    )
    return len(admitted)


def _kept_seconds(job_ids: Sequence[int]) -> dict[int, int]:
    """Return the work that the last checkpoint of each job's earlier attempts kept, in seconds."""
    kept: dict[int, int] = {}
    if not job_ids:
        return kept
    rows = Attempt.objects.filter(
        job_id__in=job_ids, last_checkpoint_at__isnull=False, started_at__isnull=False
    ).order_by("job_id", "number")
    for attempt in rows:
        if attempt.last_checkpoint_at is None or attempt.started_at is None:
            continue
        work = int((attempt.last_checkpoint_at - attempt.started_at).total_seconds())
        kept[attempt.job_id] = max(kept.get(attempt.job_id, 0), attempt.kept_seconds + max(work, 0))
    return kept


def _evicted_before(job_ids: Sequence[int]) -> dict[int, int]:
    """Return the newest attempt of each job that an eviction ended, by its number."""
    if not job_ids:
        return {}
    rows = Attempt.objects.filter(job_id__in=job_ids, outcome=Outcome.EVICTED)
    return dict(rows.order_by("job_id", "number").values_list("job_id", "number"))


def _reserving(
    wanted: Mapping[int, Mapping[int, int]],
    jobs: Mapping[int, Job],
    timed_out: Container[int],
    planned: Container[int],
    *,
    now: datetime,
) -> list[Change]:
    """Return the moves between PENDING and RESERVING that the holds make."""
    changes = []
    for job_id, job in jobs.items():
        held = len(wanted.get(job_id, {}))
        state = JobState.RESERVING if held else JobState.PENDING
        if job.state == state:
            continue
        detail: dict[str, object] = {"held": held, "size": job.size}
        if not held:
            detail["why"] = (
                "timed_out" if job_id in timed_out else "lent" if job_id in planned else "released"
            )
        what = "reserved" if held else "unreserved"
        changes.append(Change(job, state, at=now, what=what, detail=detail))
    return changes


TICKS_SINCE = Prepared(
    lambda cluster_id, minute: (
        Tick.objects.filter(cluster=cluster_id, at__gte=minute).order_by().values_list("id")[:1]
    )
)


def _keep_until(cluster: Cluster, *, now: datetime) -> datetime:
    """Return how long a tick without a move is kept: the first of its minute a day."""
    if not TICKS_SINCE.rows(cluster.pk, now.replace(second=0, microsecond=0)):
        return now + KEEP_MINUTE
    return now + KEEP_ALL


def write(
    cluster: Cluster,
    decision: Decision,
    lease: Lease,
    *,
    now: datetime,
    timeout_seconds: int | None,
    timings: Mapping[str, float],
    show: bool,
) -> Tick:
    """Write a decision: the Tick row, its moves, what is held, and (``show``) the verdicts."""
    seen, plan = decision.seen, decision.plan
    wanted, placements = decision.places(plan.holds), starts_of(decision)
    timed_out = {seen.pending_ids[k] for k in plan.timed_out.tolist()}
    current = {job: dict(members) for job, members in seen.holds.items()}
    blobs = codec.encode_snapshot(seen.snapshot, seen.policy), codec.encode_plan(plan)
    with fenced(lease):
        tick = Tick.objects.create(
            cluster=cluster, at=now, fence=lease.fence, keep_until=_keep_until(cluster, now=now),
            pending=len(seen.pending_ids), running=len(seen.snapshot.running.id),
            snapshot=blobs[0], plan=blobs[1], **timings,
        )  # fmt: skip
        promised = promised_by(decision)
        takers = {seen.pending_ids[k] for k in plan.evictions.job.tolist()}
        touched = {
            *wanted, *current, *placements, *timed_out, *seen.reserved, *promised, *takers
        }  # fmt: skip
        jobs = _still_waiting(sorted(touched)) if touched else {}
        open_rows = _open_reservations(sorted(seen.reserved)) if seen.reserved else {}
        _time_out(
            [r for j, r in open_rows.items() if j in timed_out],
            timeout_seconds,
            now=now,
        )
        # Put on hold since the snapshot: it neither starts nor holds. Where a cluster is only
        # watched or advised, nobody does: the plan is kept and shown, and that is all.
        driven = cluster.driven
        free = {j for j, job in jobs.items() if driven and job.held_at is None}
        wanted = {j: members for j, members in wanted.items() if j in free}
        begins = {j: nodes for j, nodes in placements.items() if j in free}
        promised = {j: rows for j, rows in promised.items() if j in free and j not in begins}
        redeem(open_rows, {**wanted, **_by_rank(begins)}, current)
        _end_reservations(
            [r for j, r in open_rows.items() if j in begins], ReservationOutcome.STARTED, now=now
        )
        rest = {j: r for j, r in open_rows.items() if j not in begins and j not in timed_out}
        keep_promises(promised, rest, jobs, timeout_seconds, now=now)
        _hold(
            wanted,
            {j: h for j, h in current.items() if j in rest},
            rest, jobs, timeout_seconds, now=now,
        )  # fmt: skip
        _drop_unplanned(
            {j: r for j, r in rest.items() if j not in promised}, decision, wanted, now=now
        )
        waiting = {j: job for j, job in jobs.items() if j not in begins}
        turned = _reserving(wanted, waiting, timed_out, _planned(decision), now=now)
        moved = len(move_each(turned, tick_id=tick.pk, locked=True))
        started = _start(begins, jobs, tick, now=now)
        release(decision, now=now)
        takers_here = {j: job for j, job in jobs.items() if j in takers & free}
        evicted = record(cluster, decision, tick, takers_here, now=now)
        if evicted:
            steps.reached("recorded")
        if moved or started or evicted:
            tick.starts, tick.moves = started, moved + started + evicted
            tick.keep_until = now + (KEEP_EVICTIONS if evicted else KEEP_MOVES)
            set_columns([tick], ["starts", "moves", "keep_until"])
        if show:
            publish(cluster, decision.seen, plan, tick)
    return tick


def _by_rank(placements: Mapping[int, list[int]]) -> dict[int, dict[int, int]]:
    return {job_id: dict(enumerate(nodes)) for job_id, nodes in placements.items()}


def _open_reservations(job_ids: Sequence[int]) -> dict[int, Reservation]:
    rows = Reservation.objects.filter(job_id__in=job_ids, ended_at__isnull=True)
    return {r.job_id: r for r in rows.select_related("job")}


def _planned(decision: Decision) -> set[int]:
    """Return the jobs that the plan expects to start at some instant, held for or not."""
    expected = np.flatnonzero(decision.plan.verdicts.forecast != NONE)
    return {decision.seen.pending_ids[k] for k in expected.tolist()}


def _drop_unplanned(
    reservations: Mapping[int, Reservation],
    decision: Decision,
    wanted: Mapping[int, Mapping[int, int]],
    *,
    now: datetime,
) -> None:
    """End reservations that the plan neither holds for nor expects to start."""
    planned = _planned(decision)
    dropped = [r for j, r in reservations.items() if not wanted.get(j) and j not in planned]
    _end_reservations(dropped, ReservationOutcome.RELEASED, now=now)


def stranded_of(decision: Decision) -> dict[int, int]:
    """Return the GPUs that no waiting member can use: node id → GPUs."""
    stranded = decision.plan.room.stranded.tolist()
    ids = decision.seen.node_ids
    return {ids[k]: gpus for k, gpus in enumerate(stranded) if gpus > 0}


def thin_out(cluster: Cluster, *, now: datetime) -> int:
    """Delete the ticks that are kept no longer; return how many."""
    return Tick.objects.filter(cluster=cluster, keep_until__lt=now).delete()[0]
