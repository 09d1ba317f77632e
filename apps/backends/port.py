"""The one small port through which clusters are touched; every call is safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from apps.common.errors import DomainError


class BackendError(DomainError):
    """The cluster could not be asked, or said no; ``retry`` says whether asking again can help."""

    code = "backend"

    def __init__(self, message: str, *, retry: bool) -> None:
        super().__init__(message)
        self.retry = retry


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a cluster can do, and what it cannot in words a page can show."""

    grade: str
    can: frozenset[str]
    cannot: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node as the cluster reports it; ``state`` is up, drained or down."""

    name: str
    pool: str
    gpus: int
    state: str
    since: datetime
    rack: str = ""
    nvlink: str = ""
    reason: str = ""
    foreign_gpus: int = 0


@dataclass(frozen=True, slots=True)
class SeenAttempt:
    """An attempt of ours as the cluster reports it, named by our uid.

    ``state`` is waiting, running or ended; ``outcome`` of an ended one is succeeded, failed,
    cancelled, timed_out (past its limit), lost (a node broke under it) or stopped (by us).
    """

    uid: str
    state: str
    nodes: tuple[str, ...]
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str = ""
    detail: str = ""
    checkpoint_at: datetime | None = None
    cluster_ref: str = ""
    # When the last members of an elastic gang left; ``nodes`` are those that remain.
    shrunk_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ForeignWork:
    """A gang that was submitted to the cluster itself: ``size`` members of so many GPUs.

    ``ref`` names it for as long as the cluster knows it, ``run`` each time it ran, empty before the
    first. ``state`` is waiting, running or ended; ``outcome`` is as an attempt's. ``reason`` says in
    the cluster's words why it waits. ``tasks``: so many wait alike, as a job array's do. ``nodes`` has
    that of each member; running without any: how many are on which node is not known, and without a
    ``pool`` not even of which GPUs.
    """

    ref: str
    name: str
    state: str
    account: str
    user: str
    pool: str
    size: int
    gpus_per_member: int
    submitted_at: datetime
    nodes: tuple[str, ...] = ()
    run: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str = ""
    limit_seconds: int | None = None
    reason: str = ""
    tasks: int = 1
    qos: str = ""


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """What a cluster's own scheduler has of a job that waits there.

    ``ref`` is a job's ``ForeignWork.ref``, or what a launch of ours was called. ``terms`` are those of
    its priority by our names for them, with ``priority``; empty: it has none. ``planned_nodes`` is a
    list as the cluster spells it.
    """

    ref: str
    terms: Mapping[str, float] = field(default_factory=dict)
    planned_at: datetime | None = None
    planned_nodes: str = ""


@dataclass(frozen=True, slots=True)
class OwnLine:
    """All that waits on a cluster; ``no_terms`` says why no priority is told, if none is."""

    places: Sequence[OwnPlace]
    no_terms: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """All a look showed; ``attempts`` are those alive and those ended since the cursor.

    ``foreign`` None: what the cluster runs beside ours is known by its nodes' GPUs alone.
    """

    as_of: datetime
    cursor: str
    nodes: Sequence[SeenNode]
    attempts: Sequence[SeenAttempt]
    foreign: Sequence[ForeignWork] | None = None
    cost_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class History:
    """Runs that are over, of work that was submitted to the cluster itself and of ours.

    ``own``: the uid of the attempt of ours that a run seems to be, by its ref. ``left_out``: how
    many that ended within the range are none of the ledger's business, by why.
    """

    works: Sequence[ForeignWork]
    own: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recalled:
    """How runs ended that a look lists no more: ``works`` by their ref, ``attempts`` of ours."""

    works: Sequence[ForeignWork] = ()
    attempts: Sequence[SeenAttempt] = ()


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """All a cluster needs to start a gang whole on the planned nodes, one node a member."""

    uid: str
    name: str
    tenant: str
    pool: str
    gpus_per_member: int
    nodes: tuple[str, ...]
    limit_seconds: int | None
    workload: Mapping[str, Any]
    number: int = 1
    kept_seconds: int = 0
    # Who submitted the job, by their name in Rollcall; empty: nobody in particular.
    user: str = ""
    # What that user has entered to be let in as, sealed; empty: nothing.
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """``outcome`` is started (at once), accepted (will be seen), exists or refused."""

    outcome: str
    started_at: datetime | None = None
    detail: str = ""
    cluster_ref: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Utilisation of one attempt's GPUs over the time to ``at``, 0 to 1; None: unknown."""

    uid: str
    at: datetime
    utilisation: float | None
    idle_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class SeenRank:
    """Where work that was submitted to the cluster itself stands in the cluster's own line.

    The higher its ``priority`` the sooner it starts; ``nice`` was taken off it. ``listed``: it waits
    in the line; what runs, or is on hold, has a nice alone.
    """

    ref: str
    priority: int
    nice: int
    listed: bool


