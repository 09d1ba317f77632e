"""Read what the newest tick said: of a waiting job, of a tenant, of who starts next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Window

from apps.accounts.models import User
from apps.backends.models import Cluster
from apps.common.time import from_us
from apps.engine import reasons
from apps.jobs.models import Job
from apps.jobs.selectors import names_for, told_of
from apps.queues.models import ClusterPolicy
from apps.queues.selectors import policy_beside
from apps.scheduling.gates import AHEAD_CODES, gate_of
from apps.scheduling.models import HistoryImport, ImportState, Standing, Tick, Verdict
from apps.tenants.models import Tenant
from apps.tenants.selectors import ancestor_paths, sight_of, top_name

AHEAD_SHOWN = 20
TERM_NAMES = ("fair_share", "age", "size", "queue", "class", "boost", "nice")


ROOM_CODES = ("capacity", "placement", "reserved", "no_nodes", "leaving", "deferred")
EXPLAINED = (
    "tenant", "for", "for_id", "jobs", "job_ids", "until", "most", "domain", "who", "since", "what",
)  # fmt: skip


def verdicts_on(clusters: Iterable[Cluster]) -> QuerySet[Verdict]:
    """Return the newest verdicts of clusters with their jobs, as sorted."""
    rows = Verdict.objects.filter(
        cluster__in=list(clusters), job__state__in=("PENDING", "RESERVING")
    )
    return rows.select_related("job__tenant", "job__pool", "job__cluster").order_by("position")


def verdict_of(job: Job) -> Verdict | None:
    """Return what the newest tick said of a waiting job, or None before it has."""
    return Verdict.objects.filter(job=job).first()


def _ids(verdicts: Iterable[Verdict], key: str) -> set[int]:
    return {v.detail[key] for v in verdicts if key in v.detail}


def _others(verdicts: Iterable[Verdict]) -> set[int]:
    """Return the jobs that verdicts name: whom room is held for, and who leaves."""
    leaving = {job for v in verdicts for job in v.detail.get("jobs", ())}
    return _ids(verdicts, "for") | leaving


SPELLED_OUT = 3
"""Jobs that leave are named up to so many; their number is told beyond."""


def _together(names: Sequence[str]) -> list[str]:
    """Return names with equal ones told once: ``2 jobs of vision``, as nobody is named there."""
    if len(names) > SPELLED_OUT or len(set(names)) == len(names):
        return list(names)
    counts = Counter(names)
    return [
        f"{count} jobs{name.removeprefix('a job')}"
        if count > 1 and name.startswith("a job ")
        else name
        for name, count in counts.items()
    ]


def facts_of(verdicts: Sequence[Verdict], user: User) -> dict[int, dict[str, Any]]:
    """Return what each verdict's reason carries, with the names ``user`` may read, by job id.

    At most two queries for any number of verdicts; ``verdict.job`` is loaded with its pool.
    """
    tenants = dict(Tenant.objects.filter(pk__in=_ids(verdicts, "tenant")).values_list("id", "path"))
    holders = list(Job.objects.filter(pk__in=_others(verdicts)).select_related("tenant"))
    names, sight = names_for(user, holders), sight_of(user)
    visible = {job.pk for job in holders if sight.covers(job.tenant.path)}
    found: dict[int, dict[str, Any]] = {}
    for verdict in verdicts:
        job, detail = verdict.job, verdict.detail
        facts: dict[str, Any] = {
            "code": verdict.code,
            "needed": verdict.needed,
            "available": verdict.available,
            "pool": job.pool.name,
            "size": job.size,
            "gpus_per_member": job.gpus_per_member,
            "topology": job.topology,
            "reserves": verdict.reserves,
            "unit": job.pool.unit,
            "units": f"{job.pool.unit}s",
            **gate_of(job, verdict.code),
        }
        if "tenant" in detail:
            facts["tenant"] = tenants.get(detail["tenant"], "")
        if "for" in detail:
            facts["for"] = names.get(detail["for"], "an earlier gang")
            facts["for_id"] = detail["for"] if detail["for"] in visible else None
        if "jobs" in detail:
            told = [job for job in detail["jobs"] if job in names]
            facts["jobs"] = _together([names[job] for job in told])
            if len(facts["jobs"]) == len(told):
                facts["job_ids"] = [job if job in visible else None for job in told]
        if "until_us" in detail:
            facts["until"] = from_us(detail["until_us"])
        for key in ("most", "domain", "held"):
            if key in detail:
                facts[key] = detail[key]
        found[verdict.job_id] = facts
    return found


def sentences_for(verdicts: Sequence[Verdict], user: User) -> dict[int, str]:
    """Return the sentence of each verdict's reason, by job id."""
    return {job_id: reasons.sentence(facts) for job_id, facts in facts_of(verdicts, user).items()}


