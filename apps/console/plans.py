"""What a cluster's own scheduler plans: starts and nodes of jobs that wait there, beside Rollcall's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.backends.lines import Place, looks_at_lines, places_of
from apps.backends.models import Cluster, LineLook
from apps.common import show
from apps.console.people import Told, Viewer
from apps.jobs.models import Job
from apps.scheduling.models import Verdict
from apps.scheduling.publish import WATCHED
from apps.scheduling.selectors import forecast_of, verdicts_on

ROWS = 8
# Of so many first in Rollcall's order those with a plan are shown.
LOOKED_AT = 1_000
LEAST_AXIS = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A planned start as a line: a bar from ``x`` on, Rollcall's own start at ``ours`` if it has one.

    ``x``, ``width`` and ``ours`` are percentages of the axis; ``likely`` is the instant of ``ours``.
    """

    job: int
    told: Told
    tenant: str
    shape: str
    words: str
    at: datetime
    nodes: str
    likely: datetime | None
    x: float
    width: float
    ours: float | None


@dataclass(frozen=True, slots=True)
class Plans:
    """What one cluster plans, as of ``read_at``; the axis is from now until ``until``."""

    cluster: Cluster
    kind: str
    read_at: datetime
    trouble: str
    rows: tuple[PlanRow, ...]
    more: int
    until: datetime

    def facts(self) -> dict[str, Any]:
        """Return them for machines."""
        return {
            "cluster": self.cluster.name,
            "read_at": show.iso(self.read_at),
            "trouble": self.trouble,
            "jobs": [
                {
                    "job": row.job,
                    "name": row.told.text,
                    "tenant": row.tenant,
                    "planned_at": show.iso(row.at),
                    "planned_nodes": row.nodes,
                    "likely_start": show.iso(row.likely) if row.likely else None,
                }
                for row in self.rows
            ],
            "more": self.more,
        }


def plan_words(kind: str, place: Place, verdict: Verdict | None, *, now: datetime) -> str:
    """Say when and where the cluster plans a start, and when Rollcall would; empty: no plan.

    ``kind`` is what the cluster is, as Slurm.
    """
    if place.planned_at is None:
        return ""
    on = f" on {place.planned_nodes}" if place.planned_nodes else ""
    words = f"{kind} plans it for {show.instant(place.planned_at, now=now)}{on}"
    if verdict is None or verdict.code == "elsewhere":
        return f"{words}."
    likely = ours_of(verdict, now=now)
    if likely is None:
        return f"{words}; Rollcall has no estimate."
    when = "now" if likely == now else f"at {show.instant(likely, now=now)}"
    return f"{words}; Rollcall would start it {when}."


def ours_of(verdict: Verdict, *, now: datetime) -> datetime | None:
    """Return when Rollcall would start a job: now, at its likely start, or None: not known."""
    return now if verdict.code == WATCHED else forecast_of(verdict)


def plans_of(
    clusters: Sequence[Cluster],
    pools: Sequence[int],
    viewer: Viewer,
    tenants: Sequence[int] | None,
    *,
    now: datetime,
) -> list[Plans]:
    """Return the planned starts of clusters' own jobs that a reader may see, first in line first.

    ``pools`` and ``tenants`` (None: all) narrow it. A cluster that plans none is left out.
    """
    by_id = {cluster.pk: cluster for cluster in clusters}
    found = (
        _plans(by_id[look.cluster_id], look, pools, viewer, tenants, now=now)
        for look in looks_at_lines(clusters)
    )
    return [plans for plans in found if plans is not None]


def _plans(
    cluster: Cluster,
    look: LineLook,
    pools: Sequence[int],
    viewer: Viewer,
    tenants: Sequence[int] | None,
    *,
    now: datetime,
) -> Plans | None:
    rows = verdicts_on([cluster]).filter(viewer.own("job__tenant__"), job__pool__in=pools)
    rows = rows.exclude(job__foreign_ref="")
    if tenants is not None:
        rows = rows.filter(job__tenant__in=tenants)
    verdicts = list(rows[:LOOKED_AT])
    places = places_of(look, [verdict.job.foreign_ref for verdict in verdicts])
    found = [
        (verdict, place)
        for verdict in verdicts
        if (place := places.get(verdict.job.foreign_ref)) and place.planned_at is not None
    ]
    if not found or look.read_at is None:
        return None
    until = _end(found[:ROWS], now)
    kind = cluster.get_kind_display()
    lines = tuple(_row(v, place, kind, viewer, now=now, until=until) for v, place in found[:ROWS])
    return Plans(cluster, kind, look.read_at, look.trouble, lines, max(0, len(found) - ROWS), until)


def _end(found: Sequence[tuple[Verdict, Place]], now: datetime) -> datetime:
    """Return an end of the axis that all starts lie well before."""
    starts = [place.planned_at for _, place in found if place.planned_at is not None]
    ours = [likely for verdict, _ in found if (likely := ours_of(verdict, now=now)) is not None]
    return now + max((max([*starts, *ours]) - now) * 5 / 4, LEAST_AXIS)


def _row(
    verdict: Verdict, place: Place, kind: str, viewer: Viewer, *, now: datetime, until: datetime
) -> PlanRow:
    job = verdict.job
    assert place.planned_at is not None  # noqa: S101  chosen by whoever calls
    likely = ours_of(verdict, now=now)

    def at(instant: datetime) -> float:
        return round(100 * min(max((instant - now) / (until - now), 0.0), 1.0), 2)

    end = until
    if job.limit_seconds:
        end = min(until, place.planned_at + timedelta(seconds=job.limit_seconds))
    x = at(place.planned_at)
    return PlanRow(
        job=job.pk,
        told=viewer.told(job),
        tenant=job.tenant.path,
        shape=_shape(job),
        words=plan_words(kind, place, verdict, now=now),
        at=place.planned_at,
        nodes=place.planned_nodes,
        likely=likely,
        x=x,
        width=round(max(at(end) - x, 0.5), 2),
        ours=None if likely is None else at(likely),
    )


def _shape(job: Job) -> str:
    tasks = job.workload.get("tasks", 1)
    many = f", {show.whole(tasks)} tasks" if tasks > 1 else ""
    return f"{show.whole(job.size)} × {show.whole(job.gpus_per_member)} {job.pool.name}{many}"
