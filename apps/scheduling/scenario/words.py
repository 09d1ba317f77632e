"""How the answer of a scenario writes instants and money."""

from __future__ import annotations

from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction


def stamp(at: datetime) -> str:
    """Return an instant to the second, in UTC."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def money_text(exact: Fraction) -> str:
    """Return an amount with four decimals, half up."""
    cents = Decimal(exact.numerator) / Decimal(exact.denominator)
    return str(cents.quantize(Decimal("0.0001"), ROUND_HALF_UP))
