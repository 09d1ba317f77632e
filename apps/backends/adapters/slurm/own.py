"""Rollcall's own jobs as Slurm lists them, and what became of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from apps.backends.adapters.slurm.marks import Mark, mark_by_name, mark_of
from apps.backends.adapters.slurm.text import (
    EVERY,
    WAITING,
    JobRow,
    expand,
    fields_of,
    gpus_in,
    instant,
    rows_in,
)
from apps.backends.port import SeenAttempt
from apps.common.time import MICROSECOND, from_us

# The comment stands last: it is ours, and nothing follows that it could pass for.
OWN = "%A|%T|%V|%S|%e|%N|%n|%j|%r|%k"
ACTIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING")
CHECKPOINTED = 75
# Before the name of a job that was alive: what stands in a cursor without it has ended.
ALIVE = "+"
SIGNAL_NUMBER = {"HUP": 1, "INT": 2, "USR1": 10, "USR2": 12, "TERM": 15}
OUTCOMES = {
    "COMPLETED": "succeeded",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "TIMEOUT": "timed_out",
    "DEADLINE": "timed_out",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
    "PREEMPTED": "lost",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}
WORDS = {
    "OUT_OF_MEMORY": "ran out of memory",
    "NODE_FAIL": "a node failed under it",
    "BOOT_FAIL": "a node did not boot",
    "PREEMPTED": "Slurm preempted it",
    "DEADLINE": "Slurm's deadline for it passed",
}


@dataclass(frozen=True, slots=True)
class OwnJob:
    """A job of ours; instants in seconds of Slurm's clock."""

    id: int
    state: str
    submit: int
    start: int | None
    end: int | None
    nodes: tuple[str, ...]
    planned: tuple[str, ...]
    name: str
    reason: str
    mark: Mark
    laid: tuple[int, ...] = ()  # GPUs on each node, where they lie unevenly and it is known

    @property
    def key(self) -> str:
        """Return what names this very job: an id is given out again after a crash."""
        return f"{self.id}:{self.submit}"

    @property
    def runs(self) -> bool:
        """Return whether it holds its GPUs: one that completes does so until Slurm is done."""
        return self.state in ACTIVE

    @property
    def waits(self) -> bool:
        """Return whether Slurm has yet to start it."""
        return self.state in WAITING

    @property
    def shares(self) -> tuple[int, ...]:
        """Return the GPUs on each of its nodes; none: they lie unevenly, and it is not known how."""
        return (self.mark.per_node,) * len(self.nodes) if self.mark.members else self.laid

    @property
    def places(self) -> tuple[str, ...]:
        """Return the node of each member by rank: Slurm fills its nodes one after the other."""
        nodes, each = self.nodes or self.planned, self.mark.members
        if each:
            return tuple(name for name in nodes for _ in range(each))
        laid = zip(self.nodes, self.laid, strict=False)
        return tuple(name for name, many in laid for _ in range(many // self.mark.gpus))


@dataclass(frozen=True, slots=True)
class Detail:
    """What ``scontrol show job`` adds: how often it was laid back, and its exit code."""

    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """Slurm's seconds as instants of Rollcall's clock; ``skew`` is how far Slurm's is ahead."""

    skew: int = 0

    def us(self, seconds: int) -> int:
        """Return an instant in microseconds."""
        return (seconds - self.skew) * MICROSECOND


def own_in(text: str, cluster: str, owner: str = "", rows: Iterable[JobRow] = ()) -> list[OwnJob]:
    """Return the jobs of a cluster that ``squeue --me -o`` OWN printed, or one of ``owner``'s.

    ``rows``: everybody's, by which one is known whose comment is not Rollcall's any more.
    """
    known = {row.id: row for row in rows}
    found = []
    for line in text.splitlines():
        parts = line.split("|", 9)
        if len(parts) != 10 or not parts[0].isdigit() or not parts[2].isdigit():
            continue
        mark = mark_of(parts[9], owner)
        row = known.get(int(parts[0]))
        if mark is None and row is not None and not owner:
            mark = mark_by_row(row, parts[7], cluster)
        if mark is None or mark.cluster != cluster:
            continue
        found.append(
            OwnJob(
                id=int(parts[0]),
                state=parts[1],
                submit=int(parts[2]),
                start=None if parts[1] in WAITING else instant(parts[3]),
                end=instant(parts[4]),
                nodes=expand(parts[5]),
                planned=expand(parts[6]),
                name=parts[7],
                reason="" if parts[8] == "None" else parts[8],
                mark=mark,
            )
        )
    return found


def mark_by_row(row: JobRow, name: str, cluster: str) -> Mark | None:
    """Return what a job of ours is by its name and what it asks for; None: it is none of ours."""
    by_node = gpus_in(row.per_node)
    if by_node:
        return mark_by_name(name, cluster, by_node)
    return mark_by_name(name, cluster, gpus_in(row.per_task), row.ntasks)


def every_with_marks(tag: str) -> str:
    """Return the format of ``squeue -O`` for everybody's jobs with their names and comments.

    Their users write these two. ``tag``, which nobody can guess, stands before and behind either, so
    that no name or comment passes for a column or a line. It does not begin with a digit, which
    squeue would take for a width.
    """
    return f"{EVERY},ReqNodes:{tag},Name:{tag},Comment:{tag}"


def with_marks(text: str, tag: str, cluster: str) -> tuple[list[JobRow], list[OwnJob]]:
    """Return the jobs that were listed by ``every_with_marks``, and ours that run as their users."""
    rows, own = [], []
    *parts, _ = text.split(tag)
    part = iter(parts)
    for columns, name, comment in zip(part, part, part, strict=True):
        told, _, planned = columns.rpartition("|")
        (row,) = rows_in(f"{told}|")
        rows.append(row)
        mark = mark_of(comment, row.user)
        if mark is not None and mark.cluster == cluster:
            own.append(with_mark(row, mark, name, expand(planned)))
    return rows, own


def with_mark(row: JobRow, mark: Mark, name: str, planned: tuple[str, ...]) -> OwnJob:
    """Return a job of ours as it stands among everybody's."""
    return OwnJob(
        id=row.id,
        state=row.state,
        submit=row.submit,
        start=row.start,
        end=row.end,
        nodes=row.nodes,
        planned=planned,
        name=name,
        reason=row.reason,
        mark=mark,
    )


def is_ours(job: OwnJob, known: Collection[str]) -> bool:
    """Return whether a job is ours: one that has but its name left is, if the last look told of it."""
    return not job.mark.by_name or job.key in known or ALIVE + job.key in known


def one_each(jobs: Iterable[OwnJob]) -> tuple[dict[str, OwnJob], list[OwnJob]]:
    """Return the job of each attempt by its uid, and those that are one too many and not over.

    What runs is it; else what waits, else what ended; of several the first.
    """
    found: dict[str, OwnJob] = {}
    spare = []
    for job in sorted(jobs, key=lambda job: (not job.runs, not job.waits, job.id)):
        if job.mark.uid not in found:
            found[job.mark.uid] = job
        elif job.runs or job.waits:
            spare.append(job)
    return found, spare


def detail_in(text: str) -> Detail:
    """Return what ``scontrol -o show job`` says of how a job ended."""
    fields = fields_of(text)
    code, _, signal = fields.get("ExitCode", "0:0").partition(":")
    return Detail(
        restarts=int(fields.get("Restarts", "0") or 0),
        exit_code=int(code) if code.isdigit() else 0,
        exit_signal=int(signal) if signal.isdigit() else 0,
    )


def came_back(job: OwnJob, detail: Detail) -> bool:
    """Return whether Slurm laid a job back in line that ran, or failed to start: it is over."""
    failed = "launch" in job.reason.lower() and "held" in job.reason.lower()
    return job.waits and (detail.restarts > 0 or failed)


def _ended(job: OwnJob, detail: Detail, clock: Clock) -> tuple[str, int, int | None, str]:
    """Return how an attempt ended, when, what it saved last, and Slurm's words for it."""
    mark = job.mark
    if mark.left or job.waits:
        at = mark.left or max(clock.us(job.submit), mark.asked)
        if mark.left or detail.exit_code == CHECKPOINTED:
            return "stopped", at, at, "exited 75: it saved its work"
        return "lost", at, None, f"Slurm laid it back in line: {job.reason}"
    at = max(clock.us(job.end or job.submit), mark.asked, mark.stop)
    if detail.exit_code == CHECKPOINTED:
        return "stopped", at, at, "exited 75: it saved its work"
    outcome, words = OUTCOMES.get(job.state, "failed"), WORDS.get(job.state, "")
    if mark.stop and outcome in ("cancelled", "failed", "lost"):
        why = f"Slurm did not start it: {mark.why}" if mark.why else ""
        return "stopped", at, None, why
    asked_to_death = mark.asked and detail.exit_signal == SIGNAL_NUMBER.get(mark.signal)
    if outcome == "failed" and asked_to_death:
        return "stopped", at, None, f"died of {mark.signal}: it does not trap it"
    if outcome == "failed" and not words:
        if detail.exit_signal:
            words = f"killed by signal {detail.exit_signal}"
        else:
            words = f"exit status {detail.exit_code}"
        if job.reason and job.reason != "NonZeroExitCode":
            words += f" ({job.reason})"
    if outcome == "cancelled":
        words = "somebody cancelled it in Slurm"
    return outcome, at, None, words


def seen(job: OwnJob, detail: Detail, clock: Clock, slurm: str) -> SeenAttempt:
    """Return an attempt as the port tells of it.

    Slurm counts whole seconds: nothing starts before it was submitted, nor ends before it started.
    """
    mark, ref = job.mark, f"{slurm}:{job.id}:{job.submit}"
    nodes = job.places
    began: datetime | None = None
    over = not (job.runs or job.waits) or came_back(job, detail)
    if over and job.waits and mark.left == 0 and detail.restarts == 0:
        began = None  # it failed at its start
    elif over and (job.waits or mark.left):
        began = from_us(mark.at)  # Slurm forgot when
    elif job.start is not None and job.nodes and not job.waits:
        began = from_us(max(clock.us(job.start), mark.at))
    if not over:
        # One that lies unevenly has started for us once it is known how.
        runs = job.runs and bool(job.shares)
        return SeenAttempt(
            uid=mark.uid,
            state="running" if runs else "waiting",
            nodes=nodes,
            started_at=began if runs else None,
            detail="" if job.runs else job.reason,
            cluster_ref=ref,
        )
    outcome, at, saved, words = _ended(job, detail, clock)
    end = from_us(at) if began is None else max(from_us(at), began)
    return SeenAttempt(
        uid=mark.uid,
        state="ended",
        nodes=nodes,
        started_at=began,
        ended_at=end,
        outcome=outcome,
        detail=words,
        checkpoint_at=None if saved is None else end,
        cluster_ref=ref,
    )


def gpus_held(jobs: Iterable[OwnJob]) -> Mapping[tuple[str, str], int]:
    """Return the GPUs that our jobs hold, by node and pool, as far as it is known where."""
    held: dict[tuple[str, str], int] = {}
    for job in jobs:
        if job.runs:
            for node, gpus in zip(job.nodes, job.shares, strict=False):
                key = node, job.mark.pool
                held[key] = held.get(key, 0) + gpus
    return held
