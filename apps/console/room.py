"""How many GPUs are free and how many are held for gangs, as the ledger's open intervals say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import F, QuerySet, Sum, Value

from apps.backends.models import Node, NodeState, Pool
from apps.ledger.models import Interval, IntervalKind


@dataclass(frozen=True, slots=True)
class Room:
    """GPUs of some pools now."""

    up: int
    used: int
    held: int
    foreign: int

    @property
    def free(self) -> int:
        """Return what is up and nobody's."""
        return max(0, self.up - self.used - self.held - self.foreign)


def _sums(rows: QuerySet[Any], column: str) -> QuerySet[Any, tuple[str, int | None]]:
    """Return the sum of a column by what a row is."""
    sums: QuerySet[Any, tuple[str, int | None]] = (
        rows.order_by().values("what").annotate(total=Sum(column)).values_list("what", "total")
    )
    return sums


def room_in(pools: Iterable[Pool]) -> Room:
    """Return the room in some pools; one query."""
    chosen = [pool.pk for pool in pools]
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
    gpus = {str(kind): total or 0 for kind, total in rows}
    return Room(
        up=gpus.get("up", 0),
        used=gpus.get(IntervalKind.MEMBER.value, 0),
        held=gpus.get(IntervalKind.HOLD.value, 0),
        foreign=gpus.get("foreign", 0),
    )
