"""Which GPUs are held and not working, as the cluster's samples say."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from apps.backends.models import Cluster
from apps.backends.port import Sample
from apps.jobs.models import Attempt


def held_idle_of(
    cluster: Cluster, samples: Sequence[Sample]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the GPUs of attempts that are idle, and of those whose utilisation is unknown.

    Idle: below the pool's threshold for its grace period. A missing sample is unknown, not idle.
    """
    by_uid = {UUID(sample.uid): sample for sample in samples}
    idle: dict[int, int] = {}
    unknown: dict[int, int] = {}
    alive = Attempt.objects.filter(
        job__cluster=cluster, ended_at__isnull=True,
        started_at__isnull=False,
    )  # fmt: skip
    rows = alive.values_list(
        "id", "uid", "job__size", "job__gpus_per_member", "job__pool__idle_below",
        "job__pool__idle_grace_seconds",
    )  # fmt: skip
    for pk, uid, size, gpus, below, grace in rows:
        sample = by_uid.get(uid)
        if sample is None or sample.utilisation is None:
            if sample is not None:
                unknown[pk] = size * gpus
            continue
        if sample.utilisation < below and sample.idle_since is not None:
            idle_for = (sample.at - sample.idle_since).total_seconds()
            if idle_for >= grace:
                idle[pk] = size * gpus
    return idle, unknown
