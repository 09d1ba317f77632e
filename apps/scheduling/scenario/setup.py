"""A scenario's cluster, tenants and jobs put into the database and into a simulated world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from apps.backends import worlds
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, Grade, Node, Pool
from apps.backends.services import sync_nodes
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job, Member
from apps.jobs.states import JobState
from apps.ledger.models import OpeningBalance, Price
from apps.queues.models import ClusterPolicy, PriorityClass, Queue
from apps.quotas.models import Quota
from apps.scheduling.act import launch_request
from apps.scheduling.scenario.shape import Job as JobRow
from apps.scheduling.scenario.shape import Scenario
from apps.tenants.models import Tenant

NAME = "scenario"


@dataclass(slots=True)
class Stage:
    """What was set up, by the names of the file."""

    scenario: Scenario
    cluster: Cluster
    pools: dict[str, Pool] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    adopted: set[int] = field(default_factory=set)  # attempts that ran before now


def _seconds(value: float | None) -> int | None:
    return None if value is None else int(value)


def _policy(cluster: Cluster, policy: Mapping[str, Any]) -> ClusterPolicy:
    weights = policy["weights"]
    return ClusterPolicy(
        cluster=cluster,
        fair_share=policy["fair_share"],
        half_life_seconds=_seconds(policy["half_life"]),
        window_seconds=_seconds(policy["window"]),
        weight_fair_share=weights["fair_share"],
        weight_age=weights["age"],
        weight_size=weights["size"],
        weight_queue=weights["queue"],
        weight_class=weights["class"],
        max_age_seconds=int(policy["max_age"]),
        placement=policy["placement"],
        backfill=policy["backfill"],
        hold_late_seconds=_seconds(policy["hold_late"]),
        gang_timeout_seconds=_seconds(policy["gang_timeout"]),
        lend_guarantee=policy["lend_guarantee"],
        preemption=policy["preemption"],
        mode=policy["mode"],
        grace_seconds=int(policy["grace"]),
        min_runtime_seconds=int(policy["min_runtime"]),
        max_evictions_per_tick=policy["max_evictions_per_tick"],
        cooldown_seconds=int(policy["cooldown"]),
        thrash_after=policy["thrash_after"],
    )


def _pools(stage: Stage) -> None:
    for row in stage.scenario.pools:
        pool = Pool.objects.create(
            cluster=stage.cluster, name=row["name"], usage_weight=row["usage_weight"]
        )
        micros = int(row["price"] * Decimal(1_000_000))
        Price.objects.create(pool=pool, from_us=0, micros_per_gpu_hour=micros)
        stage.pools[pool.name] = pool


def _nodes(stage: Stage, now: datetime) -> None:
    world = worlds.world_of(stage.cluster)
    world.add_nodes(
        [
            worlds.SimNode(
                name=name,
                pool=row["pool"],
                gpus=row["gpus"],
                rack="" if row["rack"] == "none" else row["rack"],
                nvlink="" if row["nvlink"] == "none" else row["nvlink"],
                state=row["state"],
            )
            for row in stage.scenario.nodes
            for name in row["name"]
        ],
        at=now,
    )
    seen = backend_of(stage.cluster).observe("", now=now)
    sync_nodes(stage.cluster, seen.nodes, at=now)
    stage.nodes = {node.name: node for node in Node.objects.filter(cluster=stage.cluster)}


def _tenants(stage: Stage, now: datetime) -> None:
    rows = stage.scenario.tenants
    parents = {row["name"]: row["parent"] for row in rows}

    def path(name: str) -> str:
        above = parents[name]
        return name if above == "root" else f"{path(above)}/{name}"

    for row in rows:
        stage.tenants[row["name"]] = Tenant.objects.create(
            name=row["name"],
            path=path(row["name"]),
            weight=row["weight"],
            created_at=now,
            archived_at=now if row["archived"] else None,
        )
    for row in rows:
        tenant = stage.tenants[row["name"]]
        if row["parent"] != "root":
            tenant.parent = stage.tenants[row["parent"]]
            tenant.save(update_fields=["parent"])
        Queue.objects.create(tenant=tenant, cluster=stage.cluster)
        if row["usage"]:
            OpeningBalance.objects.create(
                cluster=stage.cluster, tenant=tenant, at_us=to_us(now), gpu_hours=row["usage"]
            )
        for pool, quota in row["quota"].items():
            Quota.objects.create(tenant=tenant, pool=stage.pools[pool], **quota)


def _class(job: JobRow) -> PriorityClass:
    name = f"priority {job.priority}, usage {job.usage_factor:g}"
    if not job.preemptible:
        name += ", stays"
    return PriorityClass.objects.get_or_create(
        name=name,
        defaults={
            "priority": job.priority,
            "usage_factor": job.usage_factor,
            "preemptible": job.preemptible,
        },
    )[0]


def _classes(scenario: Scenario) -> None:
    """Make the classes of all jobs, also of those to come: the highest in the file counts."""
    for event in scenario.events:
        if event.what == "submit":
            for row in event.value:
                _class(row)


def _workload(job: JobRow) -> dict[str, Any]:
    takes = "never" if job.checkpoint_takes is None else job.checkpoint_takes
    workload: dict[str, Any] = {"kind": "simulated", "checkpoint_takes": takes}
    if job.runtime is not None:
        workload["runtime"] = job.runtime
    return workload


def add_jobs(stage: Stage, rows: Sequence[JobRow]) -> None:
    """Put jobs in, in the order of the file; those that run are admitted and known to the world."""
    for row in rows:
        running = row.state == "running"
        job = Job.objects.create(
            name=row.name,
            tenant=stage.tenants[row.tenant],
            cluster=stage.cluster,
            pool=stage.pools[row.pool],
            priority_class=_class(row),
            size=row.size,
            min_size=row.min_size or row.size,
            gpus_per_member=row.gpus_per_member,
            topology=row.topology,
            limit_seconds=_seconds(row.limit),
            nice=row.nice,
            workload=_workload(row),
            submitted_at=row.submitted,
            state=JobState.ADMITTED if running else JobState.PENDING,
            state_since=row.submitted,
            held_at=row.submitted if row.held else None,
        )
        stage.jobs[row.name] = job
        if running:
            _adopt(stage, job, row)
    for row in rows:
        stage.jobs[row.name].depends_on.add(*(stage.jobs[name] for name in row.depends_on))


def _adopt(stage: Stage, job: Job, row: JobRow) -> None:
    """Let a job run since before now; that it started is seen at the first look, as any start."""
    attempt = Attempt.objects.create(
        job=job,
        number=1,
        created_at=row.started,
        launched_at=row.started,
        last_checkpoint_at=row.last_checkpoint,
    )
    stage.adopted.add(attempt.pk)
    Member.objects.bulk_create(
        Member(attempt=attempt, rank=rank, node=stage.nodes[name])
        for rank, name in enumerate(row.on)
    )
    worlds.world_of(stage.cluster).adopt(
        launch_request(attempt), started_at=row.started, last_checkpoint=row.last_checkpoint
    )


def set_up(scenario: Scenario) -> Stage:
    """Make the scenario's cluster in the present database, which must be empty."""
    now = scenario.now
    cluster = Cluster.objects.create(
        name=NAME,
        kind="simulator",
        grade=Grade.DRIVE,
        options={"world": "memory"},
        created_at=now,
        clock_now=now,
    )
    worlds.forget_world(cluster)
    stage = Stage(scenario, cluster)
    _policy(cluster, scenario.policy).save()
    _pools(stage)
    _nodes(stage, now)
    _tenants(stage, now)
    _classes(scenario)
    add_jobs(stage, scenario.jobs)
    return stage
