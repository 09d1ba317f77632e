"""What a submission would come to, were it made now: the tick's own decision, with nothing written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connection, transaction

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.common.errors import Conflict
from apps.common.time import from_us
from apps.engine.errors import Refused
from apps.engine.forecast import likely_starts
from apps.engine.types import NONE, Mode
from apps.jobs.eviction_facts import Loss
from apps.jobs.models import Job
from apps.jobs.places import Place
from apps.jobs.selectors import NeverFits, never_fits_of
from apps.jobs.services import preview_job
from apps.jobs.specs import JobSpec
from apps.jobs.states import EvictionMode, JobState
from apps.ledger.selectors import Prices
from apps.scheduling.decide import decide, starts_of
from apps.scheduling.decision import Decision
from apps.scheduling.evict import MODES
from apps.scheduling.forecasts import steps_within
from apps.scheduling.frame import Frames, Guest, StaleFrame
from apps.scheduling.gates import AHEAD_CODES
from apps.scheduling.models import Verdict
from apps.scheduling.publish import VERDICT_COLUMNS, verdict_rows
from apps.scheduling.selectors import AHEAD_SHOWN, facts_of

GUEST_ID = 2**62
"""The id of a job that is only tried: later than any other's, as its own would be."""
TRIES = 3


class Basis(StrEnum):
    """What a likely start stands on."""

    NOW = "now"  # it starts by this decision
    VICTIMS = "victims"  # all whom it evicts have left by then
    LIMITS = "limits"  # what runs and waits before it uses all of its limit
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Victim:
    """Who would give way: ``gpus`` on its last ``members``.

    ``lost``: what it would lose, were it killed now; a gang that shrinks goes on, and loses nothing.
    ``leave_by``: it has left by then; one that is demoted is asked to leave from then on.
    """

    job: Job
    mode: EvictionMode
    rule: str
    members: int
    gpus: int
    leave_by: datetime
    lost: Loss


@dataclass(frozen=True, slots=True)
class Preview:
    """What would become of a submission.

    ``at`` is the cluster's time of the decision. ``facts`` carry what the reason does, ready for
    ``engine.reasons.sentence``; ``nodes`` has one name a member, empty if it would wait.
    """

    job: Job
    at: datetime
    nodes: tuple[str, ...]
    facts: dict[str, Any]
    likely: datetime | None
    basis: Basis
    position: int  # 1 is first
    waiting: int  # jobs of the cluster that wait, this one counted
    ahead: tuple[Job, ...]  # in order, the first AHEAD_SHOWN
    ahead_count: int
    victims: tuple[Victim, ...]
    never_fits: NeverFits | None

    @property
    def starts(self) -> bool:
        """Return whether it would start by this decision, whole."""
        return bool(self.nodes)


def preview(spec: JobSpec, *, by: User, now: datetime, place: Place | None = None) -> Preview:
    """Decide as the tick would, were this submitted at ``now``; nothing is written.

    The plan is of one decision: what is submitted, ends or is changed later can change it.

    :raises Invalid: naming the field, as ``submit_job`` does.
    :raises Conflict: ``not_seen_yet``, before the cluster's first look: its nodes are not known;
        ``policy_refused``, if no tick can decide either; ``moving``, if the tables never stand still.
    """
    job = preview_job(spec, by=by, now=now, place=place)
    if spec.cluster.first_look_at is None:
        raise Conflict(
            f"{spec.cluster} was not looked at yet: what would start there is known after its first"
            " tick.",
            field="cluster",
            code="not_seen_yet",
        )
    job.pk = GUEST_ID
    needed = [one for one in spec.depends_on if one.state != JobState.SUCCEEDED]
    needed.sort(key=lambda one: one.pk)
    began = time.perf_counter()
    decision = _decide(spec.cluster, Guest(job, bool(needed)), now=now)
    took_ms = (time.perf_counter() - began) * 1e3
    return _told(decision, job, by, spec, needed, took_ms=took_ms, place=place)


@contextmanager
def at_one_instant() -> Iterator[None]:
    """Read all tables as of one instant, and only read: a tick may write between two looks.

    Where the database cannot without a lock that keeps ticks out (SQLite), they are read as they are.
    """
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def _decide(cluster: Cluster, guest: Guest, *, now: datetime) -> Decision:
    """Decide on the tables as they are, with the guest among those who wait."""
    for _ in range(TRIES):
        try:
            with at_one_instant():
                return decide(cluster, Frames(cluster, guest=guest), now=now)
        except StaleFrame:
            continue
        except Refused as error:
            raise Conflict(
                f"{cluster} cannot decide by its policy: {error}.",
                field="cluster",
                code="policy_refused",
            ) from error
    raise Conflict(f"{cluster} is changing just now; try again.", field="cluster", code="moving")


