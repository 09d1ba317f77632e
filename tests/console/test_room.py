"""Free GPUs are those up, without what runs, what is held and what is not ours."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from apps.backends.models import Node, NodeState, Pool
from apps.console.room import Room, room_in
from apps.console.units import unit_of
from apps.ledger.models import Interval


def test_what_is_free_is_what_is_left(world: SimpleNamespace, django_assert_num_queries) -> None:
    Node.objects.filter(name="gpu-n00").update(state=NodeState.DOWN)
    Node.objects.filter(name="gpu-n01").update(foreign_gpus=2)
    for kind, gpus, end in (
        ("member", 5, None),
        ("member", 3, None),
        ("hold", 4, None),
        ("member", 8, 9),
    ):
        Interval.objects.create(
            cluster=world.cluster, pool=world.pool, kind=kind, gpus=gpus, start_us=1, end_us=end
        )

    with django_assert_num_queries(1):
        room = room_in([world.pool])

    assert room == Room(up=24, used=8, held=4, foreign=2)
    assert room.free == 10


def test_slices_count_as_the_part_of_a_gpu_they_are(world: SimpleNamespace) -> None:
    slices = Pool.objects.create(
        cluster=world.cluster, name="mig", fraction_numerator=1, fraction_denominator=7
    )
    Node.objects.create(
        cluster=world.cluster, pool=slices, name="mig-01", gpus=7, state_since=world.tick.at
    )

    assert room_in([world.pool, slices]).free == 33
    assert unit_of([world.pool, slices]).counted(Fraction(33)) == "33 GPUs"
    assert unit_of([slices]).counted(room_in([slices]).free) == "7 slices"


@pytest.mark.django_db
def test_no_pool_has_no_room() -> None:
    assert room_in([]).free == 0
