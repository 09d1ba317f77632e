"""The demo: people, teams and promises, and clusters that only a simulator brings to life.

Nothing here writes a job, a start or a GPU-hour: what is loaded are submissions to come, and the
tick makes the history out of them as it makes the present.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from apps.accounts.models import User
from apps.accounts.services import create_user
from apps.backends.models import Cluster, Grade, Pool
from apps.backends.services import add_cluster
from apps.backends.worlds import SimNode, world_of
from apps.common.errors import Conflict, DomainError, Invalid
from apps.jobs.models import Arrival
from apps.jobs.trace_import import Progress, import_trace, no_progress
from apps.jobs.traces import Report
from apps.jobs.workload import ATTENDED_CLASS, GPU_POOL, SLICE_POOL, made_jobs, node_changes
from apps.ledger.prices import set_price
from apps.queues.models import PriorityClass
from apps.queues.services import add_class, default_class, set_policy
from apps.quotas.models import Quota
from apps.quotas.services import set_quota
from apps.scheduling.planned import PolicyChange, plan_policies
from apps.tenants.models import Membership, Role, Tenant
from apps.tenants.services import add_member, create_tenant

PASSWORD = "rollcall"  # noqa: S105  the demo's, on 127.0.0.1 alone
PRICE = Decimal("2.50")
CLUSTER = "atlas"
NODES, GPUS_PER_NODE, SLICES = 32, 8, 56
RACKS, NVLINK_NODES = 2, 4
AHEAD = timedelta(days=2)
BATCH = 2_000

TENANTS = {
    "vision": 50.0,
    "vision/generative": 30.0,
    "vision/perception": 20.0,
    "nlp": 60.0,
    "nlp/alignment": 20.0,
    "nlp/pretrain": 30.0,
    "nlp/eval": 10.0,
    "bio": 20.0,
    "robotics": 15.0,
    "ops": 5.0,
    "guest": 0.0,
}
"""Path: weight; a parent stands before its children."""

# Path: what of the pool is promised, and what is never passed (None: no ceiling).
PROMISES: dict[str, tuple[float, float | None]] = {
    "vision": (0.31, None),
    "vision/generative": (0.17, None),
    "vision/perception": (0.12, 0.5),
    "nlp": (0.38, None),
    "nlp/pretrain": (0.25, None),
    "nlp/alignment": (0.09, None),
    "nlp/eval": (0.03, 0.25),
    "bio": (0.08, 0.25),
    "robotics": (0.06, 0.2),
    "ops": (0.03, None),
    "guest": (0.0, 0.1),
}

CLASSES: dict[str, dict[str, Any]] = {
    "urgent": {"priority": 100},
    "scavenger": {"priority": -100, "usage_factor": 0.0},
    ATTENDED_CLASS: {"preemptible": False},
}

# Careful with running work: nobody leaves in its first hour, nor soon after it came back.
GIVING_WAY: dict[str, Any] = {
    "preemption": "reclaim",
    "grace_seconds": 120,
    "min_runtime_seconds": 3_600,
    "cooldown_seconds": 6 * 3_600,
    "max_evictions_per_tick": 2,
}
# What was tried: from which part of the history on, the mode, and why.
TRIED: tuple[tuple[float, str, str], ...] = (
    (0.0, "kill", "promises are kept at once, whatever work that costs"),
    (2 / 7, "demote", "kills lost too much; who is in the way may end by itself first"),
    (4 / 7, "checkpoint", "promises came late; asked to save its work, a job loses little"),
)


class NotADemo(DomainError):
    """The demo's people have a known password: no production installation gets them."""

    code = "not_a_demo"


def _must_be_demo(force: bool) -> None:
    if settings.MODE == "production":
        raise NotADemo("This is a production installation: it takes no demo, not even by force.")
    if not settings.DEMO and not force:
        raise NotADemo(
            "This is no demo (ROLLCALL_MODE is not demo); --force loads it all the same."
        )


# People and teams -----------------------------------------------------------------------------------


def _user(name: str, *, is_admin: bool = False) -> User:
    known = User.objects.filter(username=name).first()
    return known or create_user(name, password=PASSWORD, is_admin=is_admin, check_password=False)


def _tenants(now: datetime) -> dict[str, Tenant]:
    found = {tenant.path: tenant for tenant in Tenant.objects.filter(path__in=TENANTS)}
    for path, weight in TENANTS.items():
        if path not in found:
            above, _, name = path.rpartition("/")
            found[path] = create_tenant(name, parent=found.get(above), weight=weight, now=now)
    return found


def _belongs(user: User, tenant: Tenant, role: str, now: datetime) -> None:
    """Give somebody a first place; who has one keeps it."""
    if not Membership.objects.filter(user=user).exists():
        add_member(tenant, user, role, now=now)


def _classes(now: datetime) -> None:
    default_class()
    known = set(PriorityClass.objects.values_list("name", flat=True))
    for name, columns in CLASSES.items():
        if name not in known:
            add_class(name, now=now, **columns)


def _promise(pool: Pool, gpus: int, tenants: dict[str, Tenant], now: datetime) -> None:
    for path, (guarantee, ceiling) in PROMISES.items():
        if not Quota.objects.filter(tenant=tenants[path], pool=pool).exists():
            set_quota(
                tenants[path],
                pool,
                guarantee=int(guarantee * gpus),
                ceiling=None if ceiling is None else max(1, int(ceiling * gpus)),
                weight=None,
                by=None,
                now=now,
                reason="the demo's",
            )


# The cluster of our own -------------------------------------------------------------------------------


