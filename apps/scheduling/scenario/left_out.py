"""What a stored tick saw and a scenario file cannot say: told, so that nobody is misled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from apps.engine.types import MICROSECOND, NONE, Policy, Reason, Snapshot


def _said(count: int, one: str, many: str) -> Iterator[str]:
    if count:
        yield f"{count:,} {one if count == 1 else many}"


def _of_waiting(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    pending = snapshot.pending
    yield from _said(
        int((pending.reserved_since != NONE).sum()),
        "reservation that stood is left out",
        "reservations that stood are left out",
    )
    yield from _said(
        int(pending.promised.sum()),
        "promise of room that others were leaving is left out",
        "promises of room that others were leaving are left out",
    )
    yield from _said(
        int((pending.no_reserve_before > snapshot.now).sum()),
        "job that might not reserve yet after a timeout may",
        "jobs that might not reserve yet after a timeout may",
    )
    yield from _said(
        int(pending.broken.sum()),
        "gang that broke is without its boost",
        "gangs that broke are without their boost",
    )
    if policy.weights.queue > 0:
        yield from _said(
            int((pending.queue_factor != 0).sum()),
            "job is without its queue's factor",
            "jobs are without their queues' factors",
        )
    yield from _said(
        int((pending.gate == Reason.BEGIN_TIME).sum()),
        "job that waits for its begin time is given as held",
        "jobs that wait for their begin time are given as held",
    )


def _of_running(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    running, now = snapshot.running, snapshot.now
    yield from _said(
        int((running.leaving != NONE).sum()),
        "job that was asked to leave is given as one that was not",
        "jobs that were asked to leave are given as ones that were not",
    )
    yield from _said(
        int((running.demoted != NONE).sum()),
        "job that was demoted is given as one that was not",
        "jobs that were demoted are given as ones that were not",
    )
    if policy.preemption != "none":
        cool = (running.restarted != NONE) & (running.restarted + policy.cooldown > now)
        yield from _said(
            int(cool.sum()), "job is without its cool-down", "jobs are without their cool-downs"
        )
        often = (running.evictions >= policy.thrash_after) & (policy.thrash_after > 0)
        yield from _said(
            int(often.sum()),
            "job that was left alone after many evictions may be evicted",
            "jobs that were left alone after many evictions may be evicted",
        )
    yield from _said(
        int(overdue(snapshot).sum()),
        "job that ran beyond its limit has a longer one",
        "jobs that ran beyond their limit have a longer one",
    )
    yield from _said(
        int((running.size == 0).sum()),
        "job that ran on nodes that are gone is left out",
        "jobs that ran on nodes that are gone are left out",
    )


def _of_the_rest(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    pending, running, now = snapshot.pending, snapshot.running, snapshot.now
    late = (pending.submitted > now).sum() + (
        (running.submitted > now) | (running.started > now)
    ).sum()
    yield from _said(
        int(late),
        "job that was submitted or started just after the instant is given as at it",
        "jobs that were submitted or started just after the instant are given as at it",
    )
    yield from _said(
        int(np.maximum(snapshot.nodes.foreign, 0).sum()),
        "GPU used by work that is not ours is taken off its node",
        "GPUs used by work that is not ours are taken off their nodes",
    )
    yield from _said(
        int((snapshot.nodes.gpus - snapshot.nodes.foreign < used_by_node(snapshot)).sum()),
        "node on which more was in use than it has is given more GPUs",
        "nodes on which more was in use than they have are given more GPUs",
    )
    if policy.fair_share == "classic" and policy.dampening != 1.0:
        yield f"the dampening of {policy.dampening:g} is left out"


def overdue(snapshot: Snapshot) -> np.ndarray:
    """Tell which running jobs should have ended by their limit."""
    running = snapshot.running
    found: np.ndarray = (running.ends_by != NONE) & (running.ends_by <= snapshot.now)
    return found


def used_by_node(snapshot: Snapshot) -> np.ndarray:
    """Sum the GPUs of running members by node."""
    running = snapshot.running
    used = np.zeros(len(snapshot.nodes.id), dtype=np.int64)
    many = np.diff(running.member_offsets)
    np.add.at(used, running.member_node, np.repeat(running.gpus_per_member, many))
    return used


def seconds_beyond(snapshot: Snapshot, k: int) -> int:
    """Return the least limit, in whole seconds, with which a running job goes on past now."""
    return int(snapshot.now - min(snapshot.running.started[k], snapshot.now)) // MICROSECOND + 1


def left_out(snapshot: Snapshot, policy: Policy) -> list[str]:
    """Return a line for each thing that the file cannot say, or says otherwise."""
    return [
        *_of_waiting(snapshot, policy),
        *_of_running(snapshot, policy),
        *_of_the_rest(snapshot, policy),
    ]