def sentence_for(verdict: Verdict, user: User) -> str:
    """Return the sentence of one verdict's reason."""
    return sentences_for([verdict], user)[verdict.job_id]


def forecast_of(verdict: Verdict) -> datetime | None:
    """Return when a waiting job likely starts if what runs uses all of its limit; None: unknown."""
    at = verdict.detail.get("forecast_us")
    return None if at is None else from_us(at)


# Explain ---------------------------------------------------------------------------------------


def _terms(
    verdict: Verdict, job: Job, policy: ClusterPolicy, standing: Standing | None
) -> list[dict[str, Any]]:
    """Return the terms that add up to the priority, each with its factor and weight."""
    weights = {
        "fair_share": policy.weight_fair_share,
        "age": policy.weight_age,
        "size": policy.weight_size,
        "queue": policy.weight_queue,
        "class": policy.weight_class,
    }
    rows = []
    for name in TERM_NAMES:
        value = float(getattr(verdict, f"term_{name}"))
        weight = weights.get(name)
        factor = value / weight if weight else None
        rows.append(
            {
                "name": name,
                "factor": factor,
                "factor_words": _factor_words(name, factor, job, standing),
                "weight": weight,
                "value": value,
            }
        )
    return rows


def _factor_words(name: str, factor: float | None, job: Job, standing: Standing | None) -> str:
    if name == "nice":
        return "none" if job.nice == 0 else f"nice {job.nice}"
    if name == "boost":
        return "its gang broke" if job.broken else "none"
    if factor is None:
        return "weight 0"
    if name == "fair_share" and standing is not None and standing.rank is not None:
        return f"{factor:.4f} = rank {standing.rank}"
    if name == "class":
        return f"{factor:.4f} = class {job.priority_class.name}"
    return f"{factor:.4f}"


def _gates(
    verdict: Verdict,
    job: Job,
    facts: Mapping[str, Any],
    standings: Mapping[int, Standing],
    sentence: str,
) -> list[dict[str, Any]]:
    """Return every gate between a job and its start: what it needs, what there is."""
    gpus, pool = job.gpus, job.pool.name
    held = verdict.code in ("held", "dependency", "begin_time", "paused")
    gates: list[dict[str, Any]] = []
    room = verdict.code in ROOM_CODES
    gates.append(
        {
            "gate": "Room",
            "ok": not room,
            "needs": gpus,
            "available": verdict.available if room else None,
            "note": sentence if room else "",
        }
    )
    if verdict.code == "guarantee":
        gates.append(
            {
                "gate": f"Guarantee of {facts.get('tenant') or job.tenant.path}",
                "ok": False,
                "needs": verdict.needed,
                "available": verdict.available,
                "note": sentence,
            }
        )
    by_path = {standing.tenant.path: standing for standing in standings.values()}
    for path in reversed(ancestor_paths(job.tenant.path)):
        standing = by_path.get(path)
        quota = {} if standing is None else standing.pools.get(pool, {})
        ceiling = quota.get("ceiling")
        if ceiling is None:
            continue
        needs = int(quota["used"]) + gpus
        gates.append(
            {
                "gate": f"Ceiling of {path}",
                "ok": needs <= ceiling,
                "needs": needs,
                "available": ceiling,
                "note": f"{quota['used']} are used" if needs > ceiling else "",
            }
        )
    if verdict.code == "weightless":
        gates.append(
            {"gate": "Weight", "ok": False, "needs": None, "available": None, "note": sentence}
        )
    most = facts.get("most")
    gates.append(
        {
            "gate": "Pool",
            "ok": verdict.code != "never_fits",
            "needs": gpus,
            "available": most,
            "note": sentence if verdict.code == "never_fits" else "the gang fits the pool",
        }
    )
    gates.append(
        {
            "gate": "Hold, dependency",
            "ok": not held,
            "needs": None,
            "available": None,
            "note": sentence if held else "none",
        }
    )
    return sorted(gates, key=lambda gate: bool(gate["ok"]))


def told_ahead(
    jobs: Sequence[Job], user: User, reserving: Container[int] = ()
) -> list[dict[str, Any]]:
    """Return what ``user`` may be told of the jobs ahead, in order; their tenants are loaded."""
    sight = sight_of(user)
    return [
        {
            "place": place,
            "id": job.pk if sight.covers(job.tenant.path) else None,
            "name": told_of(sight, job),
            "gpus": job.gpus,
            "note": "holds a reservation" if job.pk in reserving else "",
        }
        for place, job in enumerate(jobs, start=1)
    ]


