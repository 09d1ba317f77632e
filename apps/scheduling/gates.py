"""What stands on a job's own row and holds it: someone's hold, a dependency, a time, a pause."""

from __future__ import annotations

from typing import Any

from apps.jobs.models import Job
from apps.jobs.states import JobState

AHEAD_CODES = frozenset({"capacity", "reserved", "ceiling"})
"""Reasons with which the waiting jobs of the pool before it are told."""


def _paused_tenant(job: Job) -> Any:
    """Return the tenant whose pause (or archive) holds a job: its own or the nearest above."""
    tenant: Any = job.tenant
    while tenant is not None:
        if tenant.paused_at is not None or tenant.archived_at is not None:
            return tenant
        tenant = tenant.parent
    return None


def gate_of(job: Job, code: str) -> dict[str, Any]:
    """Return who or what holds a job, since when and until what, for the codes of gates."""
    if code == "held":
        nobody = "the cluster itself" if job.foreign_ref else "an automation"
        who = str(job.held_by) if job.held_by_id else nobody
        return {"who": who, "since": job.held_at or job.submitted_at, "what": job.held_reason}
    if code == "dependency":
        unmet = [j for j in job.depends_on.all() if j.state != JobState.SUCCEEDED]
        unmet.sort(key=lambda needed: needed.pk)
        return {"since": job.submitted_at, "what": [j.name for j in unmet]}
    if code == "begin_time" and job.begin_at is not None:
        return {"since": job.submitted_at, "what": job.begin_at}
    if code == "paused":
        tenant = _paused_tenant(job)
        if tenant is None:
            return {}
        who = str(tenant.paused_by) if tenant.paused_by_id else ""
        since = tenant.paused_at or tenant.archived_at
        return {"who": who, "since": since, "what": tenant.path}
    return {}
