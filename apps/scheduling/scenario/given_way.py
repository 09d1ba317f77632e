"""Who gave way in a scenario, and whom it happened to too often, as the answer tells it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from apps.common.money import MICROS
from apps.common.time import HOUR_US
from apps.jobs.models import Eviction
from apps.scheduling.scenario.setup import Stage
from apps.scheduling.scenario.words import money_text, stamp


def _rows(stage: Stage) -> list[Eviction]:
    rows = Eviction.objects.filter(cluster=stage.cluster).order_by("id")
    return list(rows.select_related("job", "beneficiary", "attempt"))


def evictions_of(stage: Stage) -> list[dict[str, Any]]:
    """Return the evictions since now, in order; what is not known while it leaves is null."""
    return [
        {
            "job": row.job.name,
            "attempt": row.attempt.number,
            "mode": row.mode,
            "for": row.beneficiary.name,
            "rule": row.rule,
            "outcome": row.outcome or None,
            "lost_gpu_hours": None if row.lost_gpu_us is None else row.lost_gpu_us / HOUR_US,
            "lost_money": None
            if row.lost_micros is None
            else money_text(Fraction(row.lost_micros, MICROS)),
            "at": stamp(row.at),
        }
        for row in _rows(stage)
    ]


def alarms_of(stage: Stage) -> list[dict[str, Any]]:
    """Return an alarm for each eviction that reached the limit within an hour."""
    return [
        {
            "code": "thrash",
            "job": row.job.name,
            "evictions": row.within_hour,
            "at": stamp(row.at),
        }
        for row in _rows(stage)
        if row.thrashes
    ]
