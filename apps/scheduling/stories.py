"""The stories of the demo: a few jobs on a small cluster of their own, told by the tick at a pace."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from apps.accounts.models import User
from apps.backends.models import Cluster, Grade, Pool
from apps.backends.services import add_cluster
from apps.backends.worlds import SimNode, world_of
from apps.common.errors import Conflict
from apps.jobs.models import Job
from apps.jobs.services import JobSpec, submit_many
from apps.ledger.prices import set_price
from apps.queues.services import set_policy
from apps.scheduling.demo import PRICE
from apps.tenants.models import Tenant
from apps.tenants.services import create_tenant

STORY = "story"
STORY_RANKS, STORY_WAIT, STORY_RUN = 9, 47, 120


def _story_cluster(now: datetime) -> Cluster:
    cluster = Cluster.objects.select_for_update().filter(name=STORY).first()
    if cluster is not None:
        if not cluster.options.get("story"):
            raise Conflict(f"There is a cluster {STORY} that is not the demo's.", field="cluster")
        return cluster
    cluster = add_cluster(
        STORY,
        kind="simulator",
        grade=Grade.DRIVE,
        now=now,
        clock_now=now,
        clock_until=now,
        clock_step=1,
        tick_seconds=1,
        options={"story": True, "pace": 0.4},
    )
    pool = Pool.objects.create(cluster=cluster, name="gpu")
    set_price(pool, per_gpu_hour=PRICE, from_at=None, by=None, now=now, reason="the demo's")
    set_policy(cluster, by=None, now=now, reason="the demo's")
    names = [f"n{number}" for number in range(1, STORY_RANKS + 1)]
    world_of(cluster).add_nodes([SimNode(name, "gpu", 1, rack="r1") for name in names], at=now)
    return cluster


@transaction.atomic
def play_nine_ranks(*, now: datetime, tenant: Tenant | None = None, by: User | None = None) -> Job:
    """Play it once: nine ranks, eight reserved, one pending 47 s, then all start; return the gang.

    Nine nodes of one GPU at $2.50, on a virtual clock of seconds that starts at ``now``: one job
    takes a GPU for 47 s, a gang of nine is submitted behind it. It costs 8 × 47 = 376 GPU-seconds,
    $0.26. ``tenant`` None: nlp/alignment, or a tenant of the story's own.

    :raises Conflict: ``still_playing``, until the last one is told to its end.
    """
    start = now.replace(microsecond=0)
    cluster = _story_cluster(start)
    unfinished = Job.objects.filter(cluster=cluster, ended_at__isnull=True)
    if unfinished.exists():
        raise Conflict(
            "The nine ranks are on their way; look again in a moment.", code="still_playing"
        )
    # A clock never goes back, and no two stories share an instant.
    if cluster.clock_now is not None and cluster.first_look_at is not None:
        start = max(start, cluster.clock_now + timedelta(seconds=1))
    if tenant is None:
        paths = ("nlp/alignment", STORY)
        tenant = Tenant.objects.filter(path__in=paths, archived_at__isnull=True).first()
        tenant = tenant or create_tenant(STORY, now=now)
    # Who ticks the standing clock now would set it back: the lease is taken from it.
    Cluster.objects.filter(pk=cluster.pk).update(
        clock_now=start,
        clock_until=start + timedelta(seconds=STORY_WAIT + STORY_RUN + 30),
        lease_fence=F("lease_fence") + 1,
        lease_holder="",
        lease_until=None,
        not_before=None,
        tick_requested_at=now,
    )
    pool = Pool.objects.get(cluster=cluster)
    first = JobSpec(
        tenant=tenant,
        cluster=cluster,
        pool=pool,
        name="last to leave",
        size=1,
        gpus_per_member=1,
        limit_seconds=STORY_WAIT,
        workload={"kind": "simulated", "runtime": STORY_WAIT},
    )
    gang = JobSpec(
        tenant=tenant,
        cluster=cluster,
        pool=pool,
        name="nine ranks",
        size=STORY_RANKS,
        gpus_per_member=1,
        limit_seconds=2 * STORY_RUN,
        workload={"kind": "simulated", "runtime": STORY_RUN},
    )
    return submit_many([first, gang], at=[start, start], by=by)[1]
