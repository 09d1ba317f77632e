"""What the states ask for and the cluster lacks becomes backend calls, each safe to repeat."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q, prefetch_related_objects

from apps.backends.models import Cluster
from apps.backends.port import Backend, LaunchRequest, LaunchResult
from apps.backends.user_tokens import sealed_tokens
from apps.common.prepared import Prepared
from apps.common.rows import set_columns
from apps.jobs.models import Attempt, Eviction
from apps.jobs.states import EvictionMode, EvictionOutcome, Outcome
from apps.scheduling import steps
from apps.scheduling.evict import close, close_stayed
from apps.scheduling.leases import Lease, fenced
from apps.scheduling.leavers import OPEN
from apps.scheduling.observe import PLACED, mark_ended, mark_started


def launch_request(attempt: Attempt, token: str = "") -> LaunchRequest:
    """Return all the cluster needs to start an attempt; members must be prefetched."""
    job = attempt.job
    return LaunchRequest(
        uid=str(attempt.uid),
        name=job.name,
        tenant=job.tenant.path,
        pool=job.pool.name,
        gpus_per_member=job.gpus_per_member,
        nodes=tuple(member.node.name for member in attempt.members.all()),
        limit_seconds=job.limit_seconds,
        workload=job.workload,
        number=attempt.number,
        kept_seconds=attempt.kept_seconds,
        user="" if job.submitted_by is None else job.submitted_by.get_username(),
        token=token,
    )


ASKED = Prepared(
    lambda cluster_id: (
        Attempt.objects.filter(job__cluster=cluster_id, ended_at__isnull=True)
        .filter(Q(launched_at__isnull=True) | Q(job__cancel_requested_at__isnull=False))
        .order_by("id")
        .values_list("id")
    )
)


def _to_do(cluster: Cluster) -> tuple[list[Attempt], list[Attempt]]:
    """Return the attempts to launch, with all a launch needs, and those to stop."""
    asked = [pk for (pk,) in ASKED.rows(cluster.pk)]
    if not asked:
        return [], []
    rows = Attempt.objects.filter(pk__in=asked)
    rows = rows.select_related(
        "job__tenant", "job__pool", "job__priority_class", "job__submitted_by"
    )
    found = list(rows.order_by("id"))
    launches = [row for row in found if row.job.cancel_requested_at is None]
    prefetch_related_objects(launches, PLACED)
    return launches, [row for row in found if row.job.cancel_requested_at is not None]


def act(cluster: Cluster, backend: Backend, lease: Lease, *, now: datetime) -> int:
    """Launch what is admitted, stop what is cancelled; return the number of calls.

    On a cluster that is not Rollcall's to drive, nothing is started, stopped or asked.
    """
    if not cluster.driven:
        return 0
    launches, stops = _to_do(cluster)
    for attempt in stops:
        backend.stop(str(attempt.uid), now=now)
    asked, stayed = _ask(cluster, backend, now=now)
    if asked:
        steps.reached("asked")
    tokens = sealed_tokens(
        cluster, {a.job.submitted_by_id for a in launches if a.job.submitted_by_id}
    )
    answers = [
        (a, backend.launch(launch_request(a, tokens.get(a.job.submitted_by_id or 0, "")), now=now))
        for a in launches
    ]
    if answers or stops or asked or stayed:
        steps.reached("launched")
        with fenced(lease):
            _book_asked(asked, stayed, now=now)
            _book(cluster, answers, now=now)
            _book_stops(stops, now=now)
    return len(answers) + len(stops) + len(asked) + len(stayed)


def _ask(
    cluster: Cluster, backend: Backend, *, now: datetime
) -> tuple[list[Eviction], list[Eviction]]:
    """Ask victims to give way, and tell those nobody needs gone to stay; return both."""
    if not OPEN.rows(cluster.pk):
        return [], []
    rows = Eviction.objects.filter(cluster=cluster, ended_at__isnull=True)
    asked, stayed = [], []
    for row in rows.select_related("attempt", "job").order_by("id"):
        uid = str(row.attempt.uid)
        if row.unneeded_at is not None:
            # One that was never asked has nothing to be taken back.
            if row.asked_at is None or backend.stay(uid, now=now):
                stayed.append(row)
        elif row.asked_at is None:
            steps.reached("asking")
            _ask_one(backend, row, now=now)
            asked.append(row)
        elif row.mode == EvictionMode.CHECKPOINT and (_has_saved(row) or now > row.leave_by):
            backend.stop(uid, now=now)
    return asked, stayed


def _has_saved(row: Eviction) -> bool:
    """Tell whether a victim has saved its work: it said so, or has a checkpoint since it was asked."""
    saved = row.attempt.last_checkpoint_at
    return row.confirmed_at is not None or (
        saved is not None and row.asked_at is not None and saved > row.asked_at
    )


def _ask_one(backend: Backend, row: Eviction, *, now: datetime) -> None:
    """Tell the cluster what an eviction asks of its victim."""
    uid = str(row.attempt.uid)
    if row.mode == EvictionMode.KILL:
        backend.stop(uid, now=now)
    elif row.mode == EvictionMode.DEMOTE:
        backend.demote(uid, now=now)
    elif row.mode == EvictionMode.SHRINK:
        here = row.attempt.members.filter(left_at__isnull=True).count()
        backend.shrink(uid, keep=here - row.members, until=row.leave_by, now=now)
    else:
        backend.ask_to_leave(uid, until=row.leave_by, now=now)


def _book_asked(asked: list[Eviction], stayed: list[Eviction], *, now: datetime) -> None:
    for row in asked:
        row.asked_at = now
    set_columns(asked, ["asked_at"])
    for row in asked:
        if row.mode == EvictionMode.DEMOTE:
            close(row, EvictionOutcome.DEMOTED, at=now, lost_since=None)
    for row in stayed:
        close_stayed(row, at=now)


def _book_stops(stops: list[Attempt], *, now: datetime) -> None:
    for attempt in stops:
        attempt.stop_requested_at = attempt.stop_requested_at or now
    set_columns(stops, ["stop_requested_at"])


def _book(cluster: Cluster, answers: list[tuple[Attempt, LaunchResult]], *, now: datetime) -> None:
    """Write what the cluster answered to the launches."""
    refused, launched, started = [], [], []
    for attempt, answer in answers:
        if answer.outcome == "refused":
            attempt.detail = answer.detail[:300]
            refused.append((attempt, Outcome.REFUSED.value, now))
            continue
        attempt.launched_at, attempt.cluster_ref = now, answer.cluster_ref
        launched.append(attempt)
        # Seen running already, if a worker died between the call and its booking.
        if answer.started_at is not None and attempt.started_at is None:
            started.append((attempt, answer.started_at))
    set_columns(launched, ["launched_at", "cluster_ref"])
    if started:
        mark_started(started, first_look=cluster.first_look_at or now)
    if refused:
        mark_ended(refused)
