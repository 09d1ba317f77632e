"""Submit jobs, move them through their life, cancel, hold and release them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from apps.accounts.models import User
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.backends.port import Backend
from apps.common.errors import Conflict, Invalid
from apps.common.rows import add_keyed, add_rows, insert_row
from apps.common.text import clean_text
from apps.jobs.models import Job, Move
from apps.jobs.moves import BATCH, ForbiddenMove, move_job, move_jobs, note
from apps.jobs.places import Place
from apps.jobs.selectors import jobs_visible_to, waiting_in
from apps.jobs.specs import JobSpec, check_key, check_spec, digest_of
from apps.jobs.states import HOLDING, TERMINAL, WAITING, JobState, Outcome
from apps.queues.models import PriorityClass, Queue
from apps.queues.selectors import find_default_class, find_queue
from apps.queues.services import default_class, queue_for, queues_for
from apps.tenants.models import Tenant

__all__ = [
    "ForbiddenMove",
    "JobSpec",
    "cancel_job",
    "hold_job",
    "move_job",
    "move_jobs",
    "note",
    "preview_job",
    "release_job",
    "submit_job",
    "submit_many",
]

TRIES = 5
"""How often a cancellation looks again when the tick moved the job meanwhile."""


def _check_open(queue: Queue, spec: JobSpec) -> None:
    if spec.cluster.archived_at is not None:
        raise Invalid(f"{spec.cluster} is archived.", field="cluster")
    if spec.tenant.archived_at is not None:
        raise Invalid(f"{spec.tenant} is archived and takes no new jobs.", field="tenant")
    if queue.closed_at is not None:
        raise Invalid(
            f"The queue of {spec.tenant} on {spec.cluster} is closed to new jobs.", field="tenant"
        )
    if queue.max_pending is not None:
        waiting = waiting_in(spec.tenant, spec.cluster.pk)
        if waiting >= queue.max_pending:
            raise Invalid(
                f"{waiting:,} jobs of {spec.tenant} wait on {spec.cluster}; its queue takes"
                f" {queue.max_pending:,}.",
                field="tenant",
            )


def _check_dependencies(spec: JobSpec, by: User | None) -> None:
    if not spec.depends_on:
        return
    asked = {job.pk for job in spec.depends_on}
    if by is not None:
        seen = set(jobs_visible_to(by).filter(pk__in=asked).values_list("pk", flat=True))
        if unseen := sorted(asked - seen):
            raise Invalid(f"There is no job {unseen[0]}.", field="depends_on")
    for job in spec.depends_on:
        if job.cluster_id != spec.cluster.pk:
            raise Invalid(f"Job {job.pk} is on another cluster.", field="depends_on")
        if job.state in (JobState.FAILED, JobState.CANCELLED):
            raise Invalid(
                f"Job {job.pk} ended as {job.state}; this one could never start.",
                field="depends_on",
            )


def _row(
    spec: JobSpec,
    columns: dict[str, Any],
    *,
    workload: dict[str, Any],
    by: User | None,
    at: datetime,
    key: str | None,
    digest: str,
    fallback: PriorityClass | None,
) -> Job:
    return Job(
        **columns,
        priority_class=spec.priority_class or fallback,
        workload=workload,
        submitted_at=at,
        submitted_by=by,
        state=JobState.PENDING,
        state_since=at,
        held_at=at if spec.held else None,
        held_by=by if spec.held else None,
        idempotency_key=key,
        request_digest=digest,
    )


def _submitted(job: Job, by: User | None) -> Move:
    return Move(
        job=job,
        at=job.submitted_at,
        before="",
        after=job.state,
        attempt_number=job.attempt_number,
        what="submitted",
        detail={"held": True} if job.held_at is not None else {},
        by=by,
    )


def _same_or_conflict(spec: JobSpec, key: str, digest: str) -> Job | None:
    """Return the job that a key made before; None if there is none."""
    known = Job.objects.filter(tenant=spec.tenant, idempotency_key=key).first()
    if known is not None and known.request_digest != digest:
        raise Conflict(
            f"The key {key} was used for another submission of {spec.tenant}: job {known.pk}.",
            field="Idempotency-Key",
            code="idempotency_conflict",
        )
    return known


def submit_job(
    spec: JobSpec,
    *,
    by: User | None,
    now: datetime,
    idempotency_key: str | None = None,
    place: Place | None = None,
) -> tuple[Job, bool]:
    """Submit a gang once; return it, and whether this call made it.

    ``by`` None: the system itself, which sees every job. A gang larger than its pool is accepted:
    ``selectors.never_fits`` says so. ``place`` is where the spec's names lead, if that was read.

    :raises Invalid: naming the field; nothing is written.
    :raises Conflict: ``idempotency_conflict``, if the key came with another submission before.
    """
    columns = check_spec(spec, now=now)
    digest = ""
    if idempotency_key is not None:
        check_key(idempotency_key)
        digest = digest_of(spec)
    try:
        job = _prepared(
            spec, columns, by=by, at=now, key=idempotency_key, digest=digest, place=place
        )
        with transaction.atomic():
            insert_row(job)
            insert_row(_submitted(job, by))
            if spec.depends_on:
                job.depends_on.set(spec.depends_on)
    except (Invalid, IntegrityError):
        # The constraint is the claim, not a look before. A key known already also answers where
        # the submission would be refused by now: its queue may have been closed since.
        known = None
        if idempotency_key is not None:
            known = _same_or_conflict(spec, idempotency_key, digest)
        if known is None:
            raise
        return known, False
    return job, True


def preview_job(
    spec: JobSpec, *, by: User | None, now: datetime, place: Place | None = None
) -> Job:
    """Return the row that a submission would make, after every check it would meet; write nothing.

    :raises Invalid: naming the field, as ``submit_job`` does.
    """
    return _prepared(
        spec,
        check_spec(spec, now=now),
        by=by,
        at=now,
        place=place,
        queue_of=find_queue,
        class_of=find_default_class,
    )


def _prepared(
    spec: JobSpec,
    columns: dict[str, Any],
    *,
    by: User | None,
    at: datetime,
    place: Place | None,
    queue_of: Callable[[Tenant, Cluster], Queue] = queue_for,
    class_of: Callable[[], PriorityClass] = default_class,
    key: str | None = None,
    digest: str = "",
) -> Job:
    """Return the row of a submission after every check that looks at what is there now.

    ``queue_of`` and ``class_of`` answer where ``place`` does not; by default they make what is missing.
    """
    workload = _check_workload(backend_of(spec.cluster), spec, columns)
    queue = place.queue if place is not None else None
    _check_open(queue or queue_of(spec.tenant, spec.cluster), spec)
    _check_dependencies(spec, by)
    fallback = None
    if spec.priority_class is None:
        fallback = (place.priority_class if place is not None else None) or class_of()
    return _row(
        spec, columns, workload=workload, by=by, at=at, key=key, digest=digest, fallback=fallback
    )


def _check_workload(backend: Backend, spec: JobSpec, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job runs, as its cluster takes it in, and refuse what it could never do."""
    able = backend.capabilities()
    if columns["min_size"] < columns["size"] and "shrink" not in able.can:
        why = able.cannot.get("shrink", f"{spec.cluster} cannot shrink a running gang.")
        raise Invalid(f"min_size must be size: {why}", field="min_size")
    return backend.check_workload(spec.workload)


