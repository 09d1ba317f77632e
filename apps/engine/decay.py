"""Exact, continuous decay of usage: closed forms, so the answer never depends on when ticks ran."""

from __future__ import annotations

import math

HOUR_US = 3_600_000_000


def decay(usage: float, elapsed_us: int, half_life_us: int | None) -> float:
    """Return usage after it decayed for a time: ``usage · 2^(-elapsed / half-life)``.

    ``half_life_us`` None means no decay; it must be positive otherwise.
    Source: Slurm, multifactor priority plugin, PriorityDecayHalfLife.
    """
    if half_life_us is None:
        return usage
    return usage * math.exp2(-elapsed_us / _positive(half_life_us))


def charge(gpus: float, start_us: int, end_us: int, at_us: int, half_life_us: int | None) -> float:
    """Return the decayed GPU-hours, as of ``at_us``, of GPUs used from ``start_us`` to ``end_us``.

    The integral of ``gpus · 2^(-(at - t) / half-life)`` over t; what lies after ``at_us`` is not
    charged yet. ``half_life_us`` None means no decay.
    """
    end_us = min(end_us, at_us)
    if end_us <= start_us:
        return 0.0
    if half_life_us is None:
        return gpus * (end_us - start_us) / HOUR_US
    scale = _positive(half_life_us) / math.log(2)
    # expm1 keeps the digits of a span that is short beside the half-life.
    grown = -math.expm1(-(end_us - start_us) / scale) * scale
    return gpus * grown * math.exp2(-(at_us - end_us) / half_life_us) / HOUR_US


def _positive(half_life_us: int) -> int:
    if half_life_us <= 0:
        raise ValueError("A half-life must be longer than 0; None means no decay.")
    return half_life_us


def back_at_share_in(
    usage: float, siblings: float, share: float, half_life_us: int | None
) -> float | None:
    """Return the microseconds until a tenant over its share is back at it, 0 if it is not over.

    ``H · log2(r)``, r being its usage ÷ what would be its share beside its siblings' usage, if
    that stays. None: never, for want of decay, of a share, or of anybody else's usage.
    """
    if usage <= 0:
        return 0.0
    if share >= 1:
        return 0.0
    at_share = siblings * share / (1 - share)
    if usage <= at_share:
        return 0.0
    if half_life_us is None or at_share <= 0:
        return None
    return _positive(half_life_us) * math.log2(usage / at_share)


def limit(gpus: float, half_life_us: int | None) -> float:
    """Return the GPU-hours that GPUs which never stop approach; infinite without decay."""
    if half_life_us is None:
        return math.inf
    return gpus * _positive(half_life_us) / math.log(2) / HOUR_US


def windowed(start_us: int, at_us: int, window_us: int | None) -> int:
    """Return from when on an interval still counts at an instant; None: no window."""
    return start_us if window_us is None else max(start_us, at_us - window_us)
