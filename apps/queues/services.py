"""Open and close queues, and change how a cluster decides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.models import Cluster
from apps.common.errors import Conflict, Invalid
from apps.common.text import clean_text
from apps.queues.models import ClusterPolicy, PriorityClass, Queue
from apps.queues.selectors import DEFAULT_CLASS
from apps.tenants.models import Tenant

# Each refusal in words; whatever else a validator refuses, it says itself.
IN_WORDS = {
    "half_life_seconds": "H = 0 is refused; choose none for no decay.",
    "window_seconds": "A window of 0 would count no usage at all; choose none for no window.",
    "gang_timeout_seconds": "A timeout of 0 would let no gang gather; choose none for no timeout.",
    "max_age_seconds": "An age of 0 cannot be divided by; the age at which the term is full.",
}


def default_class() -> PriorityClass:
    """Return the class of a job that names none, made on demand."""
    made, _ = PriorityClass.objects.get_or_create(name=DEFAULT_CLASS)
    return made


def queue_for(tenant: Tenant, cluster: Cluster) -> Queue:
    """Return where a tenant's jobs wait on a cluster, made on demand."""
    queue, _ = Queue.objects.get_or_create(tenant=tenant, cluster=cluster)
    return queue


def queues_for(pairs: set[tuple[int, int]]) -> dict[tuple[int, int], Queue]:
    """Return the queues of (tenant id, cluster id) pairs, the missing ones made; few queries."""
    tenants = {tenant for tenant, _ in pairs}
    clusters = {cluster for _, cluster in pairs}

    def known() -> dict[tuple[int, int], Queue]:
        rows = Queue.objects.filter(tenant_id__in=tenants, cluster_id__in=clusters)
        return {(queue.tenant_id, queue.cluster_id): queue for queue in rows}

    found = known()
    missing = sorted(pairs - found.keys())
    if missing:
        Queue.objects.bulk_create(
            [Queue(tenant_id=tenant, cluster_id=cluster) for tenant, cluster in missing],
            ignore_conflicts=True,
        )
        found = known()
    return found


def check_row(row: Model, *, exclude: Sequence[str] = ()) -> None:
    """Refuse a row whose columns cannot be, in the words of the first.

    :raises Invalid: naming the column; NaN and infinity too, which no validator of Django sees.
    """
    for field in row._meta.fields:
        value = getattr(row, field.attname)
        if isinstance(value, float) and not math.isfinite(value):
            raise Invalid(f"{field.name} must be a finite number.", field=field.name)
    try:
        row.clean_fields(exclude=exclude)
    except ValidationError as error:
        raise _refuse_first(error) from error


def _refuse_first(error: ValidationError) -> Invalid:
    """Return Django's refusal of a model as ours: the first field and its sentence."""
    field, messages = next(iter(error.message_dict.items()))
    return Invalid(f"{field}: {messages[0]}", field=field)


def check_words(changes: Mapping[str, Any]) -> None:
    """Refuse, in words of its own, what no tick could decide by, and a 0 that switches nothing off.

    :raises Invalid: naming the field.
    """
    for field, words in IN_WORDS.items():
        if field in changes and changes[field] is not None and changes[field] == 0:
            raise Invalid(words, field=field)
    if changes.get("backfill") == "conservative":
        raise Invalid("conservative is not built yet; choose easy or none.", field="backfill")


@transaction.atomic
def set_policy(
    cluster: Cluster, *, by: User | None, now: datetime, reason: str, **changes: Any
) -> ClusterPolicy:
    """Change how a cluster decides; ``changes`` are columns of ClusterPolicy, None means none.

    :raises Invalid: naming the field; nothing is written.
    """
    policy, _ = ClusterPolicy.objects.select_for_update().get_or_create(cluster=cluster)
    known = {field.name for field in ClusterPolicy._meta.fields} - {"id", "cluster"}
    for field in changes:
        if field not in known:
            raise Invalid(f"A policy has no field {field}.", field=field)
    if by is not None:
        clean_text(reason, field="reason", max_length=300)
    before = {field: getattr(policy, field) for field in changes}
    check_words(changes)
    for field, value in changes.items():
        setattr(policy, field, value)
    check_row(policy, exclude=["cluster"])
    policy.save()
    audit.record(
        "policy changed",
        policy,
        by=by,
        now=now,
        changes=audit.differences(before, {field: getattr(policy, field) for field in changes}),
        reason=reason,
    )
    return policy


@transaction.atomic
def set_queue(
    queue: Queue,
    *,
    by: User | None,
    now: datetime,
    reason: str,
    factor: float,
    max_pending: int | None,
    closed: bool,
) -> Queue:
    """Change a queue's part of priority and how many jobs may wait in it; close or open it.

    :raises Invalid: naming the field; nothing is written.
    """
    reason = clean_text(reason, field="reason", max_length=300)
    before = {
        "factor": queue.factor,
        "max_pending": queue.max_pending,
        "closed": queue.closed_at is not None,
    }
    queue.factor = factor
    queue.max_pending = max_pending
    queue.closed_at = (queue.closed_at or now) if closed else None
    check_row(queue)
    queue.save()
    after = {"factor": factor, "max_pending": max_pending, "closed": closed}
    audit.record(
        "queue changed",
        queue,
        by=by,
        now=now,
        changes=audit.differences(before, after),
        reason=reason,
    )
    return queue


@transaction.atomic
def add_class(
    name: str,
    *,
    now: datetime,
    by: User | None = None,
    priority: int = 0,
    usage_factor: float = 1.0,
    preemptible: bool = True,
) -> PriorityClass:
    """Add a priority class.

    :raises Invalid: naming the field.
    :raises Conflict: if the name is taken.
    """
    name = clean_text(name, field="name", max_length=60)
    if PriorityClass.objects.filter(name=name).exists():
        raise Conflict(f"There is a class called {name} already.", field="name")
    made = PriorityClass(
        name=name, priority=priority, usage_factor=usage_factor, preemptible=preemptible
    )
    check_row(made)
    made.save(force_insert=True)
    audit.record("added", made, by=by, now=now)
    return made