def submit_many(
    specs: Sequence[JobSpec],
    *,
    at: Sequence[datetime],
    by: User | None = None,
    keys: Sequence[str] | None = None,
) -> list[Job]:
    """Submit many jobs, each at its own instant; return them in the order of ``specs``.

    The same rules as ``submit_job``, the first refusal refuses all. A key known already gives the
    job it made, whatever its body. The number of queries does not grow with the jobs of a batch.

    :raises Invalid: naming the field; nothing is written.
    """
    if not specs:
        return []
    queues = queues_for({(spec.tenant.pk, spec.cluster.pk) for spec in specs})
    fallback = default_class() if any(s.priority_class is None for s in specs) else None
    backends = {spec.cluster.pk: backend_of(spec.cluster) for spec in specs}
    known = _known_by_key(specs, keys)
    rows: list[Job] = []
    after: list[tuple[Job, JobSpec]] = []
    for index, spec in enumerate(specs):
        key = None if keys is None else keys[index]
        if key is not None and (spec.tenant.pk, key) in known:
            rows.append(known[spec.tenant.pk, key])
            continue
        columns = check_spec(spec, now=at[index])
        _check_open(queues[spec.tenant.pk, spec.cluster.pk], spec)
        _check_dependencies(spec, by)
        job = _row(
            spec,
            columns,
            workload=_check_workload(backends[spec.cluster.pk], spec, columns),
            by=by,
            at=at[index],
            key=key,
            digest="",
            fallback=fallback,
        )
        rows.append(job)
        after.append((job, spec))
    _insert_all(after, by)
    return rows


