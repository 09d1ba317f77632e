"""The newest plan as rows that pages read: a verdict per waiting job, a standing per tenant."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from django.db import connection

from apps.backends.models import Cluster
from apps.engine.reasons import code_of
from apps.engine.types import NONE, Plan, Reason, Topology
from apps.engine.types import Verdict as EngineVerdict
from apps.jobs.models import Job
from apps.jobs.states import WAITING
from apps.scheduling.models import Forecast, Standing, Tick, Verdict
from apps.scheduling.snapshot import Seen

VERDICT_COLUMNS = (
    "job_id", "cluster_id", "tick_id", "position", "code", "reserves", "needed", "available",
    "detail", "priority", "term_fair_share", "term_age", "term_size", "term_queue", "term_class",
    "term_boost", "term_nice",
)  # fmt: skip
QUOTA_COLUMNS = (
    "guarantee", "ceiling", "used", "entitlement", "lent", "borrowed", "over_quota"
)  # fmt: skip


WATCHED = "watched"
"""The code of a job that would start, on a cluster where Rollcall starts nothing."""


def _or_none(value: int) -> int | None:
    return None if value == NONE else value


DOMAINS = {Topology.NONE: "node", Topology.RACK: "rack", Topology.NVLINK: "nvlink"}


def details(seen: Seen, plan: Plan) -> list[dict[str, Any]]:
    """Return what each reason carries besides needed and available, by pending index.

    Ids stand for tenants and jobs; what a gate (held, dependency, …) carries is on the job's row.
    """
    v = plan.verdicts
    columns = zip(
        v.tenant.tolist(), v.for_job.tolist(), v.until.tolist(), v.most.tolist(),
        v.forecast.tolist(), strict=True,
    )  # fmt: skip
    found = []
    for tenant, for_job, until, most, forecast in columns:
        detail: dict[str, Any] = {}
        if tenant != NONE:
            detail["tenant"] = seen.tenant_ids[tenant]
        if for_job != NONE:
            detail["for"] = seen.pending_ids[for_job]
        if until != NONE:
            detail["until_us"] = until
        if most != NONE:
            detail["most"] = most
        if forecast != NONE:
            detail["forecast_us"] = forecast
        found.append(detail)
    for row, job in enumerate(plan.holds.job.tolist()):
        members = int(plan.holds.offsets[row + 1] - plan.holds.offsets[row])
        found[job]["held"] = members * int(seen.snapshot.pending.gpus_per_member[job])
    running = seen.snapshot.running.id
    for row, job in enumerate(plan.leaving.job.tolist()):
        low, high = int(plan.leaving.offsets[row]), int(plan.leaving.offsets[row + 1])
        if v.reason[job] == Reason.LEAVING:
            found[job]["jobs"] = running[plan.leaving.victim[low:high]].tolist()
    for k in np.flatnonzero(v.reason == Reason.PLACEMENT).tolist():
        found[k]["domain"] = DOMAINS[Topology(int(seen.snapshot.pending.topology[k]))]
    return found


def _add_forecasts(cluster: Cluster, seen: Seen, extra: list[dict[str, Any]]) -> None:
    """Fill in the likely starts as last forecast, where the plan itself expects none."""
    known = dict(Forecast.objects.filter(cluster=cluster).values_list("job_id", "starts_us"))
    if not known:
        return
    for job_id, detail in zip(seen.pending_ids, extra, strict=True):
        starts = known.get(job_id)
        if "forecast_us" not in detail and starts is not None and starts > seen.snapshot.now:
            detail["forecast_us"] = starts


def verdict_rows(cluster: Cluster, seen: Seen, plan: Plan, tick_id: int) -> list[tuple[Any, ...]]:
    """Return a row for each job that goes on waiting, in the order of VERDICT_COLUMNS.

    Where Rollcall only watches, what would start waits too, and nothing is held.
    """
    driven = cluster.driven
    v = plan.verdicts
    extra = details(seen, plan)
    if not driven:
        for detail in extra:
            detail.pop("held", None)
    _add_forecasts(cluster, seen, extra)
    columns = zip(
        seen.pending_ids, v.verdict.tolist(), v.position.tolist(), v.reason.tolist(),
        v.needed.tolist(), v.available.tolist(), extra, v.priority.tolist(), v.terms.tolist(),
        strict=True,
    )  # fmt: skip
    return [
        (
            job_id, cluster.pk, tick_id, position,
            WATCHED if verdict == EngineVerdict.START else code_of(reason), verdict == EngineVerdict.RESERVE,
            _or_none(needed), _or_none(available), detail, priority, *terms,
        )
        for job_id, verdict, position, reason, needed, available, detail, priority, terms in columns
        if not driven or verdict != EngineVerdict.START
    ]  # fmt: skip


def _elsewhere(cluster: Cluster, after: int, tick_id: int) -> list[tuple[Any, ...]]:
    """Return a row for each job that waits in the cluster's own queue, where ours is apart."""
    waiting = Job.objects.filter(cluster=cluster, state__in=sorted(WAITING))
    foreign = waiting.exclude(foreign_ref="").order_by("id").values_list("pk", flat=True)
    unsaid: tuple[Any, ...] = (False, None, None, {}, 0.0, *[0.0] * 7)
    return [
        (pk, cluster.pk, tick_id, after + k, "elsewhere", *unsaid) for k, pk in enumerate(foreign)
    ]


