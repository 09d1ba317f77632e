"""How many GPUs are free and how many are held for gangs, as the ledger's open intervals say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from django.db.models import F, QuerySet, Sum, Value

from apps.backends.models import Node, NodeState, Pool
from apps.console.units import fraction_of
from apps.ledger.models import Interval, IntervalKind


@dataclass(frozen=True, slots=True)
class Room:
    """Physical GPUs of some pools now."""

    up: Fraction
    used: Fraction
    held: Fraction
    foreign: Fraction

    @property
    def free(self) -> Fraction:
        """Return what is up and nobody's."""
        return max(Fraction(0), self.up - self.used - self.held - self.foreign)


Sums = QuerySet[Any, tuple[str, int, int | None]]


def _sums(rows: QuerySet[Any], column: str) -> Sums:
    """Return the sum of a column by what a row is and by pool."""
    by = rows.order_by().values("what", "pool_id").annotate(total=Sum(column))
    sums: Sums = by.values_list("what", "pool_id", "total")
    return sums


def room_in(pools: Iterable[Pool]) -> Room:
    """Return the room in some pools; one query."""
    chosen = {pool.pk: fraction_of(pool) for pool in pools}
    nodes = Node.objects.filter(pool__in=chosen, state=NodeState.UP, gone_at__isnull=True)
    held = Interval.objects.filter(
        pool__in=chosen,
        end_us__isnull=True,
        kind__in=[IntervalKind.MEMBER, IntervalKind.HOLD],
        on_drained=False,
    )
    rows = _sums(nodes.annotate(what=Value("up")), "gpus").union(
        _sums(nodes.annotate(what=Value("foreign")), "foreign_gpus"),
        _sums(held.annotate(what=F("kind")), "gpus"),
        all=True,
    )
    gpus: defaultdict[str, Fraction] = defaultdict(Fraction)
    for what, pool_id, total in rows:
        gpus[str(what)] += (total or 0) * chosen[pool_id]
    return Room(
        up=gpus["up"],
        used=gpus[IntervalKind.MEMBER.value],
        held=gpus[IntervalKind.HOLD.value],
        foreign=gpus["foreign"],
    )
