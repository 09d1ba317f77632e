"""What the engine is given and what it answers: columns, never rows of objects.

Times are integer microseconds since the epoch (UTC), GPUs are integers in the pool's own unit, and
an index is a position in the named table (``-1``: none). Arrays are ``int64`` unless a comment says
otherwise. Ragged columns are an ``offsets`` array of length n + 1 beside a flat array of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NONE = -1
"""No limit, no ceiling, no parent, no rack: whatever the column may lack."""

MICROSECOND = 1_000_000
HOUR = 3_600 * MICROSECOND


class NodeState(IntEnum):
    UP = 0
    DRAINED = 1
    DOWN = 2


class Topology(IntEnum):
    NONE = 0
    RACK = 1
    NVLINK = 2


class Verdict(IntEnum):
    WAIT = 0
    RESERVE = 1
    START = 2


class Reason(IntEnum):
    """Why a job waits, in the order of SCENARIO.md; the first that holds is given."""

    STARTS = 0
    HELD = 1
    DEPENDENCY = 2
    BEGIN_TIME = 3
    PAUSED = 4
    NEVER_FITS = 5
    NO_NODES = 6
    WEIGHTLESS = 7
    GUARANTEE = 8
    LEAVING = 9
    DEFERRED = 10
    CEILING = 11
    CAPACITY = 12
    PLACEMENT = 13
    RESERVED = 14


GATES = (Reason.HELD, Reason.DEPENDENCY, Reason.BEGIN_TIME, Reason.PAUSED)
"""Reasons the shell knows and the engine only passes on."""

TERMS = ("fair_share", "age", "size", "queue", "class", "boost", "nice")


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """The pools of one cluster."""

    id: Ints
    name: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The nodes of one cluster; a node of two GPU kinds is two rows."""

    id: Ints
    name: tuple[str, ...]
    pool: Ints
    gpus: Ints
    state: Ints
    rack: Ints  # a code shared by the nodes of a rack; -1: a rack of its own
    nvlink: Ints  # likewise
    foreign: Ints  # GPUs used by work that is not ours


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """The tenant tree; a parent may stand before or after its children."""

    id: Ints  # ascending is older first
    name: tuple[str, ...]
    parent: Ints  # index, -1: below the root
    weight: Floats
    usage: Floats  # decayed GPU-hours of its own jobs, without its children's
    archived: Bools  # keeps usage with its parent, is a sibling no more


@dataclass(frozen=True, slots=True, eq=False)
class Quotas:
    """Promises, shape (tenants, pools)."""

    guarantee: Ints  # 0: none (a parent then promises its children's sum)
    ceiling: Ints  # -1: none
    weight: Floats  # NaN: the tenant's own


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Jobs that wait, RESERVING ones included."""

    id: Ints
    tenant: Ints
    pool: Ints
    size: Ints
    gpus_per_member: Ints
    submitted: Ints  # first submit time, kept through all attempts
    limit: Ints  # microseconds, -1: none
    class_priority: Ints
    nice: Ints
    queue_factor: Floats  # 0 to 1
    topology: Ints
    gate: Ints  # a Reason of GATES, or 0
    broken: Bools  # its gang broke: it goes first among its class
    reserved_since: Ints  # the first held GPU of the present reservation, -1: none
    no_reserve_before: Ints  # set by a time-out; 0: none
    hold_offsets: Ints  # n + 1
    hold_rank: Ints  # the member that holds
    hold_node: Ints  # the node it holds on


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """Attempts that hold GPUs on the cluster: admitted, running, asked to leave."""

    id: Ints  # the job's id
    tenant: Ints
    pool: Ints
    size: Ints
    gpus_per_member: Ints
    started: Ints
    ends_by: Ints  # started + limit, -1: no limit
    class_priority: Ints
    member_offsets: Ints  # n + 1
    member_node: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All a tick saw of one cluster."""

    now: int
    pools: Pools
    nodes: Nodes
    tenants: Tenants
    quotas: Quotas
    pending: Pending
    running: Running


@dataclass(frozen=True, slots=True)
class Weights:
    """What a factor between 0 and 1 is multiplied by."""

    fair_share: float = 10_000.0
    age: float = 1_000.0
    size: float = 0.0
    queue: float = 0.0
    class_: float = 100_000.0


@dataclass(frozen=True, slots=True)
class Policy:
    """How a cluster decides; durations in microseconds, -1: none."""

    fair_share: str = "fair_tree"
    dampening: float = 1.0  # classic only
    weights: Weights = Weights()
    max_age: int = 7 * 24 * HOUR
    max_class: int = 0  # the highest class priority there is; 0: every class factor is 0
    preemption: str = "none"
    placement: str = "pack"
    backfill: str = "easy"
    hold_late: int = NONE
    gang_timeout: int = NONE
    lend_guarantee: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """Where whole gangs start: job k's members are on ``node[offsets[k]:offsets[k + 1]]``."""

    job: Ints  # index into pending
    offsets: Ints
    node: Ints  # by rank


@dataclass(frozen=True, slots=True, eq=False)
class Holds:
    """What gangs hold after this decision while they wait for the rest."""

    job: Ints  # index into pending
    offsets: Ints
    rank: Ints
    node: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """One line per pending job, in the order of the pending table."""

    verdict: Ints
    reason: Ints
    needed: Ints  # -1: the reason carries none
    available: Ints  # likewise
    tenant: Ints  # index of the tenant whose ceiling or guarantee decides
    for_job: Ints  # index into pending of the gang the room is held for
    until: Ints  # microseconds
    most: Ints  # what could ever be given, with NEVER_FITS
    forecast: Ints  # the instant its reservation expects to start, -1: none made
    terms: Floats  # (pending, len(TERMS))
    priority: Floats
    position: Ints  # 0 is first


@dataclass(frozen=True, slots=True, eq=False)
class Standings:
    """Where tenants stand, by tenant; what they hold, (tenants, pools)."""

    usage: Floats  # with all descendants
    share: Floats  # among siblings
    usage_share: Floats
    level: Floats  # inf: no usage; 0: zero weight
    factor: Floats  # NaN for an inner tenant without jobs of its own
    rank: Ints  # 1 is first; -1 where there is no factor
    guarantee: Ints
    ceiling: Ints
    used: Ints
    entitlement: Ints
    lent: Ints
    borrowed: Ints
    over_quota: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """GPUs per pool after the decision."""

    gpus: Ints
    free: Ints
    held: Ints
    promised: Ints
    stranded: Ints  # per node: free GPUs that no pending job's member can use


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the engine answers."""

    order: Ints  # pending indexes as sorted
    verdicts: Verdicts
    starts: Placements
    holds: Holds
    timed_out: Ints  # pending indexes whose reservation is given back
    standings: Standings
    room: Room


Columns = dict[str, Any]
