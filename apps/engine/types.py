"""What the engine is given and what it answers: columns, never rows of objects.

Times are integer microseconds since the epoch (UTC), GPUs are integers in the pool's own unit, and
an index is a position in the named table (``-1``: none). Arrays are ``int64`` unless a comment says
otherwise. Ragged columns are an ``offsets`` array of length n + 1 beside a flat array of values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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


class Mode(IntEnum):
    """How a victim gives way; source: DOMAIN §5."""

    KILL = 0
    CHECKPOINT = 1
    DEMOTE = 2  # it runs on; after the grace it is asked again, then by checkpoint
    SHRINK = 3  # the last members of an elastic gang leave, the rest runs on


MODES = {"kill": Mode.KILL, "checkpoint": Mode.CHECKPOINT, "demote": Mode.DEMOTE}
"""What a policy may say; a shrink is never asked for, it is tried before anyone goes whole."""


class Passed(IntEnum):
    """Why a candidate was passed over for a beneficiary, or that it was not."""

    CHOSEN = 0
    GIVEN_BACK = 1  # not needed: it fits without
    NO_HELP = 2  # its nodes could not take a member of the gang
    NOT_PREEMPTIBLE = 3
    LEAVING = 4  # asked to leave already, or demoted for another job
    THRASH = 5  # evicted too often within the hour
    MIN_RUNTIME = 6
    COOLDOWN = 7
    CLASS = 8  # not of a lower class
    GUARANTEE = 9  # its tenant, or one above it, would go below its guarantee
    ENTITLEMENT = 10  # likewise, below its entitlement
    TAKER = 11  # the beneficiary's tenant is above its own entitlement and guarantee
    SHARE = 12  # its tenant's share is equal or better (fair)


GATES = (Reason.HELD, Reason.DEPENDENCY, Reason.BEGIN_TIME, Reason.PAUSED)
"""Reasons the shell knows and the engine only passes on."""


def _unsaid() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _unsaid_flags() -> Bools:
    return np.zeros(0, dtype=np.bool_)


def _fill(table: object, rows: int, **columns: Ints | Bools | int) -> None:
    """Give columns that were left out their default, a column or one value for all rows."""
    for name, default in columns.items():
        if rows and not len(getattr(table, name)):
            column = default if isinstance(default, np.ndarray) else np.full(rows, default)
            object.__setattr__(table, name, column)


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
    """Jobs that wait, RESERVING ones included.

    A gang whose victims leave is *promised* a place: what it holds of it (``hold_*``) and what is
    still to come (``promise_*``) are together one node for each rank. Columns with a default may be
    left out.
    """

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
    preemptible: Bools = field(default_factory=_unsaid_flags)  # True
    promised: Bools = field(default_factory=_unsaid_flags)  # a place is promised to it; False
    promise_offsets: Ints = field(default_factory=_unsaid)  # n + 1
    promise_rank: Ints = field(default_factory=_unsaid)  # the member whose room is to come
    promise_node: Ints = field(default_factory=_unsaid)  # the node it comes on

    def __post_init__(self) -> None:
        """Fill in what was left out."""
        rows = len(self.id)
        _fill(self, rows, preemptible=np.ones(rows, dtype=np.bool_))
        _fill(self, rows, promised=np.zeros(rows, dtype=np.bool_))
        _fill(self, rows + 1, promise_offsets=0)


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """Attempts that hold GPUs on the cluster: admitted, running, asked to leave.

    ``leaving`` is set from the decision to evict until the cluster says that it has left; a demoted
    job is not leaving. Columns with a default may be left out.
    """

    id: Ints  # the job's id
    tenant: Ints
    pool: Ints
    size: Ints
    gpus_per_member: Ints
    started: Ints
    ends_by: Ints  # started + limit, -1: no limit
    class_priority: Ints
    member_offsets: Ints  # n + 1
    member_node: Ints  # by rank
    attempt: Ints = field(default_factory=_unsaid)  # its id, -1: not said
    submitted: Ints = field(default_factory=_unsaid)  # the job's; started
    preemptible: Bools = field(default_factory=_unsaid_flags)  # True
    min_size: Ints = field(default_factory=_unsaid)  # it may shrink to this; size
    last_checkpoint: Ints = field(default_factory=_unsaid)  # of this attempt, -1: never
    restarted: Ints = field(default_factory=_unsaid)  # started, if an eviction ended the one before
    evictions: Ints = field(default_factory=_unsaid)  # the job's within the last hour; 0
    demoted: Ints = field(default_factory=_unsaid)  # since when, -1: not
    leaving: Ints = field(default_factory=_unsaid)  # asked to leave by then, -1: not
    leaving_for: Ints = field(default_factory=_unsaid)  # id of the job it leaves or is demoted for
    shrinking: Ints = field(default_factory=_unsaid)  # the last members that leave, 0: all of them

    def __post_init__(self) -> None:
        """Fill in what was left out."""
        rows = len(self.id)
        _fill(self, rows, attempt=NONE, submitted=self.started.copy(), min_size=self.size.copy())
        _fill(self, rows, preemptible=np.ones(rows, dtype=np.bool_))
        _fill(self, rows, last_checkpoint=NONE, restarted=NONE, evictions=0, demoted=NONE)
        _fill(self, rows, leaving=NONE, leaving_for=NONE, shrinking=0)


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
    mode: str = "kill"
    grace: int = 60 * MICROSECOND  # a kill has none
    min_runtime: int = 0  # nobody is evicted before it ran so long
    max_evictions: int = 0  # asked within one decision, 0: no limit
    cooldown: int = 0  # an evicted job is left alone so long after it starts again
    thrash_after: int = 3  # evictions within an hour, and it is left alone; 0: never
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


def _no_holds() -> Holds:
    return Holds(_unsaid(), np.zeros(1, dtype=np.int64), _unsaid(), _unsaid())


@dataclass(frozen=True, slots=True, eq=False)
class Evictions:
    """What is asked of whom by this decision: one row a victim, by beneficiary, then in order.

    What was asked by earlier decisions is not said again; a demoted job that is still in the way
    after the grace is a row once more, by checkpoint.
    """

    victim: Ints = field(default_factory=_unsaid)  # index into running
    job: Ints = field(default_factory=_unsaid)  # index into pending: the beneficiary
    mode: Ints = field(default_factory=_unsaid)  # a Mode
    members: Ints = field(default_factory=_unsaid)  # the last so many leave: all, unless it shrinks
    gpus: Ints = field(default_factory=_unsaid)  # that leave
    until: Ints = field(default_factory=_unsaid)  # left by then; demoted: asked to leave from then
    lost: Ints = field(default_factory=_unsaid)  # GPU-microseconds, were it killed now
    rule: tuple[str, ...] = ()  # priority for a victim of the beneficiary's own tenant


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Whom a promised gang waits for: job k for ``victim[offsets[k]:offsets[k + 1]]``."""

    job: Ints = field(default_factory=_unsaid)  # index into pending
    offsets: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    victim: Ints = field(default_factory=_unsaid)  # index into running


