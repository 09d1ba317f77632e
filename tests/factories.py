"""Make what tests need, with one line each and sensible defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from apps.accounts.models import User
from apps.accounts.services import issue_token
from apps.backends.models import Cluster, Grade, Node, Pool
from apps.jobs.models import Attempt, Eviction, Job
from apps.jobs.services import JobSpec, submit_job
from apps.jobs.states import LEFT, EvictionOutcome, JobState
from apps.tenants.models import Tenant
from apps.tenants.services import add_member, create_tenant

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def make_user(name: str, **columns: Any) -> User:
    """A person without a password: nobody logs in by form here."""
    return User.objects.create(username=name, **columns)


def make_cluster(name: str = "atlas", **columns: Any) -> Cluster:
    """A simulated cluster that was looked at already, its clock at NOW, and ours to drive."""
    columns = {
        "clock_now": NOW, "first_look_at": NOW, "created_at": NOW, "grade": Grade.DRIVE
    } | columns  # fmt: skip
    return Cluster.objects.create(name=name, kind="simulator", **columns)


def make_pool(
    cluster: Cluster, name: str = "h100", *, nodes: int = 4, gpus: int = 8, rack: str = ""
) -> Pool:
    """A pool and its nodes, all up."""
    pool = Pool.objects.create(cluster=cluster, name=name)
    Node.objects.bulk_create(
        Node(
            cluster=cluster,
            pool=pool,
            name=f"{name}-n{number:02}",
            gpus=gpus,
            rack=rack,
            state_since=NOW,
        )
        for number in range(nodes)
    )
    return pool


def make_tenant(path: str, **options: Any) -> Tenant:
    """A tenant by its path; those above it must stand."""
    above, _, name = path.rpartition("/")
    parent = Tenant.objects.get(path=above) if above else None
    return create_tenant(name, parent=parent, now=NOW, **options)


def join(user: User, tenant: Tenant, role: str = "member") -> User:
    """Give a person a place in a tenant."""
    add_member(tenant, user, role, now=NOW)
    return user


def make_job(
    tenant: Tenant, pool: Pool, *, by: User | None = None, minutes: float = 0, **asked: Any
) -> Job:
    """A job submitted so many minutes after NOW."""
    asked = {"name": "train", "size": 1, "gpus_per_member": 1} | asked
    spec = JobSpec(tenant=tenant, cluster=pool.cluster, pool=pool, **asked)
    job, _ = submit_job(spec, by=by, now=NOW + timedelta(minutes=minutes))
    return job


def make_eviction(
    victim: Job,
    beneficiary: Job,
    *,
    at: datetime = NOW,
    ran: timedelta = timedelta(hours=1),
    grace: timedelta = timedelta(seconds=120),
    took: timedelta = timedelta(seconds=38),
    **columns: Any,
) -> Eviction:
    """An eviction as ticks write it: of a job that ran, asked at ``at``; with an outcome it is over.

    The victim then leaves, or is where that outcome leaves it: in line again, or running on.
    """
    outcome = columns.get("outcome", "")
    attempt, _ = Attempt.objects.get_or_create(
        job=victim,
        number=victim.attempt_number,
        defaults={"created_at": at - ran, "launched_at": at - ran, "started_at": at - ran},
    )
    ended = at + took if outcome else None
    values: dict[str, Any] = {
        "cluster": victim.cluster, "attempt": attempt, "job": victim, "beneficiary": beneficiary,
        "beneficiary_attempt": beneficiary.attempt_number, "tick_id": 90_412, "rule": "reclaim",
        "mode": "checkpoint", "at": at, "leave_by": at + grace, "members": victim.size,
        "gpus": victim.gpus, "asked_at": at, "ended_at": ended,
        "lost_gpu_us": 0 if outcome else None, "lost_micros": 0 if outcome else None,
        "standings": _standings(victim, beneficiary),
        "considered": [
            {"job": victim.pk, "tenant": victim.tenant_id, "gpus": victim.gpus,
             "lost_gpu_us": 0, "passed": "chosen"},
        ],
    }  # fmt: skip
    eviction = Eviction.objects.create(**(values | columns))
    _leave(attempt, eviction)
    return eviction


def _standings(victim: Job, beneficiary: Job) -> dict[str, Any]:
    """The victim's team holds 24 and is entitled to 16, the other's holds nothing."""
    sides = {
        "victim": (victim, 24, -victim.gpus),
        "beneficiary": (beneficiary, 0, beneficiary.gpus),
    }
    return {
        name: {
            "tenant": job.tenant_id, "share": 0.5, "usage_share": 0.65, "level": 0.77,
            "pool": {"guarantee": 8, "ceiling": None, "used": used, "entitlement": 16,
                     "borrowed": max(0, used - 8), "over_quota": 0},
            "after": {"used": used + change},
        }
        for name, (job, used, change) in sides.items()
    }  # fmt: skip


def _leave(attempt: Attempt, eviction: Eviction) -> None:
    """Put a victim where its eviction leaves it."""
    job, outcome = attempt.job, eviction.outcome
    stays = ("", EvictionOutcome.DEMOTED, EvictionOutcome.SHRUNK, EvictionOutcome.STAYED)
    if outcome not in stays:
        attempt.ended_at, attempt.outcome = eviction.ended_at, "evicted"
        attempt.save()
    state = JobState.PREEMPTING if not outcome else JobState.RUNNING
    number = job.attempt_number
    if outcome in LEFT or outcome == EvictionOutcome.LOST:
        state, number = JobState.PENDING, number + 1
    elif outcome not in stays:
        state = JobState.FAILED if outcome == "timed_out" else JobState(outcome.upper())
    Job.objects.filter(pk=job.pk).update(
        state=state, state_since=eviction.ended_at or eviction.at, attempt_number=number
    )
    job.refresh_from_db()


def secret_of(user: User) -> str:
    """The secret of a token just given out."""
    return issue_token(user, name="test", now=NOW)[1]