def ahead_of(
    verdict: Verdict, user: User, limit: int = AHEAD_SHOWN
) -> tuple[list[dict[str, Any]], int]:
    """Return the waiting jobs of its pool before a job, in order, and how many there are."""
    rows = verdicts_on([verdict.cluster]).filter(
        position__lt=verdict.position, job__pool_id=verdict.job.pool_id
    )
    first = list(rows.annotate(many=Window(Count("*")))[:limit])
    count = first[0].many if first else 0
    reserving = {row.job_id for row in first if row.reserves}
    return told_ahead([row.job for row in first], user, reserving), count


def siblings_of(job: Job, standings: Mapping[int, Standing]) -> list[dict[str, Any]]:
    """Return the top-level tenants beside a job's own: the first level at which they meet."""
    mine = top_name(job.tenant.path)
    rows = []
    for standing in standings.values():
        if standing.tenant.parent_id is not None or standing.tenant.archived_at is not None:
            continue
        ratio = standing.usage_share / standing.share if standing.share else None
        rows.append(
            {
                "tenant": standing.tenant.name,
                "share": standing.share,
                "usage_share": standing.usage_share,
                "ratio": ratio,
                "mine": standing.tenant.path == mine,
            }
        )
    return sorted(rows, key=lambda row: (row["ratio"] is None, row["ratio"] or 0.0, row["tenant"]))


def standings_on(cluster: Cluster) -> dict[int, Standing]:
    """Return where each tenant stood at the newest tick of a cluster, by tenant id."""
    rows = Standing.objects.filter(cluster=cluster).select_related("tenant")
    return {row.tenant_id: row for row in rows}


def explain(job: Job, user: User, when: reasons.When = reasons.iso) -> dict[str, Any] | None:
    """Return all that the newest tick can say of a waiting job, or None before it has.

    ``when`` writes the instants of sentences. Other tenants are named as DOMAIN 22 allows ``user`` to see them.
    """
    verdict = (
        Verdict.objects.filter(job=job)
        .select_related(
            "job__tenant", "job__pool", "job__priority_class", "cluster__policy", "job__held_by"
        )
        .annotate(ticked_at=Tick.objects.filter(pk=OuterRef("tick_id")).values("at"))
        .first()
    )
    if verdict is None:
        return None
    standings = standings_on(verdict.cluster)
    policy = policy_beside(verdict.cluster)
    facts = facts_of([verdict], user)[job.pk]
    ahead, count = ahead_of(verdict, user)
    facts["ahead_count"] = count
    sentence = reasons.sentence(facts, when)
    answer = {
        "tick_id": verdict.tick_id,
        "at": verdict.ticked_at,
        "code": verdict.code,
        "sentence": sentence,
        "needed": verdict.needed,
        "available": verdict.available,
        "gates": _gates(verdict, verdict.job, facts, standings, sentence),
        "terms": _terms(verdict, verdict.job, policy, standings.get(job.tenant_id)),
        "priority": verdict.priority,
        "position": verdict.position + 1,
        "ahead": ahead,
        "ahead_count": count,
        "standings": siblings_of(verdict.job, standings),
        "forecast": forecast_of(verdict),
    }
    for key in EXPLAINED:
        if key in facts:
            answer[key] = facts[key]
    if verdict.code not in AHEAD_CODES:
        answer["ahead"], answer["ahead_count"] = [], 0
    return answer


def starts_next(clusters: Sequence[Cluster], limit: int = 4) -> list[Verdict]:
    """Return the waiting jobs expected to start first: by forecast, then by place in line."""
    rows = list(
        verdicts_on(clusters).exclude(code__in=("held", "paused", "dependency", "never_fits"))[:200]
    )
    far = float("inf")
    rows.sort(key=lambda v: (v.detail.get("forecast_us", far), v.position, v.job_id))
    return rows[:limit]


def imports_of(cluster: Cluster) -> QuerySet[HistoryImport]:
    """Return the imports of a cluster's history, the newest first."""
    return HistoryImport.objects.filter(cluster=cluster).select_related("cluster", "started_by")


def imports_to_go_on(now: datetime) -> list[int]:
    """Return the imports that run and that nobody is at."""
    free = Q(held_until__isnull=True) | Q(held_until__lt=now)
    rows = HistoryImport.objects.filter(
        free, state=ImportState.RUNNING, cluster__archived_at__isnull=True
    )
    return list(rows.values_list("pk", flat=True))


def percent_done(job: HistoryImport) -> int:
    """Return how much of its range an import has done, 0 to 100; 100 once all is written."""
    if job.state == ImportState.DONE:
        return 100
    return min(99, int(100 * ((job.done_until - job.since) / (job.until - job.since))))