def _known_by_key(
    specs: Sequence[JobSpec], keys: Sequence[str] | None
) -> dict[tuple[int, str], Job]:
    found: dict[tuple[int, str], Job] = {}
    if keys is None:
        return found
    tenants = {spec.tenant.pk for spec in specs}
    for start in range(0, len(keys), BATCH):
        rows = Job.objects.filter(
            tenant_id__in=tenants, idempotency_key__in=keys[start : start + BATCH]
        )
        found.update({(job.tenant_id, job.idempotency_key or ""): job for job in rows})
    return found


@transaction.atomic(savepoint=False)
def _insert_all(pairs: Sequence[tuple[Job, JobSpec]], by: User | None) -> None:
    add_keyed([job for job, _ in pairs])
    add_rows([_submitted(job, by) for job, _ in pairs])
    link = Job.depends_on.through
    add_rows(
        [
            link(from_job_id=job.pk, to_job_id=needed.pk)
            for job, spec in pairs
            for needed in spec.depends_on
        ]
    )


def _check_ours(job: Job) -> None:
    if job.foreign_ref:
        raise Conflict(
            f"Job {job.pk} was submitted to {job.cluster} itself; change it there.", code="foreign"
        )


def cancel_job(job: Job, *, by: User | None, now: datetime, reason: str = "") -> Job:
    """End a job: one that waits at once, one that holds GPUs when its cluster says it left.

    Safe to repeat. What a RESERVING job holds is given back by the next tick, which finds the open
    reservation of a job that has ended.

    :raises Conflict: ``already_ended``, if it succeeded or failed before; ``foreign``, if it was
        submitted to the cluster itself.
    """
    _check_ours(job)
    reason = clean_text(reason, field="reason", max_length=300, blank=True)
    detail = {"reason": reason} if reason else {}
    for _ in range(TRIES):
        if job.state == JobState.CANCELLED:
            return job
        if job.state in TERMINAL:
            raise Conflict(f"Job {job.pk} ended as {job.state} already.", code="already_ended")
        if job.state in WAITING:
            if move_job(
                job,
                JobState.CANCELLED,
                at=now,
                what="cancelled",
                detail=detail,
                by=by,
                outcome=Outcome.CANCELLED,
                cancel_requested_at=now,
            ):
                return job
        elif job.cancel_requested_at is not None or _request_cancel(
            job, by=by, now=now, detail=detail
        ):
            return job
        job.refresh_from_db()
    raise Conflict(f"Job {job.pk} is moving just now; try again.", code="moving")


@transaction.atomic
def _request_cancel(job: Job, *, by: User | None, now: datetime, detail: dict[str, Any]) -> bool:
    claimed = Job.objects.filter(
        pk=job.pk, state__in=sorted(HOLDING), cancel_requested_at__isnull=True
    ).update(cancel_requested_at=now)
    if claimed != 1:
        return False
    job.cancel_requested_at = now
    note(job, "cancel_requested", at=now, detail=detail, by=by)
    return True


@transaction.atomic
def hold_job(job: Job, *, by: User | None, now: datetime, reason: str = "") -> Job:
    """Keep a job from starting until it is released; one that runs goes on, but not again.

    Safe to repeat: the first hold stands.

    :raises Conflict: ``already_ended``, if it has ended; ``foreign``, if it was submitted to the
        cluster itself.
    """
    _check_ours(job)
    reason = clean_text(reason, field="reason", max_length=300, blank=True)
    claimed = Job.objects.filter(
        pk=job.pk, state__in=sorted(WAITING | HOLDING), held_at__isnull=True
    ).update(held_at=now, held_by=by, held_reason=reason)
    job.refresh_from_db()
    if claimed == 1:
        note(job, "held", at=now, detail={"reason": reason} if reason else {}, by=by)
    elif job.state in TERMINAL:
        raise Conflict(f"Job {job.pk} ended as {job.state} already.", code="already_ended")
    return job


@transaction.atomic
def release_job(job: Job, *, by: User | None, now: datetime) -> Job:
    """Let a held job start again; safe to repeat.

    :raises Conflict: ``already_ended``, if it has ended; ``foreign``, if it was submitted to the
        cluster itself.
    """
    _check_ours(job)
    claimed = Job.objects.filter(
        pk=job.pk, state__in=sorted(WAITING | HOLDING), held_at__isnull=False
    ).update(held_at=None, held_by=None, held_reason="")
    job.refresh_from_db()
    if claimed == 1:
        note(job, "released", at=now, by=by)
    elif job.state in TERMINAL:
        raise Conflict(f"Job {job.pk} ended as {job.state} already.", code="already_ended")
    return job
