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

MORE = ("UID", "ExitCode")


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
        "sacct", "-X", "-D", "-n", "-P", "-a", "-j", ",".join(ids), "-o", ",".join((*COLUMNS, *MORE)),
    ]  # fmt: skip
    asked = set(foreign)
    works: dict[str, ForeignWork] = {}
    attempts: dict[str, SeenAttempt] = {}
    for row, by_itself, status in _ended(told(runner, command, patience)):
        ref = ref_of(known, row)
        if ref in own:
            attempts[ref] = _attempt(row, own[ref], known, status, by_itself=by_itself)
        elif ref in asked:
            work = work_of(row, known, partition)
            if isinstance(work, ForeignWork):
                works[ref] = work
    return Recalled(list(works.values()), list(attempts.values()))


def _ended(text: str) -> Iterator[tuple[PastRow, bool, tuple[int, int]]]:
    """Yield each run that is over, whether its own user cancelled it, and its exit code and signal."""
    for line in text.splitlines():
        if not line.strip():
            continue
        rest, user, code = [*line.rsplit("|", 2), "", ""][:3]
        (row,) = rows_in(rest)
        status, _, signal = code.partition(":")
        if row.is_over and status.isdigit() and signal.isdigit():
            state = rest.split("|")[COLUMNS.index("State")]
            yield row, state == f"CANCELLED by {user}", (int(status), int(signal))


def _attempt(
    row: PastRow, uid: str, known: Ground, status: tuple[int, int], *, by_itself: bool
) -> SeenAttempt:
    """Return an attempt of ours; its comment, which says what was asked of it, is not in sacct."""
    code, signal = status
    outcome, words = OUTCOMES.get(row.state, "failed"), WORDS.get(row.state, "")
    if code == CHECKPOINTED:
        outcome, words = "stopped", "exited 75: it saved its work"
    elif row.state == "REQUEUED":
        outcome, words = "lost", "Slurm laid it back in line"
    elif outcome == "cancelled":
        # Nobody but Rollcall is its service user.
        outcome = "stopped" if by_itself else outcome
        words = "" if by_itself else "somebody cancelled it in Slurm"
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
