"""What the states ask for and the cluster lacks becomes backend calls, each safe to repeat."""

from __future__ import annotations

from datetime import datetime

from apps.backends.models import Cluster
from apps.backends.port import Backend, LaunchRequest, LaunchResult
from apps.jobs.models import Attempt
from apps.jobs.states import HOLDING, Outcome
from apps.scheduling.leases import Lease, fenced
from apps.scheduling.observe import mark_ended, mark_started


def launch_request(attempt: Attempt) -> LaunchRequest:
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
    )


def _to_launch(cluster: Cluster) -> list[Attempt]:
    rows = Attempt.objects.filter(
        job__cluster=cluster, job__state__in=sorted(HOLDING), ended_at__isnull=True,
        launched_at__isnull=True, job__cancel_requested_at__isnull=True,
    )  # fmt: skip
    return list(
        rows.select_related("job__tenant", "job__pool", "job__priority_class")
        .prefetch_related("members__node")
        .order_by("id")
    )


def _to_stop(cluster: Cluster) -> list[Attempt]:
    rows = Attempt.objects.filter(
        job__cluster=cluster, job__state__in=sorted(HOLDING), ended_at__isnull=True,
        job__cancel_requested_at__isnull=False,
    )  # fmt: skip
    return list(rows.order_by("id"))


def act(cluster: Cluster, backend: Backend, lease: Lease, *, now: datetime) -> int:
    """Launch what is admitted, stop what is cancelled; return the number of calls."""
    stops = _to_stop(cluster)
    for attempt in stops:
        backend.stop(str(attempt.uid), now=now)
    launches = _to_launch(cluster)
    answers = [(a, backend.launch(launch_request(a), now=now)) for a in launches]
    if answers or stops:
        with fenced(lease):
            _book(cluster, answers, now=now)
            _book_stops(stops, now=now)
    return len(answers) + len(stops)


def _book_stops(stops: list[Attempt], *, now: datetime) -> None:
    for attempt in stops:
        attempt.stop_requested_at = attempt.stop_requested_at or now
    Attempt.objects.bulk_update(stops, ["stop_requested_at"])


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
        if answer.started_at is not None:
            started.append((attempt, answer.started_at))
    Attempt.objects.bulk_update(launched, ["launched_at", "cluster_ref"])
    if started:
        mark_started(started, first_look=cluster.first_look_at or now)
    if refused:
        mark_ended(refused)