@dataclass(frozen=True, slots=True)
class SeenLine:
    """The cluster's own line: work by ref; ``since``: when the cluster last started.

    What it was told shortly before that it may have forgotten.
    """

    work: Mapping[str, SeenRank]
    since: datetime


# What ``set_account`` takes for no limit at all.
NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class SeenUser:
    """A user right in an account of the cluster's own; None as in an account.

    ``gpu_limit`` is of all their jobs there together, ``gpus_per_job`` of each.
    """

    name: str
    shares: int | None
    gpu_limit: int | None = None
    gpus_per_job: int | None = None
    raw_usage: float | None = None
    norm_shares: float | None = None
    effective_usage: float | None = None
    fair_share: float | None = None


@dataclass(frozen=True, slots=True)
class SeenQos:
    """A quality of service of the cluster's own: by what it ranks, limits and evicts.

    The limits are lists as the cluster writes them (``cpu=100,gres/gpu=8``): of all its jobs
    together, of one user's, and of one job; empty: none. ``preempts`` are those whose jobs its
    own may evict.
    """

    name: str
    priority: int
    flags: tuple[str, ...] = ()
    preempts: tuple[str, ...] = ()
    preempt_mode: str = ""
    grace_seconds: int = 0
    together: str = ""
    per_user: str = ""
    per_job: str = ""
    longest_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class SeenAccount:
    """An account of the cluster's own: its place, its shares and limit, and what it has used.

    ``parent`` is empty at the top. ``shares`` None: it shares its parent's; ``gpu_limit`` None:
    there is none. ``users`` counts those right in it, ``people`` are they. ``guarantees`` are noted there as what
    Rollcall promises it, in GPUs by the pool's name in lower case. The figures are as the cluster works them
    out, None where it does not say: ``norm_shares`` and ``effective_usage`` are parts of what the
    accounts beside it have, ``level`` is the one by the other (infinite without usage), and
    ``fair_share`` the best factor of a user in it.
    """

    name: str
    parent: str
    shares: int | None
    gpu_limit: int | None
    users: int = 0
    raw_usage: float | None = None
    norm_shares: float | None = None
    effective_usage: float | None = None
    level: float | None = None
    fair_share: float | None = None
    guarantees: Mapping[str, int] = field(default_factory=dict)
    people: tuple[SeenUser, ...] = ()


