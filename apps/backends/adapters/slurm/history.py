"""What Slurm's accounting (``sacct``) knows of runs that are over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from apps.backends.adapters.slurm.layout import gpus_of, members_on
from apps.backends.adapters.slurm.look import Look, clock_of
from apps.backends.adapters.slurm.own import ACTIVE, OUTCOMES, Clock
from apps.backends.adapters.slurm.runner import Runner
from apps.backends.adapters.slurm.text import (
    SLURMDBD,
    NodeText,
    config_of,
    expand,
    instant,
    nodes_in,
)
from apps.backends.port import BackendError, ForeignWork, History
from apps.common.time import MICROSECOND, from_us, to_us

# None of these is written by a user, so that no job's name or comment can pass for a line.
COLUMNS = (
    "JobIDRaw", "JobID", "Submit", "Start", "End", "State", "Account", "User", "Partition",
    "AllocTRES", "NNodes", "NodeList", "TimelimitRaw",
)  # fmt: skip
# For our own jobs alone: their names end in the attempt's uid (marks.job_name).
OWN_COLUMNS = ("JobIDRaw", "Submit", "JobName")
OWN_LINE = re.compile(r"(\d+)\|(\d+)\|(?:.*\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$)?")
# sacct reads a database, which may be large and on disk.
PATIENCE_SECONDS = 60
TIMES_NOTHING = 3
WAITING = ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED")

Key = tuple[int, int]
"""Id and submit time: an id is given out again."""

NO_GPUS = "asked for no GPUs"
NEVER_RAN = "never ran"
SEVERAL = "had GPUs of several types"
ELSEWHERE = "ran in another partition"


@dataclass(frozen=True, slots=True)
class Ground:
    """What of a cluster does not change while its history is read."""

    slurm: str
    clock: Clock
    user: str
    kinds: Mapping[str, tuple[str, ...]]  # by node, the types of its GPUs

    def pool_of(self, nodes: tuple[str, ...]) -> str:
        """Return the type of the GPUs of these nodes, where it is not written down: ``gpu``, unknown."""
        known = {kind for name in nodes for kind in self.kinds.get(name, ())}
        if not known:
            known = {kind for kinds in self.kinds.values() for kind in kinds}
        return next(iter(known)) if len(known) == 1 else "gpu"


@dataclass(frozen=True, slots=True)
class PastRow:
    """A line of ``sacct``; instants in seconds, None where there is none yet."""

    id: int
    label: str
    submit: int
    start: int | None
    end: int | None
    state: str
    account: str
    user: str
    partition: str
    tres: str
    nodes: tuple[str, ...]
    limit: int | None

    @property
    def key(self) -> Key:
        """Return what names this run."""
        return self.id, self.submit

    @property
    def is_over(self) -> bool:
        """Return whether it neither runs nor waits."""
        return self.end is not None and self.state not in ACTIVE and self.state not in WAITING


def ground(runner: Runner, now: datetime) -> Ground:
    """Ask what the reading of history needs to know.

    :raises BackendError: if Slurm's accounting does not keep GPUs, saying which setting does.
    """
    config, nodes, who = runner.read(
        ["scontrol", "-o", "show", "config"],
        ["scontrol", "-d", "-o", "show", "node"],
        ["/usr/bin/id", "-un"],
    )
    settings = config_of(config.out)
    if settings.get("AccountingStorageType") != SLURMDBD:
        raise BackendError(
            "This Slurm has no accounting database (slurmdbd), so it has no history.", retry=False
        )
    if not re.search(r"\bgres/gpu\b", settings.get("AccountingStorageTRES", "")):
        raise BackendError(
            "Slurm's accounting keeps no GPUs: AccountingStorageTRES in slurm.conf lacks gres/gpu.",
            retry=False,
        )
    return Ground(
        slurm=settings.get("ClusterName", ""),
        clock=clock_of(int(settings["as_of"]), now),
        user=who.out.strip(),
        kinds={node.name: _kinds(node) for node in nodes_in(nodes.out)},
    )


def ground_of(look: Look) -> Ground:
    """Return the same from a look, which asks nothing more."""
    return Ground(look.slurm, look.clock, "", {node.name: _kinds(node) for node in look.nodes})


def _kinds(node: NodeText) -> tuple[str, ...]:
    return tuple(node.gpus)


def read_history(
    runner: Runner, known: Ground, since: datetime, until: datetime, partition: str
) -> History:
    """Return the runs that are over and ran at some time within a range.

    :raises BackendError: if the database does not answer, or in a way not understood.
    """
    # Later than the end by a second: sacct counts whole seconds.
    span = ["-S", _said(since, known.clock), "-E", _said(until, known.clock, 1)]
    plain = ["sacct", "-X", "-D", "-n", "-P", *span]
    rows = [
        row for row in rows_in(told(runner, [*plain, "-a", "-o", ",".join(COLUMNS)])) if row.is_over
    ]
    left: Counter[str] = Counter()
    first, last = to_us(since), to_us(until)
    works = {}
    for row in rows:
        found = work_of(row, known, partition)
        if isinstance(found, str):
            left[found] += first <= known.clock.us(row.end or 0) < last
        else:
            works[row.key] = found
    mine = {row.key for row in rows if row.user == known.user} & works.keys()
    uids = _own(runner, plain, known.user, mine) if mine else {}
    return History(
        works=list(works.values()),
        own={works[key].ref: uid for key, uid in uids.items()},
        left_out=+left,
    )


def told(runner: Runner, command: list[str], patience: float | None = PATIENCE_SECONDS) -> str:
    """Return what sacct printed.

    Now and then slurmdbd fails to read its database ("We should have gotten a result" in its log),
    and sacct prints nothing, without a word and with exit status 0: one answer in some hundreds in
    the lab. So nothing is believed only when it was said three times.

    :raises BackendError: if sacct says that it failed.
    """
    for _ in range(TIMES_NOTHING):
        (answer,) = runner.read(command, patience=patience)
        if answer.code:
            raise BackendError(f"sacct refused: {answer.said}", retry=False)
        if "error:" in answer.err:
            raise BackendError(f"sacct did not tell all: {answer.said}", retry=True)
        if answer.out.strip():
            return answer.out
    return ""


def _own(runner: Runner, plain: list[str], user: str, asked: Set[Key]) -> dict[Key, str]:
    """Return the uids in the names of jobs of the service user, where there are any.

    :raises BackendError: if some of these jobs are not told of.
    """
    out = told(runner, [*plain, "-u", user, "-o", ",".join(OWN_COLUMNS)])
    uids = {
        (int(one[1]), int(one[2])): one[3] for one in map(OWN_LINE.match, out.splitlines()) if one
    }
    if not asked <= uids.keys():
        raise BackendError("sacct did not tell of all jobs of ours.", retry=True)
    return {key: str(UUID(uids[key])) for key in asked if uids[key]}


def _said(at: datetime, clock: Clock, more: int = 0) -> str:
    """Return an instant as sacct takes it, on Slurm's clock and in UTC (runner.PLAIN)."""
    seconds = to_us(at) // MICROSECOND + clock.skew + more
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def rows_in(text: str) -> Iterator[PastRow]:
    """Yield the lines that ``sacct -o`` COLUMNS printed."""
    for line in text.splitlines():
        if not line.strip():
            continue
        parts = line.split("|")
        if len(parts) != len(COLUMNS) or not parts[0].isdigit() or not parts[2].isdigit():
            raise BackendError(
                f"sacct listed a job in a way not understood: {line[:80]}.", retry=True
            )
        yield PastRow(
            id=int(parts[0]),
            label=parts[1],
            submit=int(parts[2]),
            start=instant(parts[3]),
            end=instant(parts[4]),
            state=parts[5].split(" ")[0],  # CANCELLED by 1000
            account=parts[6],
            user=parts[7],
            partition=parts[8],
            tres=parts[9],
            nodes=() if parts[11] == "None assigned" else expand(parts[11]),
            limit=int(parts[12]) * 60 if parts[12].isdigit() else None,
        )