@dataclass(frozen=True, slots=True, eq=False)
class Considered:
    """The candidates looked at, in order, for each job that evicts by this decision.

    ``victim`` and ``passed`` list the first of them (at most ``LISTED`` a job, all the chosen
    included); ``counts`` has them all, shape (jobs, len(Passed)).
    """

    job: Ints = field(default_factory=_unsaid)  # index into pending
    offsets: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    victim: Ints = field(default_factory=_unsaid)  # index into running
    passed: Ints = field(default_factory=_unsaid)  # a Passed
    counts: Ints = field(default_factory=lambda: np.zeros((0, len(Passed)), dtype=np.int64))


LISTED = 200
"""Candidates spelled out for one beneficiary, the chosen apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """One line per pending job, in the order of the pending table."""

    verdict: Ints
    reason: Ints
    needed: Ints  # -1: the reason carries none
    available: Ints  # likewise
    tenant: Ints  # index of the tenant whose ceiling or guarantee decides
    for_job: Ints  # index into pending of the gang the room is held for
    until: Ints  # microseconds: of what it is reserved for, its victims leave by, it is deferred to
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
    promised: Ints  # still taken by what was asked to leave, by this decision too
    stranded: Ints  # per node: free GPUs that no pending job's member can use


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the engine answers.

    A gang that has victims, old or new, has its whole place in ``holds`` (idle) and ``promises``
    (to come) together, and whom it waits for in ``leaving``; its verdict is RESERVE where it holds
    any, else WAIT, its reason LEAVING.
    """

    order: Ints  # pending indexes as sorted
    verdicts: Verdicts
    starts: Placements
    holds: Holds
    timed_out: Ints  # pending indexes whose reservation is given back
    standings: Standings
    room: Room
    evictions: Evictions = field(default_factory=Evictions)
    promises: Holds = field(default_factory=_no_holds)
    leaving: Waits = field(default_factory=Waits)
    stays: Ints = field(default_factory=_unsaid)  # running indexes: asked to leave, needed no more
    considered: Considered = field(default_factory=Considered)


Columns = dict[str, Any]