def _nodes(count: int) -> list[SimNode]:
    """Return the demo's nodes: two racks, NVLink domains of four nodes, one node cut into slices."""
    per_rack = -(-count // RACKS)
    nodes = [
        SimNode(
            name=f"gpu-{number + 1:02}",
            pool=GPU_POOL,
            gpus=GPUS_PER_NODE,
            rack=f"rack-{number // per_rack + 1}",
            nvlink=f"nvl-{number // NVLINK_NODES + 1}",
        )
        for number in range(count)
    ]
    return [*nodes, SimNode("mig-01", SLICE_POOL, SLICES, rack="rack-1")]


def _atlas(seed: int, days: int, nodes: int, tenants: dict[str, Tenant], now: datetime) -> Cluster:
    start = (now - timedelta(days=days)).replace(minute=0, second=0, microsecond=0)
    cluster = add_cluster(
        CLUSTER,
        kind="simulator",
        grade=Grade.DRIVE,
        now=now,
        clock_now=start,
        clock_step=120,
        tick_seconds=settings.TICK_SECONDS,
        options={
            "made": {
                "seed": seed,
                "nodes": nodes,
                "until": start.isoformat(),
                "live_from": now.isoformat(),
            }
        },
    )
    whole = Pool.objects.create(cluster=cluster, name=GPU_POOL)
    sliced = Pool.objects.create(
        cluster=cluster, name=SLICE_POOL, fraction_numerator=1, fraction_denominator=7
    )
    for pool in (whole, sliced):
        set_price(pool, per_gpu_hour=PRICE, from_at=None, by=None, now=now, reason="the demo's")
    _promise(whole, nodes * GPUS_PER_NODE, tenants, now)
    plan_policies(
        cluster,
        [
            PolicyChange(start + part * timedelta(days=days), why, {**GIVING_WAY, "mode": mode})
            for part, mode, why in TRIED
        ],
    )
    world_of(cluster).add_nodes(_nodes(nodes), at=start)
    return cluster


def _top_up(cluster: Cluster, tenants: dict[str, Tenant], now: datetime) -> int:
    """Make the submissions up to two days ahead that are not made yet; return how many.

    Nothing is made before half of what lies ahead is used up.
    """
    made = dict(cluster.options["made"])
    since, live_from = (datetime.fromisoformat(made[key]) for key in ("until", "live_from"))
    if since > now + AHEAD / 2:
        return 0
    until = now + AHEAD
    jobs = made_jobs(
        made["seed"],
        since,
        until,
        gpus=made["nodes"] * GPUS_PER_NODE,
        slices=SLICES,
        live_from=live_from,
    )
    count = 0
    while batch := list(islice(jobs, BATCH)):
        Arrival.objects.bulk_create(
            Arrival(
                cluster_id=cluster.pk, at=job.at, tenant_id=tenants[job.tenant].pk, spec=job.spec
            )
            for job in batch
        )
        count += len(batch)
    names = [node.name for node in _nodes(made["nodes"]) if node.pool == GPU_POOL]
    world_of(cluster).plan(node_changes(made["seed"], since, until, names))
    cluster.options = {**cluster.options, "made": {**made, "until": until.isoformat()}}
    cluster.save(update_fields=["options"])
    return count


@transaction.atomic
def load_demo(
    *, now: datetime, seed: int = 1, days: int = 7, nodes: int = NODES, force: bool = False
) -> tuple[Cluster, int]:
    """Load the demo once; return its cluster and how many submissions to come were made.

    Run again it changes nothing, but makes more submissions where what lies ahead runs out.

    :raises NotADemo: where the demo's people must not be.
    """
    _must_be_demo(force)
    if days < 0 or nodes < 1:
        raise Invalid("The demo needs a node at least, and no negative days.", field="days")
    tenants = _tenants(now)
    _user("admin", is_admin=True)
    _belongs(_user("lead"), tenants["nlp"], Role.LEAD, now)
    _belongs(_user("member"), tenants["nlp/alignment"], Role.MEMBER, now)
    _classes(now)
    cluster = Cluster.objects.select_for_update().filter(name=CLUSTER).first()
    if cluster is None:
        cluster = _atlas(seed, days, nodes, tenants, now)
    elif "made" not in cluster.options:
        raise Conflict(f"There is a cluster {CLUSTER} that is not the demo's.", field="cluster")
    return cluster, _top_up(cluster, tenants, now)


# A trace ------------------------------------------------------------------------------------------------


@transaction.atomic
def load_trace(
    kind: str,
    path: Path,
    *,
    now: datetime,
    nodes: int = 100,
    force: bool = False,
    progress: Progress = no_progress,
) -> tuple[Cluster, Report | None]:
    """Load a trace as the demo: ``lead`` leads its largest tenant, ``member`` is in the second.

    Run again with the same file it changes nothing, and the report is None.

    :raises NotADemo: where the demo's people must not be.
    :raises Invalid: if the file cannot be read, or has no job.
    """
    _must_be_demo(force)
    _user("admin", is_admin=True)
    people = (_user("lead"), _user("member"))
    try:
        with transaction.atomic():
            report, cluster = import_trace(kind, path, now=now, nodes=nodes, progress=progress)
    except Conflict as error:
        if error.code != "already_imported":
            raise
        return Cluster.objects.get(name=kind), None
    if cluster is None:
        raise Invalid(f"No row of {path.name} is a job.", field="path")
    for pool in Pool.objects.filter(cluster=cluster):
        set_price(pool, per_gpu_hour=PRICE, from_at=None, by=None, now=now, reason="the demo's")
    set_policy(cluster, by=None, now=now, reason="the demo's")
    largest: Sequence[str] = [group for group, _ in report.groups.most_common(2)]
    for user, role, group in zip(people, (Role.LEAD, Role.MEMBER), largest, strict=False):
        tenant = Tenant.objects.get(parent__name=cluster.name, name__iexact=group)
        _belongs(user, tenant, role, now)
    return cluster, report
