"""In grade *advise* the cluster is given our order of its own line; in others that is taken back.

What was set of a job is written down before the cluster is asked, with what was there before. What
the next look shows decides: ours is kept up, and given back in the end; another is somebody's hand,
which wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.backends.models import Cluster, Grade
from apps.backends.port import Backend, BackendError, Ranks, SeenLine, SeenRank
from apps.common.rows import set_columns
from apps.engine.types import Reason
from apps.jobs.models import Job
from apps.jobs.states import TERMINAL, WAITING
from apps.scheduling import steps
from apps.scheduling.decision import Decision
from apps.scheduling.leases import Lease, fenced
from apps.scheduling.models import Advice, Nice, NiceState

# How many jobs are given another nice a tick; the next tick goes on.
MOST_ASKED = 50
# What the cluster refuses now it refuses in 5 seconds as well.
AGAIN_AFTER = timedelta(minutes=1)
# How late a cluster may save what it was told.
FORGETS_WITHIN = timedelta(minutes=1)
# What the plan would not start though there were room; the cluster knows nothing of why.
LAST = frozenset({Reason.PAUSED, Reason.WEIGHTLESS, Reason.GUARANTEE, Reason.CEILING})


@dataclass(frozen=True, slots=True)
class Asked:
    """A job that is to get another nice, and its neighbour in our order."""

    job_id: int
    ref: str
    nice: int
    other_id: int | None = None
    sooner: bool = True


def advise(
    cluster: Cluster, backend: Backend, lease: Lease, decision: Decision | None, *, now: datetime
) -> int:
    """Give a cluster our order, or what is left of it back; return how many jobs that concerns.

    The cluster's refusal is written down in its words, and is no trouble of the tick's.
    """
    if not isinstance(backend, Ranks) or "rank" not in backend.capabilities().can:
        return 0
    advised = cluster.grade == Grade.ADVISE
    rows = list(Nice.objects.filter(cluster=cluster).select_related("job").order_by("job_id"))
    if not rows and (not advised or decision is None):
        return 0
    line = backend.ranks(now=now)
    seen = line.work
    with fenced(lease):
        _review(rows, line, now=now)
        if not advised:
            _forget(rows, seen)
    wait = Advice.objects.filter(cluster=cluster, again_at__gt=now).exists()
    if wait:
        return 0
    if not advised:
        asked = _back(cluster, seen)
    elif decision is not None:
        asked = _forth(cluster, backend, decision, now=now)
    else:
        asked = []
    if asked:
        _ask(cluster, backend, lease, asked, seen, now=now)
    return len(asked)


# What is there


def _review(rows: Sequence[Nice], line: SeenLine, *, now: datetime) -> None:
    """Write down what came of what was asked, and what somebody changed after that."""
    changed = []
    for row in rows:
        there = line.work.get(row.job.foreign_ref)
        if there is None or row.state == NiceState.BY_HAND:
            continue
        if there.nice == row.asked:
            state = NiceState.SET
        elif there.nice == row.before and (
            row.state == NiceState.ASKED or line.since > row.asked_at - FORGETS_WITHIN
        ):
            state = NiceState.ASKED  # it never arrived, or was forgotten
        else:
            state, row.by_hand_at = NiceState.BY_HAND, now
        if state != row.state:
            row.state = state
            changed.append(row)
    set_columns(changed, ["state", "by_hand_at"])
    Nice.objects.filter(pk__in=[row.pk for row in rows if row.job.state in TERMINAL]).delete()


def _forget(rows: Iterable[Nice], seen: Mapping[str, SeenRank]) -> None:
    """Let go of what is as it was before, and of what is somebody else's by now."""
    gone = []
    for row in rows:
        there = seen.get(row.job.foreign_ref)
        if row.state == NiceState.BY_HAND or (there is not None and there.nice == row.original):
            gone.append(row.pk)
    Nice.objects.filter(pk__in=gone).delete()


