"""Likely starts, made now and then from the newest tick: the engine's cycle on a virtual clock."""

from __future__ import annotations

import time

from django.db import transaction

from apps.backends.models import Cluster
from apps.engine.forecast import likely_starts
from apps.scheduling.models import Forecast, Tick
from apps.scheduling.stored import decision_of

EVERY_SECONDS = 15.0
BUDGET_SECONDS = 1.0
MOST_STEPS = 200

_made: dict[int, float] = {}
"""When this process last made each cluster's forecast; one made twice does no harm."""


def is_due(cluster: Cluster) -> bool:
    """Return whether the forecast of a cluster should be made again."""
    return time.monotonic() - _made.get(cluster.pk, float("-inf")) >= EVERY_SECONDS


def steps_within(decide_ms: float) -> int:
    """Return how many decisions the budget allows, by what one took, milliseconds."""
    return max(5, min(int(BUDGET_SECONDS * 1e3 / max(decide_ms, 1.0)), MOST_STEPS))


def make_forecast(cluster: Cluster, tick: Tick) -> int:
    """Replace the forecast of a cluster by one from a tick; return how many jobs have one.

    Steps are cut to what the budget allows, by what deciding took: a long line far ahead of the
    last step has no forecast.
    """
    _made[cluster.pk] = time.monotonic()
    seen = decision_of(tick).seen
    starts = likely_starts(seen.snapshot, seen.policy, steps=steps_within(tick.decide_ms))
    rows = [
        Forecast(job_id=job_id, cluster=cluster, tick_id=tick.pk, starts_us=at)
        for job_id, at in zip(seen.pending_ids, starts.tolist(), strict=True)
        if at > seen.snapshot.now
    ]
    with transaction.atomic():
        Forecast.objects.filter(cluster=cluster)._raw_delete("default")
        Forecast.objects.bulk_create(rows, batch_size=1_000)
    return len(rows)