def _told(
    decision: Decision,
    job: Job,
    by: User,
    spec: JobSpec,
    needed: Sequence[Job],
    *,
    took_ms: float,
    place: Place | None,
) -> Preview:
    seen, plan = decision.seen, decision.plan
    index = seen.pending_ids.index(job.pk)
    driven = spec.cluster.driven
    names = dict(zip(seen.node_ids, seen.snapshot.nodes.name, strict=True))
    starts = starts_of(decision) if driven else {}
    nodes = tuple(names[node] for node in starts.get(job.pk, ()))
    victims = _victims(decision, index, spec.pool) if driven else ()
    verdict = _verdict(decision, job)
    facts: dict[str, Any] = {"code": "starts"}
    if verdict is not None:
        facts = facts_of([verdict], by)[job.pk]
        if verdict.code == "dependency":
            facts["what"] = [one.name for one in needed]
    ahead, count = _ahead(decision, index) if facts["code"] in AHEAD_CODES else ((), 0)
    facts["ahead_count"] = count
    likely: datetime | None = None
    basis = Basis.UNKNOWN  # where Rollcall only watches, nothing starts
    if driven:
        likely, basis = _likely(decision, index, victims, took_ms=took_ms)
    return Preview(
        job=job,
        at=from_us(seen.snapshot.now),
        nodes=nodes,
        facts=facts,
        likely=likely,
        basis=basis,
        position=int(plan.verdicts.position[index]) + 1,
        waiting=len(seen.pending_ids),
        ahead=ahead,
        ahead_count=count,
        victims=victims,
        never_fits=never_fits_of(spec, ceiling=0 if place is None else place.ceiling),
    )


def _verdict(decision: Decision, job: Job) -> Verdict | None:
    """Return what the plan says of the job as the row a tick would write; None: it starts."""
    for row in verdict_rows(job.cluster, decision.seen, decision.plan, tick_id=0):
        if row[0] == job.pk:
            verdict = Verdict(**dict(zip(VERDICT_COLUMNS, row, strict=True)))
            verdict.job = job
            return verdict
    return None


def _ahead(decision: Decision, index: int) -> tuple[tuple[Job, ...], int]:
    """Return the waiting jobs of its pool before a job, in order, and how many there are."""
    seen, pool = decision.seen, decision.seen.snapshot.pending.pool
    order = decision.plan.order.tolist()
    before = [k for k in order[: order.index(index)] if pool[k] == pool[index]]
    started = set(decision.plan.starts.job.tolist())
    ids = [seen.pending_ids[k] for k in before if k not in started]
    jobs = Job.objects.select_related("tenant").in_bulk(ids[:AHEAD_SHOWN])
    return tuple(jobs[pk] for pk in ids[:AHEAD_SHOWN] if pk in jobs), len(ids)


def _victims(decision: Decision, index: int, pool: Pool) -> tuple[Victim, ...]:
    table, snapshot = decision.plan.evictions, decision.seen.snapshot
    rows = [k for k, job in enumerate(table.job.tolist()) if job == index]
    if not rows:
        return ()
    ids = {k: int(snapshot.running.id[int(table.victim[k])]) for k in rows}
    jobs = Job.objects.select_related("tenant", "pool").in_bulk(set(ids.values()))
    prices = Prices([pool])
    found = []
    for k in rows:
        if ids[k] not in jobs:
            continue
        gpus, mode = int(table.gpus[k]), MODES[Mode(int(table.mode[k]))]
        lost = 0 if mode == EvictionMode.SHRINK else int(table.lost[k])
        amount = prices.amount(pool.pk, gpus, snapshot.now - lost // max(gpus, 1), snapshot.now)
        found.append(
            Victim(
                job=jobs[ids[k]],
                mode=mode,
                rule=table.rule[k],
                members=int(table.members[k]),
                gpus=gpus,
                leave_by=from_us(int(table.until[k])),
                lost=Loss(amount.gpu_hours, None if amount.unpriced else amount.money),
            )
        )
    return tuple(found)


def _likely(
    decision: Decision, index: int, victims: Sequence[Victim], *, took_ms: float
) -> tuple[datetime | None, Basis]:
    """Return when it would likely start, and what that stands on."""
    seen, plan = decision.seen, decision.plan
    if index in plan.starts.job.tolist():
        return from_us(seen.snapshot.now), Basis.NOW
    if victims and all(one.mode != EvictionMode.DEMOTE for one in victims):
        return max(one.leave_by for one in victims), Basis.VICTIMS
    at = int(plan.verdicts.forecast[index])
    if at == NONE:
        steps = steps_within(took_ms)
        at = int(likely_starts(seen.snapshot, seen.policy, steps=steps)[index])
    if at == NONE:
        return None, Basis.UNKNOWN
    return from_us(at), Basis.LIMITS