# What is wanted


def _back(cluster: Cluster, seen: Mapping[str, SeenRank]) -> list[Asked]:
    """Return what each job is to have again that it had before."""
    rows = Nice.objects.filter(cluster=cluster).select_related("job").order_by("job_id")
    there = [row for row in rows if row.job.foreign_ref in seen]
    return [Asked(row.job_id, row.job.foreign_ref, row.original) for row in there[:MOST_ASKED]]


def _forth(cluster: Cluster, backend: Ranks, decision: Decision, *, now: datetime) -> list[Asked]:
    """Return the jobs whose nice our order takes, and which."""
    order = our_order(cluster, decision)
    nice = backend.rank([ref for _, ref in order], most=MOST_ASKED, now=now)
    asked = []
    for k, (job_id, ref) in enumerate(order):
        if ref in nice:
            before = order[k - 1][0] if k else None
            after = order[k + 1][0] if k + 1 < len(order) else None
            asked.append((Asked(job_id, ref, nice[ref]), before, after))
    return [
        Asked(one.job_id, one.ref, one.nice, after or before, sooner=after is not None)
        for one, before, after in asked
    ]


def our_order(cluster: Cluster, decision: Decision) -> list[tuple[int, str]]:
    """Return the id and the ref of each job of the cluster's own line, the first first.

    It is the plan's order; those that the plan would not start though there were room come last.
    Left out are those on hold there, and those whose place somebody there has set.
    """
    refs = dict(
        Job.objects.filter(cluster=cluster, state__in=sorted(WAITING), held_at__isnull=True)
        .exclude(foreign_ref="")
        .exclude(advised__state=NiceState.BY_HAND)
        .order_by()
        .values_list("pk", "foreign_ref")
    )
    plan, pending = decision.plan, decision.seen.pending_ids
    reasons = plan.verdicts.reason.tolist()
    order = sorted(plan.order.tolist(), key=lambda k: reasons[k] in LAST)  # stable
    return [(pending[k], refs[pending[k]]) for k in order if pending[k] in refs]


# What is done


def _ask(
    cluster: Cluster,
    backend: Ranks,
    lease: Lease,
    asked: Sequence[Asked],
    seen: Mapping[str, SeenRank],
    *,
    now: datetime,
) -> None:
    """Write down what is asked, ask, and write down that it was done."""
    with fenced(lease):
        rows = _write(cluster, asked, seen, now=now)
    steps.reached("ranking")
    trouble = ""
    try:
        backend.renice({one.ref: one.nice for one in asked}, now=now)
    except BackendError as error:
        trouble = error.message
    steps.reached("ranked")
    with fenced(lease):
        told: dict[str, object] = {"trouble": trouble, "again_at": None}
        if trouble:
            told["again_at"] = now + AGAIN_AFTER
        else:
            told["given_at"] = now
            Nice.objects.filter(pk__in=rows).update(state=NiceState.SET)
        Advice.objects.update_or_create(cluster=cluster, defaults=told)


def _write(
    cluster: Cluster, asked: Sequence[Asked], seen: Mapping[str, SeenRank], *, now: datetime
) -> list[int]:
    """Write down what each job has now and what it is asked to have."""
    known = Nice.objects.in_bulk([one.job_id for one in asked])
    rows = []
    for one in asked:
        nice = seen[one.ref].nice
        row = known.get(one.job_id) or Nice(job_id=one.job_id, cluster=cluster, original=nice)
        row.before, row.asked, row.asked_at, row.state = nice, one.nice, now, NiceState.ASKED
        row.sooner, row.other_id = one.sooner, one.other_id
        rows.append(row)
    Nice.objects.bulk_create([row for row in rows if row.pk not in known])
    set_columns(
        [row for row in rows if row.pk in known],
        ["before", "asked", "asked_at", "state", "sooner", "other_id"],
    )
    return [row.pk for row in rows]
