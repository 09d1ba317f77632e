"""Reads slurmrestd's JSON, old shape and new, into the records that the commands' text gives.

A state was a word and is a list of words; a number was a number or null, and is an object that says
whether it is set and whether it is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.backends.adapters.slurm.marks import mark_of
from apps.backends.adapters.slurm.own import ACTIVE, Detail, OwnJob, mark_by_row, with_mark
from apps.backends.adapters.slurm.text import (
    WAITING,
    JobRow,
    NodeText,
    expand,
    gpus_in,
    state_of,
)
from apps.backends.port import BackendError

Json = Mapping[str, Any]
NO_VALUE = 4_294_967_294  # and one more: infinite
MINUTE = 60
HALF, WHOLE = 2**31, 2**32
# Beside its state a job has flags; the first of these is what Slurm's commands call it.
FLAGS = (
    "COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "REVOKED", "RECONFIG_FAIL", "POWER_UP_NODE",
    "SIGNALING",
)  # fmt: skip


def number(value: object) -> int | None:
    """Return a number; None: there is none, or it is infinite."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < NO_VALUE else None


def instant(value: object) -> int | None:
    """Return an instant in seconds; 0 is none."""
    return number(value) or None


def words(value: object) -> list[str]:
    """Return the words of a state or a list, however it is told."""
    if isinstance(value, str):
        return [word for word in value.split(",") if word]
    return [str(word) for word in value] if isinstance(value, list) else []


def text(value: object) -> str:
    """Return a text; what is null is empty."""
    return "" if value is None else str(value)


def listed(answer: Json, name: str) -> list[Json]:
    """Return the records that an answer lists.

    :raises BackendError: if it lists none at all, not even an empty list.
    """
    found = answer.get(name)
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise BackendError(f"slurmrestd's answer lists no {name}.", retry=True)
    return found


def job_state(value: object) -> str:
    """Return the state of a job as the commands call it."""
    told = words(value)
    for flag in FLAGS:
        if flag in told:
            return flag
    return told[0] if told else ""


def node_of(node: Json) -> NodeText:
    """Return a node as slurmrestd tells it."""
    states = "+".join([*words(node.get("state")), *words(node.get("state_flags"))]).upper()
    state, said = state_of(states), text(node.get("reason"))
    if "NOT_RESPONDING" in states:
        said = said or "does not respond"
    return NodeText(
        name=text(node.get("name")),
        partitions=tuple(words(node.get("partitions"))) or ("",),
        gpus=gpus_in(text(node.get("gres"))),
        used=gpus_in(text(node.get("gres_used"))),
        state=state,
        reason="" if state == "up" else said or states.lower(),
        since=instant(node.get("reason_changed_at")) if state != "up" else None,
    )


def _label(job: Json, id: int) -> str:
    array, inside = number(job.get("array_job_id")), text(job.get("array_task_string"))
    if array and inside:
        return f"{array}_[{inside}]"
    task = number(job.get("array_task_id"))
    if array and task is not None:
        return f"{array}_{task}"
    het = number(job.get("het_job_id"))
    return f"{het}+{number(job.get('het_job_offset')) or 0}" if het else str(id)


def _reason(job: Json) -> str:
    said = text(job.get("state_description")) or text(job.get("state_reason"))
    return "" if said == "None" else said


def _nice(value: object) -> int:
    """Return a nice value; 22.05 tells one below 0 as what is left of 32 bits."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") else None
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value - WHOLE if value >= HALF else value


def _id(job: Json) -> int:
    found = number(job.get("job_id"))
    if found is None:
        raise BackendError("slurmrestd listed a job without an id.", retry=True)
    return found


def _laid(job: Json, nodes: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the type of a running job's GPUs and how many it has on each node, if that is told."""
    told = job.get("gres_detail")
    each = [gpus_in(text(one)) for one in told] if isinstance(told, list) else []
    kinds = {kind for gpus in each for kind in gpus}
    if len(kinds) != 1 or len(each) != len(nodes) or not all(each):
        return "", ()
    (kind,) = kinds
    return kind, tuple(gpus[kind] for gpus in each)


def row_of(job: Json) -> JobRow:
    """Return a job as the commands list everybody's."""
    state, limit = job_state(job.get("job_state")), number(job.get("time_limit"))
    endless = limit is None and state in ACTIVE
    nodes = expand(text(job.get("nodes")))
    kind, laid = _laid(job, nodes) if state in ACTIVE else ("", ())
    return JobRow(
        id=_id(job),
        label=_label(job, _id(job)),
        state=state,
        partition=text(job.get("partition")),
        account=text(job.get("account")),
        per_node=text(job.get("tres_per_node")),
        count=number(job.get("node_count")) or 1,
        nodes=nodes,
        start=None if state in WAITING else instant(job.get("start_time")),
        submit=number(job.get("submit_time")) or 0,
        end=None if endless else instant(job.get("end_time")),
        limit=None if limit is None else limit * MINUTE,
        user=text(job.get("user_name")) or text(job.get("user_id")),
        reason=_reason(job),
        priority=number(job.get("priority")) or 0,
        nice=_nice(job.get("nice")),
        per_job=text(job.get("tres_per_job")),
        per_task=text(job.get("tres_per_task")),
        ntasks=(number(job.get("tasks")) or 0) if text(job.get("tres_per_task")) else 0,
        qos=text(job.get("qos")),
        exclusive=words(job.get("shared")) == ["none"],
        alloc=text(job.get("tres_alloc_str")) if nodes else "",
        kind=kind,
        laid=laid,
    )


def own_of(job: Json, cluster: str, owner: str) -> OwnJob | None:
    """Return a job of ours; None: it is not, by its comment. ``owner`` empty: the service user's."""
    row, name = row_of(job), text(job.get("name"))
    mark = mark_of(text(job.get("comment")), owner)
    if mark is None and not owner:
        mark = mark_by_row(row, name, cluster)
    if mark is None or mark.cluster != cluster:
        return None
    return with_mark(row, mark, name, expand(",".join(words(job.get("required_nodes")))))


def detail_of(job: Json) -> Detail:
    """Return how a job ended: its exit code was a wait status and is an object."""
    told, restarts = job.get("exit_code"), number(job.get("restart_cnt")) or 0
    if isinstance(told, Mapping) and "return_code" in told:
        signal = told.get("signal")
        inner = signal if isinstance(signal, Mapping) else {}
        return Detail(
            restarts=restarts,
            exit_code=number(told.get("return_code")) or 0,
            exit_signal=number(inner.get("id", inner.get("signal_id"))) or 0,
        )
    status = number(told) or 0
    return Detail(restarts=restarts, exit_code=status >> 8 & 0xFF, exit_signal=status & 0x7F)
