"""How runs ended that squeue lists no more (MinJobAge), as ``sacct`` has it: asked when they vanish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from apps.backends.adapters.slurm.history import (
    COLUMNS,
    Ground,
    PastRow,
    ref_of,
    rows_in,
    told,
    work_of,
)
from apps.backends.adapters.slurm.own import CHECKPOINTED, OUTCOMES, WORDS
from apps.backends.adapters.slurm.runner import Runner
from apps.backends.port import ForeignWork, Recalled, SeenAttempt
from apps.common.time import from_us

MORE = ("ExitCode",)
# Else sacct leaves out what began after its own now, which may be before Slurm's.
ALWAYS = ("-S", "2000-01-01", "-E", "now+1day")
CANCELLED_BY = "CANCELLED by "


def recall(
    runner: Runner,
    known: Ground,
    partition: str,
    foreign: Sequence[str],
    own: Mapping[str, str],
    *,
    patience: float | None,
) -> Recalled:
    """Return how jobs ended, by their refs; ``own``: the uid of each of ours.

    :raises BackendError: if the database does not answer in time, or there is none.
    """
    ids = sorted({ref.split(":")[-2] for ref in (*foreign, *own)})
    command = [
        "sacct", "-X", "-D", "-n", "-P", "-a", "-j", ",".join(ids), *ALWAYS, "-o", ",".join((*COLUMNS, *MORE)),
    ]  # fmt: skip
    rows = list(_ended(told(runner, command, patience)))
    me = ""
    if any(state.startswith(CANCELLED_BY) and ref_of(known, row) in own for row, state, _ in rows):
        # Nobody but Rollcall is its service user.
        me = CANCELLED_BY + runner.read(["/usr/bin/env", "id", "-u"])[0].out.strip()
    asked = set(foreign)
    works: dict[str, ForeignWork] = {}
    attempts: dict[str, SeenAttempt] = {}
    for row, state, status in rows:
        ref = ref_of(known, row)
        if ref in own:
            attempts[ref] = _attempt(row, own[ref], known, status, by_us=state == me)
        elif ref in asked:
            work = work_of(row, known, partition)
            if isinstance(work, ForeignWork):
                works[ref] = work
    return Recalled(list(works.values()), list(attempts.values()))


def _ended(text: str) -> Iterator[tuple[PastRow, str, tuple[int, int]]]:
    """Yield each run that is over, its state in full, and its exit code and signal."""
    for line in text.splitlines():
        if not line.strip():
            continue
        rest, _, code = line.rpartition("|")
        (row,) = rows_in(rest)
        status, _, signal = code.partition(":")
        if row.is_over and status.isdigit() and signal.isdigit():
            yield row, rest.split("|")[COLUMNS.index("State")], (int(status), int(signal))


def _attempt(
    row: PastRow, uid: str, known: Ground, status: tuple[int, int], *, by_us: bool
) -> SeenAttempt:
    """Return an attempt of ours; its comment, which says what was asked of it, is not in sacct."""
    code, signal = status
    outcome, words = OUTCOMES.get(row.state, "failed"), WORDS.get(row.state, "")
    if code == CHECKPOINTED:
        outcome, words = "stopped", "exited 75: it saved its work"
    elif row.state == "REQUEUED":
        outcome, words = "lost", "Slurm laid it back in line"
    elif outcome == "cancelled":
        outcome = "stopped" if by_us else outcome
        words = "" if by_us else "somebody cancelled it in Slurm"
    elif outcome == "failed" and not words:
        words = f"killed by signal {signal}" if signal else f"exit status {code}"
    start = None if not row.start or not row.nodes else known.clock.us(row.start)
    end = known.clock.us(row.end or row.submit)
    at = from_us(end if start is None else max(start, end))
    return SeenAttempt(
        uid=uid,
        state="ended",
        nodes=row.nodes,
        started_at=None if start is None else from_us(start),
        ended_at=at,
        outcome=outcome,
        detail=words,
        checkpoint_at=at if code == CHECKPOINTED else None,
        cluster_ref=ref_of(known, row),
    )
