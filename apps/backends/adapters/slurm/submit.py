"""What sbatch is told to start a gang: its options, its script and its environment."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from apps.backends.adapters.slurm.marks import Mark, job_name
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.ways import Refused
from apps.backends.port import LaunchRequest

# One step over all members. bash runs a trap only between two commands, so the step is waited for;
# the first wait may have been ended by the signal.
COMMAND = """\
#!/bin/bash
asked=
{trap}{exports}srun --kill-on-bad-exit=1 --gpus-per-task={gpus} -- {command} &
step=$!
[ -z "$asked" ] || kill -{signal} "$step"
wait "$step"; code=$?
[ -z "$asked" ] || {{ wait "$step"; code=$?; }}
exit "$code"
"""
TRAP = """\
tell() {{ asked=1; trap '' {signal}; [ -z "${{step-}}" ] || kill -{signal} "$step"; }}
trap tell {signal}
"""


def shape_of(request: LaunchRequest) -> tuple[list[str], int]:
    """Return the planned nodes, and how many members each of them holds, 0: not as many on each."""
    counts = Counter(request.nodes)
    even = len(set(counts.values())) == 1
    return sorted(counts), counts[request.nodes[0]] if even else 0


def per_node(mark: Mark) -> str:
    """Return what a gang that lies evenly asks for on each of its nodes, as a GRES without a prefix."""
    return f"gpu:{mark.per_node}" if mark.pool == "gpu" else f"gpu:{mark.pool}:{mark.per_node}"


def memory_of(request: LaunchRequest, mark: Mark) -> tuple[int | None, int | None]:
    """Return the MiB a gang asks for a node, or a CPU where it lies unevenly; None: it does not."""
    memory = request.workload["memory_mib_per_member"]
    if memory is None:
        return None, None
    if mark.members:
        return memory * mark.members, None
    return None, -(-memory // request.workload["cpus_per_member"])


def per_task(request: LaunchRequest, mark: Mark) -> str:
    """Return what each task of a gang asks for that lies unevenly.

    Slurm then lays it out itself: it fills the planned nodes one after the other, and leaves a member
    for each that is to come. All of them are used, but perhaps not as planned: the next look shows.
    The type is named only where a node has several: with it, tasks of 22.05 that share a node do not
    see their GPUs.
    """
    gpus = request.gpus_per_member
    return f"{mark.pool}:{gpus}" if mark.typed and mark.pool != "gpu" else str(gpus)


def script_of(workload: Mapping[str, Any], gpus_per_member: int) -> str:
    """Return the batch script: the job's own, or one that runs its command in each member."""
    if workload["script"] is not None:
        return str(workload["script"])
    signal = workload["checkpoint_signal"]
    return COMMAND.format(
        trap=TRAP.format(signal=signal) if signal else "",
        exports="".join(
            f"export {name}={shlex.quote(text)}\n" for name, text in workload["environment"].items()
        ),
        gpus=gpus_per_member,
        command=shlex.join(workload["command"]),
        signal=signal or "TERM",
    )


def environment_of(request: LaunchRequest) -> dict[str, str]:
    """Return what the job finds in its environment beside Slurm's own variables.

    sbatch itself runs with it, so nothing that a user wrote may be in it: no LD_PRELOAD. What a
    command asks for is exported by its script.
    """
    return {
        "ROLLCALL_UID": request.uid,
        "ROLLCALL_ATTEMPT": str(request.number),
        "ROLLCALL_TENANT": request.tenant,
        "ROLLCALL_MEMBERS": str(len(request.nodes)),
        "ROLLCALL_KEPT_SECONDS": str(request.kept_seconds),
    }


def export_of(environment: Mapping[str, str]) -> str:
    """Return the option by which sbatch hands on an environment that sudo keeps from it.

    :raises Refused: if a value holds a comma: sbatch would read two of it.
    """
    for name, value in environment.items():
        if "," in value:
            raise Refused(f"{name} holds a comma: {value[:80]}")
    return "--export=" + ",".join(["ALL", *(f"{n}={v}" for n, v in environment.items())])


def account_of(options: Options, tenant: str) -> str:
    """Return the account of a tenant: its own, that of the nearest above it, or the common one."""
    path = tenant
    while path:
        if path in options.accounts:
            return options.accounts[path]
        path = path.rpartition("/")[0]
    return options.account


def arguments(request: LaunchRequest, options: Options, mark: Mark, nodes: list[str]) -> list[str]:
    """Return the options of sbatch: all members or none, on the planned nodes, never twice.

    ``singleton``: Slurm itself never runs two jobs of the same name and user at a time, should a
    submission that seemed to fail have arrived after all.
    """
    workload = request.workload
    directory = workload["directory"] or options.directory
    lie = [f"--ntasks-per-node={mark.members}", f"--gres={per_node(mark)}"]
    asked = [
        "--parsable", "--no-requeue", "--ignore-pbs", "--dependency=singleton",
        "--open-mode=append",
        f"--job-name={job_name(request.name, request.uid)}",
        f"--comment={mark.text()}",
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(request.nodes)}",
        *(lie if mark.members else [f"--gpus-per-task={per_task(request, mark)}"]),
        f"--cpus-per-task={workload['cpus_per_member']}",
        f"--chdir={directory}",
        f"--output={workload['output'] or options.output}",
    ]  # fmt: skip
    for name, memory in zip(("mem", "mem-per-cpu"), memory_of(request, mark), strict=True):
        if memory is not None:
            asked.append(f"--{name}={memory}M")
    if request.limit_seconds is not None:
        minutes, seconds = divmod(request.limit_seconds, 60)
        asked.append(f"--time={minutes}:{seconds:02}")
    for name, value in (
        ("partition", options.partition),
        ("account", account_of(options, request.tenant)),
        ("qos", options.qos),
    ):
        if value:
            asked.append(f"--{name}={value}")
    return asked
