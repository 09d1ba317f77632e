"""The life of a job as a table: which state may follow which."""

from __future__ import annotations

from django.db import models


class JobState(models.TextChoices):
    PENDING = "PENDING"
    RESERVING = "RESERVING"
    ADMITTED = "ADMITTED"
    RUNNING = "RUNNING"
    PREEMPTING = "PREEMPTING"
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
WAITING = frozenset({JobState.PENDING, JobState.RESERVING})
HOLDING = frozenset({JobState.ADMITTED, JobState.RUNNING, JobState.PREEMPTING, JobState.SUSPENDED})
"""States whose attempt holds GPUs on the cluster."""

MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.RESERVING, JobState.ADMITTED, JobState.CANCELLED}),
    JobState.RESERVING: frozenset({JobState.PENDING, JobState.ADMITTED, JobState.CANCELLED}),
    JobState.ADMITTED: frozenset(
        {JobState.RUNNING, JobState.PENDING, JobState.PREEMPTING, *TERMINAL}
    ),
    JobState.RUNNING: frozenset(
        {JobState.PENDING, JobState.PREEMPTING, JobState.SUSPENDED, *TERMINAL}
    ),
    JobState.PREEMPTING: frozenset(
        {JobState.PENDING, JobState.RUNNING, JobState.ADMITTED, *TERMINAL}
    ),
    JobState.SUSPENDED: frozenset({JobState.RUNNING, JobState.PENDING, *TERMINAL}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class Outcome(models.TextChoices):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    REFUSED = "refused"
    STOPPED = "stopped"
    EVICTED = "evicted"


class EvictionMode(models.TextChoices):
    """What a victim is asked: ``shrink`` takes the last members of an elastic gang."""

    KILL = "kill"
    CHECKPOINT = "checkpoint"
    DEMOTE = "demote"
    SHRINK = "shrink"


ASKED = frozenset({EvictionMode.CHECKPOINT, EvictionMode.SHRINK})
"""Modes that wait for the victim: a kill saves nothing, a demotion ends nothing."""

LEAVES = frozenset({EvictionMode.KILL, EvictionMode.CHECKPOINT})
"""Modes by which a job leaves whole; after a demotion or a shrink it runs on, and does not thrash."""


class EvictionOutcome(models.TextChoices):
    """How an eviction ended; a victim that ended by itself says how.

    ``stayed``: the beneficiary needed it no more, and it could be told so in time.
    """

    KILLED = "killed"
    CHECKPOINTED = "checkpointed"
    GRACE_EXCEEDED = "grace_exceeded"
    DEMOTED = "demoted"
    SHRUNK = "shrunk"
    STAYED = "stayed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"


LEFT = frozenset(
    {EvictionOutcome.KILLED, EvictionOutcome.CHECKPOINTED, EvictionOutcome.GRACE_EXCEEDED}
)
"""Outcomes of an attempt that an eviction ended."""


class ReservationOutcome(models.TextChoices):
    """How a reservation ended."""

    STARTED = "started"
    TIMED_OUT = "timed_out"
    RELEASED = "released"
    CANCELLED = "cancelled"
