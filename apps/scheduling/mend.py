"""Attempts that were taken for lost get the end that the cluster's accounting knows of, once it tells."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from apps.backends.models import Cluster
from apps.backends.port import ForeignWork, Recalled, SeenAttempt
from apps.common.rows import set_columns
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job
from apps.jobs.moves import Change, correct
from apps.jobs.states import WAITING, JobState, Outcome
from apps.ledger.intervals import close_members
from apps.ledger.past import PastRun, add_runs
from apps.scheduling.adopt import report_of, uid_of
from apps.scheduling.observe import FINAL
from apps.scheduling.recall import FORGOTTEN, MOST, not_before


def lost_since(cluster: Cluster, since: datetime) -> list[Attempt]:
    """Return the attempts that ended as lost because the cluster listed them no more."""
    rows = Attempt.objects.filter(
        job__cluster=cluster, outcome=Outcome.LOST, detail=FORGOTTEN, ended_at__gte=since
    )
    rows = rows.exclude(cluster_ref="").select_related("job__priority_class")
    return list(rows.order_by("-pk")[:MOST])


def asked_about(lost: Sequence[Attempt]) -> tuple[list[str], dict[str, str]]:
    """Return what ``recall`` takes: the refs of others' work, and the uids of ours by ref."""
    theirs = [one.job.foreign_ref for one in lost if one.job.foreign_ref]
    return theirs, {one.cluster_ref: str(one.uid) for one in lost if not one.job.foreign_ref}


def mend(cluster: Cluster, lost: Sequence[Attempt], told: Recalled) -> int:
    """Write how these ended; return how many there were. Needs the cluster's row locked.

    A job of ours that waits for its next attempt, and none was made, is over if this one ended it.
    """
    reports = {report.uid: report for report in told.attempts}
    reports |= {str(uid_of(cluster, work)): _ended(cluster, work) for work in told.works}
    found = {one.pk: reports[str(one.uid)] for one in lost if str(one.uid) in reports}
    # As they stand now: somebody may have been faster.
    rows = Attempt.objects.filter(pk__in=found, outcome=Outcome.LOST, detail=FORGOTTEN)
    attempts = list(rows.select_related("job__priority_class").order_by("pk"))
    for attempt in attempts:
        _mend(cluster, attempt, not_before(found[attempt.pk], attempt.launched_at))
    return len(attempts)


def _ended(cluster: Cluster, work: ForeignWork) -> SeenAttempt:
    return report_of(work, str(uid_of(cluster, work)))


def _mend(cluster: Cluster, attempt: Attempt, report: SeenAttempt) -> None:
    believed = attempt.ended_at or cluster.now()
    # It was gone when it was missed: it cannot have ended later.
    ended_at = min(report.ended_at or believed, believed)
    if attempt.started_at is None and report.started_at is not None:
        attempt.started_at = min(report.started_at, ended_at)
        add_runs(cluster, [_run(attempt, ended_at)])
    else:
        close_members({attempt.pk: to_us(ended_at)})
    attempt.ended_at, attempt.outcome = ended_at, report.outcome
    attempt.detail = report.detail[:300]
    attempt.last_checkpoint_at = report.checkpoint_at or attempt.last_checkpoint_at
    set_columns([attempt], ["started_at", "ended_at", "outcome", "detail", "last_checkpoint_at"])
    change = _change(attempt.job, attempt, ended_at)
    if change is not None:
        correct([change])


def _run(attempt: Attempt, ended_at: datetime) -> PastRun:
    """Return a run that was never seen to have begun."""
    job, began = attempt.job, attempt.started_at or ended_at
    members = list(attempt.members.order_by("rank").values_list("rank", "node_id"))
    return PastRun(
        job.pool_id, job.tenant_id, job.pk, attempt.pk, job.gpus_per_member,
        job.priority_class.usage_factor, to_us(began), to_us(ended_at), members,
    )  # fmt: skip


def _change(job: Job, attempt: Attempt, at: datetime) -> Change | None:
    """Return what becomes of a job whose attempt was not lost; None: it goes on as it is."""
    outcome = attempt.outcome
    if outcome not in FINAL:
        return None
    detail = {"number": attempt.number, "outcome": outcome}
    fields = {"ended_at": at, "outcome": outcome}
    if job.foreign_ref:
        forgotten = job.outcome == Outcome.LOST
        return (
            Change(job, FINAL[Outcome(outcome)], at, "mended", detail, fields)
            if forgotten
            else None
        )
    if job.state not in WAITING or job.attempt_number != attempt.number + 1:
        return None
    if outcome == Outcome.FAILED and job.retries_used < job.retry_limit:
        again = {"retries_used": job.retries_used + 1, "broken": False}
        return Change(job, JobState(job.state), at, "mended", detail, again)
    again = {"attempt_number": attempt.number, "broken": False}
    return Change(job, FINAL[Outcome(outcome)], at, "mended", detail, fields | again)
