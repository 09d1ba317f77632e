"""What a victim left is held for its gang from that very instant, and from no other's."""

from __future__ import annotations

from datetime import timedelta

from apps.backends.models import Pool
from apps.jobs.models import Job, Member, Reservation
from apps.ledger.models import Interval
from apps.scheduling.promises import redeem
from apps.tenants.models import Tenant
from tests.factories import NOW, make_eviction, make_job


def test_room_counts_from_when_its_own_victim_left_not_from_when_another_shrank_elsewhere(
    vision: Tenant, pool: Pool, taker: Job
) -> None:
    stays, gone = pool.nodes.order_by("id")[:2]
    whole = make_job(vision, pool, name="whole", size=1, gpus_per_member=4)
    elastic = make_job(vision, pool, name="elastic", size=2, gpus_per_member=4)
    left = make_eviction(whole, taker, mode="kill", outcome="killed", took=timedelta(seconds=10))
    shrank = make_eviction(
        elastic, taker, mode="shrink", outcome="shrunk", members=1, took=timedelta(seconds=30)
    )
    Member.objects.create(attempt=left.attempt, rank=0, node=stays)
    Member.objects.create(attempt=shrank.attempt, rank=0, node=stays)
    Member.objects.create(attempt=shrank.attempt, rank=1, node=gone, left_at=shrank.ended_at)
    promises = [[0, stays.pk], [1, gone.pk]]
    reservation = Reservation.objects.create(
        job=taker, attempt_number=1, since=NOW, promised=True, promises=promises
    )

    redeem({taker.pk: reservation}, {taker.pk: dict(promises)}, {})

    held = Interval.objects.filter(job=taker, kind="hold").order_by("rank")
    since = [(row.start_us - int(NOW.timestamp()) * 1_000_000) / 1e6 for row in held]
    assert since == [10.0, 30.0]