def ref_of(known: Ground, row: PastRow) -> str:
    """Return the name of a run's work, as a look has it."""
    return f"{known.slurm}:{row.label}:{row.submit}"


def work_of(row: PastRow, known: Ground, partition: str) -> ForeignWork | str:
    """Return a run, or why it is left out."""
    if not row.start or not row.nodes or row.end is None:
        return NEVER_RAN
    gpus = gpus_of(row.tres)
    if not gpus:
        return NO_GPUS
    if partition and partition not in row.partition.split(","):
        return ELSEWHERE
    if len(gpus) > 1:
        return SEVERAL
    ((kind, total),) = gpus.items()
    members = members_on(row.nodes, total)
    start = known.clock.us(row.start)
    return ForeignWork(
        ref=ref_of(known, row),
        name=f"Slurm job {row.label}"[:200],
        state="ended",
        account=row.account,
        user=row.user,
        pool=known.pool_of(row.nodes) if kind == "gpu" else kind,
        size=len(members),
        gpus_per_member=total // len(members),
        submitted_at=from_us(known.clock.us(row.submit)),
        nodes=members,
        run=str(row.start),
        started_at=from_us(start),
        ended_at=from_us(max(known.clock.us(row.end), start)),
        outcome=_outcome(row.state),
        limit_seconds=row.limit,
    )


def _outcome(state: str) -> str:
    """Return how a run ended; one that was laid back in line went on in another."""
    if state == "REQUEUED":
        return "cancelled"
    outcome = OUTCOMES.get(state, "failed")
    return "failed" if outcome == "lost" else outcome
