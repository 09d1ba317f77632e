"""An eviction from its record to its end: written before the cluster is asked, closed by what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from apps.backends.models import Cluster, Pool
from apps.common.money import MICROS
from apps.common.prepared import Prepared
from apps.common.rows import add_keyed, set_columns
from apps.common.time import from_us, to_us
from apps.engine.types import Mode, Passed
from apps.jobs.models import Attempt, Eviction, Job
from apps.jobs.moves import Change, move_each, note
from apps.jobs.states import LEAVES, LEFT, EvictionMode, EvictionOutcome, JobState, Outcome
from apps.ledger.intervals import close_members
from apps.ledger.selectors import Prices
from apps.scheduling.decision import Decision
from apps.scheduling.leavers import recent_evictions
from apps.scheduling.models import Tick
from apps.scheduling.publish import QUOTA_COLUMNS, number, quota

MODES = {
    Mode.KILL: EvictionMode.KILL,
    Mode.CHECKPOINT: EvictionMode.CHECKPOINT,
    Mode.DEMOTE: EvictionMode.DEMOTE,
    Mode.SHRINK: EvictionMode.SHRINK,
}


def _side(decision: Decision, tenant: int, pool: int, change: int) -> dict[str, Any]:
    """Return where a tenant stands as the decision saw it, and what it holds once it is done."""
    standings, seen = decision.plan.standings, decision.seen
    columns = {name: int(getattr(standings, name)[tenant][pool]) for name in QUOTA_COLUMNS}
    return {
        "tenant": seen.tenant_ids[tenant],
        "share": float(standings.share[tenant]),
        "usage_share": float(standings.usage_share[tenant]),
        "level": number(float(standings.level[tenant])),
        "pool": {name: quota(name, gpus) for name, gpus in columns.items()},
        "after": {"used": columns["used"] + change},
    }


def _considered(decision: Decision) -> dict[int, list[dict[str, Any]]]:
    """Return the candidates looked at for each beneficiary, by its pending index."""
    table, running = decision.plan.considered, decision.seen.snapshot.running
    rows = decision.plan.evictions
    lost = dict(zip(rows.victim.tolist(), rows.lost.tolist(), strict=True))
    found: dict[int, list[dict[str, Any]]] = {}
    for k, job in enumerate(table.job.tolist()):
        low, high = int(table.offsets[k]), int(table.offsets[k + 1])
        found[job] = [
            {
                "job": int(running.id[victim]),
                "tenant": decision.seen.tenant_ids[int(running.tenant[victim])],
                "gpus": int(running.size[victim] * running.gpus_per_member[victim]),
                "lost_gpu_us": lost.get(victim),
                "passed": Passed(passed).name.lower(),
            }
            for victim, passed in zip(
                table.victim[low:high].tolist(), table.passed[low:high].tolist(), strict=True
            )
        ]
    return found


def _rows(
    cluster: Cluster,
    decision: Decision,
    tick: Tick,
    attempts: Mapping[int, Attempt],
    waiting: Mapping[int, Job],
    *,
    now: datetime,
) -> list[Eviction]:
    """Return the rows of what the plan asks, of victims and for gangs that are still there."""
    table, snapshot = decision.plan.evictions, decision.seen.snapshot
    considered, often = _considered(decision), recent_evictions(cluster, now)
    found = []
    for k, (victim, job) in enumerate(zip(table.victim.tolist(), table.job.tolist(), strict=True)):
        attempt = attempts.get(int(snapshot.running.attempt[victim]))
        beneficiary = waiting.get(decision.seen.pending_ids[job])
        if attempt is None or beneficiary is None:
            continue
        mode, gpus = MODES[Mode(int(table.mode[k]))], int(table.gpus[k])
        if mode in LEAVES:
            often[attempt.job_id] += 1
        pool = int(snapshot.running.pool[victim])
        leaves = 0 if mode == EvictionMode.DEMOTE else gpus
        size = int(snapshot.pending.size[job] * snapshot.pending.gpus_per_member[job])
        limit = decision.seen.policy.thrash_after
        found.append(
            Eviction(
                cluster=cluster,
                attempt=attempt,
                job=attempt.job,
                beneficiary=beneficiary,
                beneficiary_attempt=beneficiary.attempt_number,
                tick_id=tick.pk,
                rule=table.rule[k],
                mode=mode,
                at=now,
                leave_by=from_us(int(table.until[k])),
                members=int(table.members[k]),
                gpus=gpus,
                within_hour=max(often[attempt.job_id], 1),
                thrashes=0 < limit <= often[attempt.job_id] and mode in LEAVES,
                standings={
                    "victim": _side(decision, int(snapshot.running.tenant[victim]), pool, -leaves),
                    "beneficiary": _side(decision, int(snapshot.pending.tenant[job]), pool, size),
                },
                considered=considered.get(job, []),
            )
        )
    return found


def record(
    cluster: Cluster,
    decision: Decision,
    tick: Tick,
    waiting: Mapping[int, Job],
    *,
    now: datetime,
) -> int:
    """Write the evictions a plan asks for; return how many. In the tick's transaction.

    ``waiting``: the gangs that still wait, locked, by id. Nobody is asked for one that does not.
    """
    table = decision.plan.evictions
    if not len(table.victim):
        return 0
    keys = decision.seen.snapshot.running.attempt[table.victim].tolist()
    free = Attempt.objects.filter(pk__in=keys, ended_at__isnull=True)
    free = free.exclude(evictions__ended_at__isnull=True, evictions__isnull=False)
    attempts = {row.pk: row for row in free.select_related("job")}
    # The rows of their jobs, locked in the order of their ids.
    jobs = {
        job.pk: job
        for job in Job.objects.select_for_update()
        .filter(pk__in={a.job_id for a in attempts.values()})
        .order_by("pk")
    }
    for attempt in attempts.values():
        attempt.job = jobs[attempt.job_id]
    rows = _rows(cluster, decision, tick, attempts, waiting, now=now)
    add_keyed(rows)
    move_each(
        [
            Change(row.job, JobState.PREEMPTING, now, "asked_to_leave", _told(row))
            for row in rows
            if row.mode in LEAVES and row.job.state != JobState.PREEMPTING
        ],
        tick_id=tick.pk,
        locked=True,
    )
    for row in rows:
        if row.mode not in LEAVES:
            what = "demoted" if row.mode == EvictionMode.DEMOTE else "asked_to_leave"
            note(row.job, what, at=now, detail=_told(row), tick_id=tick.pk)
    demoted = [row.attempt for row in rows if row.mode == EvictionMode.DEMOTE]
    for attempt in demoted:
        attempt.demoted_at = now
    set_columns(demoted, ["demoted_at"])
    return len(rows)


def _told(row: Eviction) -> dict[str, Any]:
    return {"eviction": row.pk, "mode": str(row.mode), "number": row.attempt.number}


def release(decision: Decision, *, now: datetime) -> None:
    """Mark that nobody needs the room of some who were asked to give way. In the transaction."""
    keys = decision.seen.snapshot.running.attempt[decision.plan.stays].tolist()
    if keys:
        open_rows = Eviction.objects.filter(attempt__in=keys, ended_at__isnull=True)
        open_rows.filter(unneeded_at__isnull=True).update(unneeded_at=now)
        Attempt.objects.filter(pk__in=keys, demoted_at__isnull=False).update(demoted_at=None)


def close(
    row: Eviction, outcome: EvictionOutcome, *, at: datetime, lost_since: datetime | None
) -> None:
    """Set how an eviction ended; ``lost_since``: the work since then is lost, None: nothing is."""
    row.ended_at, row.outcome = at, outcome
    row.lost_gpu_us = row.lost_micros = 0
    if lost_since is not None and at > lost_since:
        row.lost_gpu_us = row.gpus * (to_us(at) - to_us(lost_since))
        pool = Pool.objects.get(pk=row.job.pool_id)
        amount = Prices([pool]).amount(pool.pk, row.gpus, to_us(lost_since), to_us(at))
        # Half up, as every amount is rounded; none is below 0. Without a price it is not known.
        row.lost_micros = None if amount.unpriced else int(amount.money * MICROS * 2 + 1) // 2
    set_columns([row], ["ended_at", "outcome", "lost_gpu_us", "lost_micros"])


# Asked of every attempt that ends, and there is hardly ever one.
OPEN_ON = Prepared(
    lambda attempts: Eviction.objects.filter(
        attempt__in=attempts, ended_at__isnull=True
    ).values_list("pk")
)


def open_on(attempts: Sequence[int]) -> dict[int, Eviction]:
    """Return the evictions that are not over, by attempt."""
    keys = [pk for (pk,) in OPEN_ON.rows(attempts)]
    if not keys:
        return {}
    rows = Eviction.objects.filter(pk__in=keys).select_related("job", "attempt")
    return {row.attempt_id: row for row in rows}


def outcome_of(row: Eviction, attempt: Attempt, outcome: str) -> EvictionOutcome:
    """Return how an eviction ended whose victim ended; one that ended by itself says how."""
    if outcome != Outcome.STOPPED:
        return EvictionOutcome(outcome)
    if attempt.job.cancel_requested_at is not None:
        return EvictionOutcome.CANCELLED
    if row.mode == EvictionMode.KILL:
        return EvictionOutcome.KILLED
    instants = [at for at in (row.confirmed_at, attempt.last_checkpoint_at) if at is not None]
    saved = any(_was_asked(row, at) and at <= row.leave_by for at in instants)
    return EvictionOutcome.CHECKPOINTED if saved else EvictionOutcome.GRACE_EXCEEDED


def _was_asked(row: Eviction, at: datetime) -> bool:
    """Tell whether a victim had been asked at an instant; a cluster may count whole seconds."""
    return at >= row.at or at == row.at.replace(microsecond=0)


def close_ended(attempt: Attempt, row: Eviction, outcome: EvictionOutcome, at: datetime) -> None:
    """Close the eviction of an attempt that ended at ``at``."""
    since = None
    if outcome in LEFT and attempt.started_at is not None:
        since = max(attempt.started_at, attempt.last_checkpoint_at or attempt.started_at)
    if since is not None and since >= at:
        since = None
    # It may seem to have ended before it was asked, within the same second.
    close(row, outcome, at=max(at, row.at), lost_since=since)


def close_shrunk(row: Eviction, *, at: datetime) -> None:
    """Book that the last members of a gang left at ``at``; the rest runs on."""
    here = row.attempt.members.filter(left_at__isnull=True).order_by("rank")
    gone = list(here)[-row.members :]
    for member in gone:
        member.left_at = at
    set_columns(gone, ["left_at"])
    close_members({row.attempt_id: to_us(at)}, ranks=[member.rank for member in gone])
    close(row, EvictionOutcome.SHRUNK, at=at, lost_since=None)
    note(row.job, "shrunk", at=at, detail=_told(row))


def close_stayed(row: Eviction, *, at: datetime) -> None:
    """Book that a victim stays, nobody needing its room any more."""
    close(row, EvictionOutcome.STAYED, at=at, lost_since=None)
    job = row.job
    if job.state == JobState.PREEMPTING:
        after = JobState.ADMITTED if row.attempt.started_at is None else JobState.RUNNING
        move_each([Change(job, after, at, "stayed", _told(row))])
    else:
        note(job, "stayed", at=at, detail=_told(row))
