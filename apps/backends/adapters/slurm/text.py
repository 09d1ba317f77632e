"""Reads what Slurm's commands print; nothing here knows of Rollcall's own jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from apps.backends.port import BackendError

MOST_NODES = 65_536
FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z/:_]*)=")
# 24.11 counts those of a task by an equals sign.
GRES = re.compile(r"(?:gres[:/])?gpu(?::([^:=(),]+))?[:=](\d+)(?:\([^)]*\))?")
REASON = re.compile(r" Reason=(.*?)(?: \[([^\[\]@]*)@(\d+)\])?(?: Comment=.*)?$")
CONFIG = re.compile(r"^(\S+)\s*= (.*?)\s*$", re.MULTILINE)

SDIAG_AT = re.compile(r"^sdiag output at .*\((\d+)\)$", re.MULTILINE)
SDIAG_SINCE = re.compile(r"^Data since .*\((\d+)\)$", re.MULTILINE)
SDIAG_USERS = "Remote Procedure Call statistics by user"

LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")

# Where Slurm keeps its accounts in a database (AccountingStorageType).
SLURMDBD = "accounting_storage/slurmdbd"

WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
DRAINED = ("DRAIN", "FAIL", "MAINT", "RESERVED")
DOWN = (
    "DOWN", "NOT_RESPONDING", "UNKNOWN", "INVAL", "ERROR", "POWERED_DOWN", "POWERING_DOWN",
    "POWERING_UP", "REBOOT", "FUTURE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeText:
    """A node as ``scontrol show node`` tells it: GPUs there are and are used, by type."""

    name: str
    partitions: tuple[str, ...]
    gpus: dict[str, int]
    used: dict[str, int]
    state: str
    reason: str
    since: int | None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A line of ``squeue``; instants in seconds, ``nodes`` empty before the start.

    ``label`` is the id as people know it, of an array ``7_3``, or ``7_[4-9]`` of all that waits.
    ``priority`` is 0 of what is on hold; ``nice`` was taken off it. GPUs are asked for each node,
    each of ``ntasks`` or in all, and come with all of their nodes if ``exclusive``. ``alloc`` is what
    it was given in all, where Slurm's accounts count GPUs; ``laid`` are those on each of ``nodes``, of
    the type ``kind``, as far as they are known.
    """

    id: int
    label: str
    state: str
    partition: str
    account: str
    per_node: str
    count: int
    nodes: tuple[str, ...]
    start: int | None
    submit: int
    end: int | None
    limit: int | None
    user: str
    reason: str
    priority: int = 0
    nice: int = 0
    per_job: str = ""
    per_task: str = ""
    ntasks: int = 0
    qos: str = ""
    exclusive: bool = False
    alloc: str = ""
    kind: str = ""
    laid: tuple[int, ...] = ()


def split_list(text: str) -> Iterator[str]:
    """Yield the parts of a list at its commas; those within brackets are no ends."""
    depth, part = 0, ""
    for letter in text:
        if letter == "," and depth == 0:
            if part:
                yield part
            part = ""
            continue
        depth += (letter == "[") - (letter == "]")
        part += letter
    if depth:
        raise BackendError(f"Slurm gave a list of nodes that has no end: {text[:80]}.", retry=False)
    if part:
        yield part


def _ranges(inside: str) -> Iterator[str]:
    for one in inside.split(","):
        low, _, high = one.partition("-")
        if not low.isdigit() or not (high or low).isdigit():
            raise BackendError(
                f"Slurm gave a range of nodes that is none: {one[:40]}.", retry=False
            )
        if int(high or low) - int(low) >= MOST_NODES:
            raise BackendError(f"Slurm gave a range of too many nodes: {one[:40]}.", retry=False)
        for number in range(int(low), int(high or low) + 1):
            yield str(number).zfill(len(low))