def _write_verdicts(rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert verdicts: by COPY where the database has it."""
    if connection.vendor != "postgresql":
        Verdict.objects.bulk_create(
            (Verdict(**dict(zip(VERDICT_COLUMNS, row, strict=True))) for row in rows),
            batch_size=500,
        )
        return
    table, names = Verdict._meta.db_table, ", ".join(VERDICT_COLUMNS)
    detail = VERDICT_COLUMNS.index("detail")
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row((*row[:detail], json.dumps(row[detail]), *row[detail + 1 :]))


def number(value: float) -> float | None:
    """Return a figure, or None where it is infinite or undefined."""
    return value if math.isfinite(value) else None


def quota(column: str, gpus: int) -> int | None:
    """Return a figure of QUOTA_COLUMNS; None: there is no ceiling."""
    return None if column == "ceiling" and gpus == NONE else gpus


def standing_rows(cluster: Cluster, seen: Seen, plan: Plan, tick_id: int) -> Iterable[Standing]:
    """Return where each tenant stands; what is infinite or undefined is null beside a word."""
    s = plan.standings
    names = seen.snapshot.pools.name
    weights = seen.snapshot.tenants.weight.tolist()
    quotas = {name: getattr(s, name).tolist() for name in QUOTA_COLUMNS}
    for k, tenant_id in enumerate(seen.tenant_ids):
        pools = {
            pool: {column: quota(column, cell[k][p]) for column, cell in quotas.items()}
            for p, pool in enumerate(names)
        }
        level = float(s.level[k])
        state = "zero_weight" if weights[k] == 0 else "" if math.isfinite(level) else "no_usage"
        yield Standing(
            cluster=cluster,
            tenant_id=tenant_id,
            tick_id=tick_id,
            usage=float(s.usage[k]),
            share=float(s.share[k]),
            usage_share=float(s.usage_share[k]),
            level=None if state else number(level),
            level_state=state,
            factor=number(float(s.factor[k])),
            rank=_or_none(int(s.rank[k])),
            pools=pools,
        )


def publish(cluster: Cluster, seen: Seen, plan: Plan, tick: Tick) -> None:
    """Replace the cluster's verdicts and standings; to be called in the tick's transaction."""
    Verdict.objects.filter(cluster=cluster)._raw_delete("default")
    rows = verdict_rows(cluster, seen, plan, tick.pk)
    if cluster.driven:
        rows += _elsewhere(cluster, len(seen.pending_ids), tick.pk)
    # A job may have been cancelled since the snapshot; a verdict on it would outlive it, harmless.
    _write_verdicts(rows)
    Standing.objects.filter(cluster=cluster).delete()
    Standing.objects.bulk_create(standing_rows(cluster, seen, plan, tick.pk), batch_size=500)
