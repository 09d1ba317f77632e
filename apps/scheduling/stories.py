"""The stories of the demo: a few jobs on a small cluster of their own, told by the tick at a pace.

Nothing of what happens in them is written here: only who asks for what, when, and under which policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from apps.accounts.models import User
from apps.backends.models import Cluster, Grade, Pool
from apps.backends.services import add_cluster
from apps.backends.worlds import SimNode, world_of
from apps.common.errors import Conflict, Invalid
from apps.jobs.models import Arrival, Attempt, Job
from apps.jobs.services import JobSpec, cancel_job, submit_many
from apps.ledger.prices import set_price
from apps.queues.selectors import policy_of
from apps.queues.services import set_policy
from apps.quotas.models import Quota
from apps.quotas.services import set_quota
from apps.scheduling.demo import PRICE
from apps.tenants.models import Tenant
from apps.tenants.services import create_tenant

CLUSTER, POOL, NODES = "story", "gpu", 9
PACE = 0.4
"""Wall seconds that a second of a story takes."""

# Who plays: a team of the demo if it is there, or one of the stories' own.
OURS, OTHERS = ("nlp/alignment", CLUSTER), ("vision/generative", f"{CLUSTER}-others")
PROMISED = 6
"""The GPUs that the others are promised."""


@dataclass(frozen=True, slots=True)
class Part:
    """A job of a story: a gang of ``size`` GPUs that comes ``at`` so many seconds and then runs."""

    name: str
    size: int
    runs: int
    at: int = 0
    ours: bool = True
    limit: int = 0  # twice as long as it runs, unless it is given
    min_size: int | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        """Return what it asks, in the words of a JobSpec."""
        return {
            "name": self.name,
            "size": self.size,
            "gpus_per_member": 1,
            "min_size": self.min_size,
            "limit_seconds": self.limit or 2 * self.runs,
            "workload": {"kind": "simulated", "runtime": self.runs, **self.workload},
        }


@dataclass(frozen=True, slots=True)
class Story:
    """Who plays, the policy they play under, and the seconds it takes; ``hero``: whom to watch."""

    title: str
    parts: tuple[Part, ...]
    lasts: int
    hero: str
    policy: Mapping[str, Any]


def _makes_way(
    title: str, mode: str, *, grace: int, saves: int, runs: int, gang: int = 6, least: int = 6
) -> Story:
    """Tell of a gang that has to make way for one with a promise, while a small job is let be.

    On nine GPUs six are in use by a gang, two by a job that is not enough to make room: it is
    looked at first, having less to lose, and given back.
    """
    workload = {"checkpoint_takes": saves}
    parts = (
        Part("makes way", 6, runs, min_size=least, workload=workload),
        Part("looks on", 2, 100, workload=workload),
        Part("was promised room", gang, 40, at=30, ours=False),
    )
    policy = {"preemption": "reclaim", "mode": mode, "grace_seconds": grace}
    return Story(title, parts, 240, "makes way", policy)


NINE_RANKS = "nine-ranks"
STORIES = {
    NINE_RANKS: Story(
        "nine ranks",
        (Part("last to leave", 1, 47, limit=47), Part("nine ranks", 9, 120)),
        200,
        "nine ranks",
        {"preemption": "none", "mode": "kill", "grace_seconds": 60},
    ),
    "kill": _makes_way("a kill", "kill", grace=60, saves=0, runs=90),
    "checkpoint": _makes_way("a checkpoint", "checkpoint", grace=45, saves=25, runs=90),
    "demote": _makes_way("a demotion", "demote", grace=30, saves=15, runs=120),
    "shrink": _makes_way("a shrink", "checkpoint", grace=45, saves=10, runs=90, gang=4, least=3),
}
"""By name; what is to be seen in each is in its test."""


# Where it is played ---------------------------------------------------------------------------------------


def _cluster(now: datetime) -> Cluster:
    cluster = Cluster.objects.select_for_update().filter(name=CLUSTER).first()
    if cluster is not None:
        if not cluster.options.get("story"):
            raise Conflict(f"There is a cluster {CLUSTER} that is not the demo's.", field="cluster")
        return cluster
    cluster = add_cluster(
        CLUSTER,
        kind="simulator",
        grade=Grade.DRIVE,
        now=now,
        clock_now=now,
        clock_until=now,
        clock_step=1,
        tick_seconds=1,
        options={"story": True, "pace": PACE},
    )
    pool = Pool.objects.create(cluster=cluster, name=POOL)
    set_price(pool, per_gpu_hour=PRICE, from_at=None, by=None, now=now, reason="the demo's")
    names = [f"n{number}" for number in range(1, NODES + 1)]
    world_of(cluster).add_nodes([SimNode(name, POOL, 1, rack="r1") for name in names], at=now)
    return cluster


def _team(paths: tuple[str, str], now: datetime) -> Tenant:
    found = {row.path: row for row in Tenant.objects.filter(path__in=paths, archived_at=None)}
    for path in paths:
        if path in found:
            return found[path]
    return create_tenant(paths[-1], now=now)


def _promise(tenant: Tenant, pool: Pool, now: datetime) -> None:
    """Promise a team, and all above it, their GPUs, and nobody else any."""
    line = [tenant]
    while line[0].parent is not None:
        line.insert(0, line[0].parent)
    others = Quota.objects.filter(pool=pool, guarantee__gt=0).exclude(tenant__in=line)
    # Below before above, as a promise is kept by those above; then the other way round.
    gone = [row.tenant for row in others.order_by("-tenant__path").select_related("tenant")]
    for gpus, tenants in ((0, gone), (PROMISED, line)):
        for one in tenants:
            if not Quota.objects.filter(tenant=one, pool=pool, guarantee=gpus).exists():
                set_quota(
                    one, pool, guarantee=gpus, ceiling=None, weight=None,
                    by=None, now=now, reason="the demo's",
                )  # fmt: skip


def _set_policy(cluster: Cluster, story: Story, now: datetime) -> None:
    policy = policy_of(cluster)
    changes = {k: v for k, v in story.policy.items() if getattr(policy, k) != v}
    if changes or policy.pk is None:
        reason = f"the demo's: the story of {story.title}"
        set_policy(cluster, by=None, now=now, reason=reason, **changes)


def _clear(cluster: Cluster) -> None:
    """Make room for a story, unless one is being told.

    Where the clock stands at the end, whatever is left was kept from ending by somebody, put on
    hold perhaps: it is cancelled.

    :raises Conflict: ``still_playing``.
    """
    left = list(Job.objects.filter(cluster=cluster, ended_at__isnull=True).order_by("pk"))
    if not left and not Arrival.objects.filter(cluster=cluster, job=None, refused="").exists():
        return
    end = cluster.clock_until
    if end is None or cluster.now() < end:
        told = STORIES.get(str(cluster.options.get("playing")))
        which = f"The story of {told.title}" if told else "A story"
        raise Conflict(
            f"{which} is being told on the cluster {CLUSTER}; look again in a minute.",
            code="still_playing",
        )
    for job in left:
        cancel_job(job, by=None, now=end, reason="the next story begins")
    here = Attempt.objects.filter(job__cluster=cluster, ended_at__isnull=True)
    for uid in here.values_list("uid", flat=True):
        world_of(cluster).finish(str(uid), "cancelled", at=end)


# What is played -------------------------------------------------------------------------------------------


@transaction.atomic
def play(name: str, *, now: datetime, by: User | None = None) -> Job:
    """Play a story once, on a virtual clock of seconds that starts at ``now``; return its hero.

    The nine ranks: nine nodes of one GPU at $2.50; one job takes a GPU for 47 s, a gang of nine is
    submitted behind it. It costs 8 × 47 = 376 GPU-seconds, $0.26.

    The others: a gang runs on six of the nine, and 30 s later one comes that is promised as many. A
    kill loses 6 × 30 = 180 GPU-seconds, $0.13; a checkpoint, a demotion and a shrink lose nothing.

    :raises Invalid: if there is no such story.
    :raises Conflict: ``still_playing``, until the last one is told to its end.
    """
    if name not in STORIES:
        raise Invalid(f"There is no story called {name}.", field="story")
    story, start = STORIES[name], now.replace(microsecond=0)
    cluster = _cluster(start)
    _clear(cluster)
    # A clock never goes back, and no two stories share an instant.
    if cluster.clock_now is not None and cluster.first_look_at is not None:
        start = max(start, cluster.clock_now + timedelta(seconds=1))
    # Who ticks the standing clock now would set it back: the lease is taken from it.
    Cluster.objects.filter(pk=cluster.pk).update(
        options={**cluster.options, "playing": name},
        clock_now=start,
        clock_until=start + timedelta(seconds=story.lasts),
        lease_fence=F("lease_fence") + 1,
        lease_holder="",
        lease_until=None,
        not_before=None,
        tick_requested_at=now,
    )
    _set_policy(cluster, story, start)
    return _submit(cluster, story, start, by)


def _submit(cluster: Cluster, story: Story, start: datetime, by: User | None) -> Job:
    """Submit who is there from the start, and have the others come; return the hero."""
    pool = Pool.objects.get(cluster=cluster)
    teams = {True: _team(OURS, start)}
    if not all(part.ours for part in story.parts):
        teams[False] = _team(OTHERS, start)
        _promise(teams[False], pool, start)
    first = [part for part in story.parts if not part.at]
    specs = [
        JobSpec(tenant=teams[part.ours], cluster=cluster, pool=pool, **part.spec())
        for part in first
    ]
    jobs = submit_many(specs, at=[start] * len(specs), by=by)
    Arrival.objects.bulk_create(
        Arrival(
            cluster=cluster,
            at=start + timedelta(seconds=part.at),
            tenant=teams[part.ours],
            spec={"pool": POOL, **part.spec()},
        )
        for part in story.parts
        if part.at
    )
    return next(job for job in jobs if job.name == story.hero)
