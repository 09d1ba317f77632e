"""The plan: what the walks decided, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from apps.engine.draft import Draft, Outcome
from apps.engine.field import LACKS_ROOM, Field
from apps.engine.promised import last_members
from apps.engine.quotas import UNLIMITED, asks_by_tenant, borrowing, entitlements
from apps.engine.tree import Siblings, roll_up
from apps.engine.types import (
    NONE,
    Bools,
    Considered,
    Evictions,
    Floats,
    Holds,
    Ints,
    Passed,
    Placements,
    Plan,
    Reason,
    Room,
    Standings,
    Verdict,
    Verdicts,
    Waits,
)


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What was reckoned before the walks, to be shown as it was used."""

    siblings: Siblings
    factor: Floats
    rank: Ints
    terms: Floats
    priority: Floats
    order: Ints
    most: Ints


def plan_of(field: Field, draft: Draft, outcome: Outcome, shown: Shown) -> Plan:
    """Write the plan."""
    count = len(field.snapshot.pending.id)
    verdict = np.where(draft.reason == Reason.STARTS, int(Verdict.START), int(Verdict.WAIT))
    verdict[list(outcome.holds)] = Verdict.RESERVE
    position = np.empty(count, dtype=np.int64)
    position[shown.order] = np.arange(count)
    return Plan(
        order=shown.order,
        verdicts=Verdicts(
            verdict=verdict,
            reason=draft.reason,
            needed=draft.needed,
            available=draft.available,
            tenant=draft.tenant,
            for_job=draft.for_job,
            until=draft.until,
            most=shown.most,
            forecast=draft.forecast,
            terms=shown.terms,
            priority=shown.priority,
            position=position,
        ),
        starts=_placements(outcome),
        holds=_holds(outcome.holds),
        timed_out=_ints(sorted(outcome.timed_out)),
        standings=_standings(field, draft, shown),
        room=_room(field, draft, outcome),
        evictions=_evictions(outcome),
        promises=_holds({job: rows for job, rows in outcome.promises.items() if rows}),
        leaving=_waits(outcome.leaving),
        stays=_ints(sorted(outcome.stays)),
        considered=_considered(outcome),
    )


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _offsets(lengths: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _placements(outcome: Outcome) -> Placements:
    jobs = sorted(outcome.starts)
    return Placements(
        job=_ints(jobs),
        offsets=_offsets([len(outcome.starts[j]) for j in jobs]),
        node=_ints([n for j in jobs for n in outcome.starts[j]]),
    )


def _holds(holds: Mapping[int, list[tuple[int, int]]]) -> Holds:
    jobs = sorted(holds)
    rows = [row for j in jobs for row in holds[j]]
    return Holds(
        job=_ints(jobs),
        offsets=_offsets([len(holds[j]) for j in jobs]),
        rank=_ints([rank for rank, _ in rows]),
        node=_ints([node for _, node in rows]),
    )


def _evictions(outcome: Outcome) -> Evictions:
    """List who is asked, by beneficiary; a job's victims stay in the order of the candidates."""
    rows = sorted(outcome.asked, key=lambda row: row.job)
    return Evictions(
        victim=_ints([row.victim for row in rows]),
        job=_ints([row.job for row in rows]),
        mode=_ints([row.mode for row in rows]),
        members=_ints([row.members for row in rows]),
        gpus=_ints([row.gpus for row in rows]),
        until=_ints([row.until for row in rows]),
        lost=_ints([row.lost for row in rows]),
        rule=tuple(row.rule for row in rows),
    )


def _waits(leaving: Mapping[int, list[int]]) -> Waits:
    jobs = sorted(leaving)
    return Waits(
        job=_ints(jobs),
        offsets=_offsets([len(leaving[j]) for j in jobs]),
        victim=_ints([v for j in jobs for v in leaving[j]]),
    )


def _considered(outcome: Outcome) -> Considered:
    jobs = sorted(outcome.considered)
    rows = [outcome.considered[j] for j in jobs]
    counts = np.zeros((len(jobs), len(Passed)), dtype=np.int64)
    for k, row in enumerate(rows):
        counts[k] = row.counts
    return Considered(
        job=_ints(jobs),
        offsets=_offsets([len(row.victim) for row in rows]),
        victim=_ints([v for row in rows for v in row.victim]),
        passed=_ints([code for row in rows for code in row.passed]),
        counts=counts,
    )


def _standings(field: Field, draft: Draft, shown: Shown) -> Standings:
    """Say where tenants stand after the decision."""
    snapshot, tree, held = field.snapshot, field.tree, field.held
    pending, running = snapshot.pending, snapshot.running
    shape = held.used.shape
    starts = draft.reason == Reason.STARTS
    own = asks_by_tenant(shape, pending.tenant, pending.pool, field.need, starts)
    np.add.at(own, (running.tenant, running.pool), running.size * running.gpus_per_member)
    used = np.asarray(roll_up(tree, own), dtype=np.int64)
    lacking: Bools = np.isin(draft.reason, LACKS_ROOM)
    asked = own + asks_by_tenant(shape, pending.tenant, pending.pool, field.need, lacking)
    lent, borrowed = borrowing(snapshot.tenants, tree, held.guarantee, used, own, field.usable)
    ceiling = np.where(held.ceiling == UNLIMITED, NONE, held.ceiling)
    siblings, few = shown.siblings, len(snapshot.tenants.id)
    return Standings(
        usage=siblings.usage[:few],
        share=siblings.share[:few],
        usage_share=siblings.usage_share[:few],
        level=siblings.level[:few],
        factor=shown.factor,
        rank=shown.rank,
        guarantee=held.guarantee,
        ceiling=ceiling,
        used=used,
        entitlement=entitlements(
            snapshot.tenants, tree, held, asked, field.usable, lend=field.policy.lend_guarantee
        )[0],
        lent=lent,
        borrowed=borrowed,
        over_quota=np.where(ceiling >= 0, np.maximum(used - ceiling, 0), 0),
    )


def _room(field: Field, draft: Draft, outcome: Outcome) -> Room:
    """Count GPUs after the decision; stranded: free, and too few for any member that waits."""
    pending, running, nodes = (
        field.snapshot.pending, field.snapshot.running, field.snapshot.nodes
    )  # fmt: skip
    free = field.free.copy()
    held = np.zeros(len(nodes.id), dtype=np.int64)
    for job, where in outcome.starts.items():
        np.subtract.at(free, where, pending.gpus_per_member[job])
    for job, rows in outcome.holds.items():
        np.add.at(held, [node for _, node in rows], pending.gpus_per_member[job])
    free -= held
    pools = len(field.snapshot.pools.id)
    waits = np.isin(draft.reason, (*LACKS_ROOM, Reason.CEILING, Reason.WEIGHTLESS))
    smallest = np.zeros(pools, dtype=np.int64)
    if waits.any():
        huge = np.full(pools, UNLIMITED)
        np.minimum.at(huge, pending.pool[waits], pending.gpus_per_member[waits])
        smallest = np.where(huge == UNLIMITED, 0, huge)
    stranded = np.where(free < smallest[nodes.pool], free, 0)
    gone = last_members(running)
    gone[list(outcome.gone)] = list(outcome.gone.values())
    promised = np.zeros(pools, dtype=np.int64)
    np.add.at(promised, running.pool, gone * running.gpus_per_member)

    def by_pool(values: Ints) -> Ints:
        total = np.zeros(pools, dtype=np.int64)
        np.add.at(total, nodes.pool, values)
        return total

    return Room(
        gpus=field.pool_gpus,
        free=by_pool(free),
        held=by_pool(held),
        promised=promised,
        stranded=stranded,
    )