FINDING_STATES = ("ok", "missing", "warning")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: ``state`` is ok, missing or warning.

    ``command`` is what an operator of the cluster types to grant it; empty: there is nothing to do,
    or nothing that one command does.
    """

    name: str
    state: str
    sentence: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class OptionField:
    """An option of a kind of cluster, or of a workload, as a form asks for it; ``kind`` is text, lines, number, choice or map.

    A map is pairs of names; ``default`` empty: what the help says. A ``secret`` is never shown.
    """

    name: str
    label: str
    kind: str = "text"
    help: str = ""
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    group: str = ""
    secret: bool = False


class Backend(Protocol):
    """What every kind of cluster offers; each call has a timeout and raises only BackendError."""

    def capabilities(self) -> Capabilities:
        """Return what this cluster can and cannot do."""

    def check_workload(self, workload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the workload with defaults filled in; raise Invalid naming the field."""

    def observe(self, cursor: str, *, now: datetime) -> Observation:
        """Return what is true on the cluster at ``now``."""

    def launch(self, request: LaunchRequest, *, now: datetime) -> LaunchResult:
        """Start all members or none; one that exists already is success."""

    def stop(self, uid: str, *, now: datetime) -> None:
        """End an attempt; one that is gone already is success."""

    def ask_to_leave(self, uid: str, *, until: datetime, now: datetime) -> None:
        """Tell an attempt to save its work and go, by ``until`` at the latest.

        It ends as stopped; asking again changes nothing, one that is gone is success.
        """

    def shrink(self, uid: str, *, keep: int, until: datetime, now: datetime) -> None:
        """Have all members of an attempt but the first ``keep`` leave, by ``until`` at the latest."""

    def stay(self, uid: str, *, now: datetime) -> bool:
        """Take back what an attempt was asked; False: too late, it goes all the same."""

    def demote(self, uid: str, *, now: datetime) -> None:
        """Let an attempt run on below all others of the cluster."""

    def utilisation(self, *, now: datetime) -> Sequence[Sample]:
        """Return the newest sample of each running attempt."""


@runtime_checkable
class Remembers(Protocol):
    """What a kind of cluster offers beside, if it ``can`` do "history"."""

    def history(self, since: datetime, until: datetime, *, now: datetime) -> History:
        """Return every run that is over by now and ran, if only for a moment, within a range."""

    def recall(self, foreign: Sequence[str], own: Mapping[str, str], *, now: datetime) -> Recalled:
        """Return how work ended, by its refs; ``own``: the uid of each attempt of ours.

        What is not known to be over, or never ran, is left out. It is asked within a tick.
        """


class TellsLine(Protocol):
    """What a cluster offers too that can do *line*."""

    def line(self, *, now: datetime) -> OwnLine:
        """Return the jobs that wait on the cluster, as its own scheduler sees them."""


@runtime_checkable
class Ranks(Protocol):
    """What a kind of cluster offers beside, if it ``can`` "rank": to be told our order of its own line.

    ``rank`` only answers; whoever asks keeps what was there before, and then has it set.
    """

    def ranks(self, *, now: datetime) -> SeenLine:
        """Return where work that was submitted to the cluster itself stands, as last looked at."""

    def rank(self, order: Sequence[str], *, most: int, now: datetime) -> Mapping[str, int]:
        """Return the nice that puts these in order, by ref: of as few as that takes.

        At most ``most`` of them, the first in the order first. Those that are not listed are left out.
        """

    def renice(self, nice: Mapping[str, int], *, now: datetime) -> None:
        """Set the nice of work, by ref; of what is gone nothing is said."""


class TakesTokens(Protocol):
    """What a cluster offers too that can do *user_tokens*: each user's jobs go by their own token."""

    def check_token(self, user: str, token: str, *, now: datetime) -> datetime | None:
        """Return until when a token lets a user in, by what it says itself; None: it does not say.

        :raises Invalid: if it is none, has ended, or is for somebody else; it is not repeated.
        """


class KeepsAccounts(Protocol):
    """What a cluster offers too that can do *accounts*."""

    def accounts(self, *, now: datetime) -> Sequence[SeenAccount]:
        """Return the cluster's own accounts with their users, by name."""

    def qos(self, *, now: datetime) -> Sequence[SeenQos]:
        """Return what the cluster itself ranks, limits and evicts by, the highest first."""

    def set_account(
        self,
        name: str,
        *,
        shares: int | None = None,
        gpu_limit: int | None = None,
        guarantees: Mapping[str, int] | None = None,
    ) -> None:
        """Change an account's shares, limit of GPUs (``NO_LIMIT``: none) or noted guarantees.

        None: leave it; so are guarantees of other pools. 0: there is none any more.
        """
