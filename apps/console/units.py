"""What GPUs are counted in: physical ones, or a pool's own slices where only those are meant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from apps.backends.models import Pool
from apps.common import show


def fraction_of(pool: Pool) -> Fraction:
    """Return what part of a physical GPU one unit of a pool is."""
    return Fraction(pool.fraction_numerator, pool.fraction_denominator)


def gpus_text(value: Fraction) -> str:
    """Write physical GPUs: whole, or with a decimal where slices make a part."""
    return show.decimals(value, 0 if value.denominator == 1 else 1)


@dataclass(frozen=True, slots=True)
class Unit:
    """A word, and what part of a physical GPU it stands for."""

    word: str = "GPU"
    fraction: Fraction = Fraction(1)

    def counted(self, gpus: Fraction, kind: str = "") -> str:
        """Write physical GPUs in this unit: ``44 slices``, ``8 h100 GPUs``."""
        count = gpus / self.fraction
        word = " ".join(filter(None, (kind, self.word)))
        return f"{gpus_text(count)} {word if count == 1 else word + 's'}"


def unit_of(pools: Iterable[Pool]) -> Unit:
    """Return the unit that some pools share; physical GPUs where they differ."""
    units = {Unit(pool.unit, fraction_of(pool)) for pool in pools}
    return units.pop() if len(units) == 1 else Unit()
