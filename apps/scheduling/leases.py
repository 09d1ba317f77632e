"""Who ticks a cluster now: a lease with a fencing number, taken and kept by compare-and-set."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from apps.backends.models import Cluster
from apps.common.errors import DomainError
from apps.common.rows import compare_and_set


class LeaseLost(DomainError):
    """Somebody else ticks this cluster by now; what this holder was about to write is void."""

    code = "lease_lost"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to tick one cluster until it expires; times are wall time."""

    cluster_id: int
    holder: str
    fence: int


def _length() -> timedelta:
    return timedelta(seconds=settings.LEASE_SECONDS)


def claim(cluster: Cluster, *, holder: str = "tick") -> Lease | None:
    """Take the lease if the cluster is free and due, else None."""
    now = timezone.now()
    # A name of its own for each claim: no two claims can read each other's fence.
    name = f"{holder[:40]}/{uuid.uuid4().hex}"
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=now)
    due = Q(not_before__isnull=True) | Q(not_before__lte=now)
    taken = Cluster.objects.filter(free, due, pk=cluster.pk, archived_at__isnull=True).update(
        lease_holder=name, lease_until=now + _length(), lease_fence=F("lease_fence") + 1
    )
    if not taken:
        return None
    fence = Cluster.objects.filter(pk=cluster.pk, lease_holder=name).values_list(
        "lease_fence", flat=True
    )
    found = fence.first()
    return None if found is None else Lease(cluster.pk, name, found)


def renew(lease: Lease, **fields: object) -> None:
    """Prolong the lease, and write other columns of the cluster's row with it.

    :raises LeaseLost: if it is no longer ours.
    """
    ours = {"id": lease.cluster_id, "lease_fence": lease.fence, "lease_holder": lease.holder}
    until = timezone.now() + _length()
    if not compare_and_set(Cluster, where=ours, values={"lease_until": until, **fields}):
        raise LeaseLost("Another worker ticks this cluster now.")


@contextmanager
def fenced(lease: Lease, **fields: object) -> Iterator[None]:
    """Open a transaction that only the lease-holder can commit.

    The renewal comes first: it locks the cluster's row, so nobody takes the lease meanwhile.
    """
    with transaction.atomic():
        renew(lease, **fields)
        yield


def release(lease: Lease, *, started: float, period: float) -> None:
    """Give the lease back, not to be taken before ``started`` + 0.9 × ``period`` (epoch seconds).

    The wait keeps a second beat, out of phase, from doubling the rate.
    """
    not_before = datetime.fromtimestamp(started + 0.9 * period, tz=UTC)
    Cluster.objects.filter(
        pk=lease.cluster_id, lease_fence=lease.fence, lease_holder=lease.holder
    ).update(lease_holder="", lease_until=None, not_before=not_before)