def _expand_one(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, after = rest.partition("]")
    tails = list(_expand_one(after)) if after else [""]
    for number in _ranges(inside):
        for tail in tails:
            yield f"{before}{number}{tail}"


def expand(nodes: str) -> tuple[str, ...]:
    """Return the names in a list of nodes, as ``gpu[1-4,07-09],login1``."""
    if nodes in ("", "(null)", "None", "N/A"):
        return ()
    found: list[str] = []
    for part in split_list(nodes):
        for name in _expand_one(part):
            found.append(name)
            if len(found) > MOST_NODES:
                raise BackendError("Slurm gave a list of too many nodes.", retry=False)
    return tuple(found)


def gpus_in(gres: str) -> dict[str, int]:
    """Return the GPUs in a GRES string, by type; those without a type are called ``gpu``."""
    found: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", gres):
        match = GRES.fullmatch(part.strip())
        if match:
            name = match[1] or "gpu"
            found[name] = found.get(name, 0) + int(match[2])
    return found


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line of ``scontrol -o``; the first of a name counts."""
    parts = FIELD.split(line.strip())
    found: dict[str, str] = {}
    for name, value in zip(parts[1::2], parts[2::2], strict=False):
        found.setdefault(name, value.strip())
    return found


def config_of(text: str) -> dict[str, str]:
    """Return the settings that ``scontrol show config`` printed; ``as_of``: when it did."""
    found = dict(CONFIG.findall(text))
    stamp = re.search(r"^Configuration data as of (\d+)", text, re.MULTILINE)
    if stamp is None or "BOOT_TIME" not in found:
        raise BackendError("Slurm's answer has no configuration in it.", retry=True)
    return {name: str(value) for name, value in found.items()} | {"as_of": stamp[1]}


def state_of(words: str) -> str:
    """Return up, drained or down for a node's state as Slurm spells it, as ``IDLE+DRAIN``."""
    flags = {re.sub(r"[^A-Z_]", "", flag) for flag in words.split("+")}
    if "*" in words or flags & set(DOWN):
        return "down"
    return "drained" if flags & set(DRAINED) else "up"


def node_of(line: str) -> NodeText:
    """Return the node of a line of ``scontrol -d -o show node``."""
    fields = fields_of(line)
    reason = REASON.search(line)
    words = fields["State"]
    said = reason[1] if reason else ""
    state = state_of(words)
    if "*" in words:
        said = said or "does not respond"
    return NodeText(
        name=fields["NodeName"],
        partitions=tuple(fields.get("Partitions", "").split(",")),
        gpus=gpus_in(fields.get("Gres", "")),
        used=gpus_in(fields.get("GresUsed", "")),
        state=state,
        reason="" if state == "up" else said or words.lower(),
        since=int(reason[3]) if reason and reason[3] and state != "up" else None,
    )


def nodes_in(text: str) -> list[NodeText]:
    """Return the nodes that ``scontrol -d -o show node`` printed."""
    return [node_of(line) for line in text.splitlines() if line.startswith("NodeName=")]


def instant(text: str) -> int | None:
    """Return an instant in seconds; None for one that is not."""
    return int(text) if text.isdigit() else None


def signed(text: str) -> int:
    """Return a whole number that may be below 0; 0 for what is none."""
    return int(text) if text.removeprefix("-").isdigit() else 0


# No column of these is written by a user, so that no name or comment can pass for a line.
COLUMNS = (
    "JobID", "JobArrayID", "State", "Partition", "Account", "tres-per-node", "NumNodes", "NodeList",
    "StartTime", "SubmitTime", "EndTime", "TimeLimit", "UserName", "Reason", "PriorityLong", "Nice",
    "tres-per-job", "tres-per-task", "NumTasks", "QOS", "OverSubscribe", "tres-alloc",
)  # fmt: skip
EVERY = ",".join(f"{name}:|" for name in COLUMNS)
ABSENT = ("N/A", "(null)", "None")


def seconds_of(limit: str) -> int | None:
    """Return a limit like ``2-06:30:00`` in seconds; None: there is none."""
    match = LIMIT.fullmatch(limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def tasks_of(label: str) -> int:
    """Return how many tasks of an array wait behind a label like ``7_[1-3,9%2]``; else 1."""
    inside = label.partition("[")[2].partition("]")[0].partition("%")[0]
    tasks = 0
    for one in inside.split(",") if inside else ():
        match = TASKS.fullmatch(one)
        if match is None:  # squeue cuts a long list short
            continue
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        tasks += max(high - low, 0) // max(step, 1) + 1
    return max(tasks, 1)


def rows_in(text: str) -> list[JobRow]:
    """Return the jobs that ``squeue -O`` EVERY printed."""
    return list(_rows(text.splitlines()))


def _rows(lines: Iterable[str]) -> Iterator[JobRow]:
    for line in lines:
        if not line.strip():
            continue
        parts = line.split("|")
        if len(parts) != len(COLUMNS) + 1 or not parts[0].isdigit():
            raise BackendError(
                f"Slurm listed a job in a way not understood: {line[:80]}.", retry=True
            )
        waiting = parts[2] in WAITING
        yield JobRow(
            id=int(parts[0]),
            label=parts[1],
            state=parts[2],
            partition=parts[3],
            account=_said(parts[4]),
            per_node=_said(parts[5]),
            count=int(parts[6]) if parts[6].isdigit() else 1,
            nodes=expand(parts[7]),
            start=None if waiting else instant(parts[8]),
            submit=int(parts[9]),
            end=instant(parts[10]),
            limit=seconds_of(parts[11]),
            user=parts[12],
            reason=_said(parts[13]),
            priority=int(parts[14]) if parts[14].isdigit() else 0,
            nice=signed(parts[15]),
            per_job=_said(parts[16]),
            per_task=_said(parts[17]),
            ntasks=int(parts[18]) if _said(parts[17]) and parts[18].isdigit() else 0,
            qos=_said(parts[19]),
            exclusive=parts[20] == "NO",
            # Of what has no nodes it is what was asked for.
            alloc=_said(parts[21]) if parts[7] else "",
        )


def _said(text: str) -> str:
    """Return a column; what Slurm writes where there is none is empty."""
    return "" if text in ABSENT else text


@dataclass(frozen=True, slots=True)
class Work:
    """What slurmctld did for one user over some seconds, in requests and microseconds."""

    seconds: int
    requests: int
    microseconds: int


def work_for(text: str, user: str) -> Work | None:
    """Return what ``sdiag`` counts for a user; None: it tells nothing of them."""
    at, since = SDIAG_AT.search(text), SDIAG_SINCE.search(text)
    row = rf"^\s+{re.escape(user)}\s+\(\s*\d+\) count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)"
    counted = re.search(row, text.partition(SDIAG_USERS)[2], re.MULTILINE)
    if at is None or since is None or counted is None:
        return None
    return Work(max(1, int(at[1]) - int(since[1])), int(counted[1]), int(counted[2]))
