"""What a GPU-hour costs, from an instant on."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.db import transaction

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.models import Pool
from apps.common.errors import Invalid
from apps.common.money import MICROS
from apps.common.time import to_us
from apps.ledger.models import Price
from apps.ledger.rollup import reprice

HIGHEST = Decimal(1_000_000)


@transaction.atomic
def set_price(
    pool: Pool,
    *,
    per_gpu_hour: Decimal,
    from_at: datetime | None,
    by: User | None,
    now: datetime,
    reason: str = "",
) -> Price:
    """Set what a GPU-hour of a physical GPU costs from an instant on, or, None, from always on.

    It holds until the next dated price. One in the past changes past reports: roll-ups follow.

    :raises Invalid: naming ``per_gpu_hour`` or ``from_at``.
    """
    micros = _micros(per_gpu_hour)
    from_us = 0 if from_at is None else _instant(from_at)
    price = Price.objects.select_for_update().filter(pool=pool, from_us=from_us).first()
    before = None if price is None else price.micros_per_gpu_hour
    if price is None:
        price = Price.objects.create(pool=pool, from_us=from_us, micros_per_gpu_hour=micros)
        reprice(price)
    elif before != micros:
        price.micros_per_gpu_hour = micros
        price.save(update_fields=["micros_per_gpu_hour"])
    else:
        return price
    audit.record(
        "priced",
        pool,
        by=by,
        now=now,
        changes={
            "per_gpu_hour": (None if before is None else _written(before), _written(micros)),
            "from_at": (None, None if from_at is None else from_at.isoformat()),
        },
        reason=reason,
    )
    return price


def _micros(per_gpu_hour: Decimal) -> int:
    if not isinstance(per_gpu_hour, Decimal) or not per_gpu_hour.is_finite():
        raise Invalid("per_gpu_hour must be an amount such as 2.50.", field="per_gpu_hour")
    if not 0 <= per_gpu_hour <= HIGHEST:
        raise Invalid(f"per_gpu_hour must be from 0 to {HIGHEST:,}.", field="per_gpu_hour")
    micros = per_gpu_hour * MICROS
    if micros != int(micros):
        raise Invalid("per_gpu_hour has more than six decimals.", field="per_gpu_hour")
    return int(micros)


def _instant(from_at: datetime) -> int:
    if from_at.tzinfo is None:
        raise Invalid("from_at must carry a time zone.", field="from_at")
    from_us = to_us(from_at)
    if from_us < 0:
        raise Invalid("from_at must not be before 1970.", field="from_at")
    return from_us


def _written(micros: int) -> str:
    return f"{Decimal(micros) / MICROS:f}"
