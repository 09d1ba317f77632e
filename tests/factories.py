"""Make what tests need, with one line each and sensible defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from apps.accounts.models import User
from apps.accounts.services import issue_token
from apps.backends.models import Cluster, Node, Pool
from apps.jobs.models import Job
from apps.jobs.services import JobSpec, submit_job
from apps.tenants.models import Tenant
from apps.tenants.services import add_member, create_tenant

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def make_user(name: str, **columns: Any) -> User:
    """A person without a password: nobody logs in by form here."""
    return User.objects.create(username=name, **columns)


def make_cluster(name: str = "atlas", **columns: Any) -> Cluster:
    """A simulated cluster that was looked at already, its clock at NOW."""
    columns = {"clock_now": NOW, "first_look_at": NOW, "created_at": NOW} | columns
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


def secret_of(user: User) -> str:
    """The secret of a token just given out."""
    return issue_token(user, name="test", now=NOW)[1]
