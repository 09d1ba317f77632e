"""What a job runs on a Slurm cluster, checked at the door field by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from apps.common.errors import Invalid

LONGEST_SCRIPT = 256 * 1024
SIGNALS = ("USR1", "USR2", "TERM", "HUP", "INT")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _refuse(key: str, message: str) -> Invalid:
    return Invalid(f"workload.{key} {message}", field=f"workload.{key}")


def _kind(key: str, value: object) -> str:
    if value != "slurm":
        raise _refuse(key, f"must be 'slurm' on a Slurm cluster, not {value!r}.")
    return "slurm"


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _refuse(key, f"must be text, not {value!r}.")
    if "\0" in value:
        raise _refuse(key, "must not hold a NUL.")
    return value


def _script(key: str, value: object) -> str | None:
    if value is None:
        return None
    script = _text(key, value)
    if len(script.encode()) > LONGEST_SCRIPT:
        raise _refuse(key, f"must be at most {LONGEST_SCRIPT // 1024} KiB; copy the rest there.")
    if not script.startswith("#!"):
        raise _refuse(key, "must start with #! and the program that runs it.")
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith("#SBATCH"):
            raise _refuse(
                key,
                f"has an #SBATCH line (line {number}); what is asked of Slurm comes from the job's"
                " own fields.",
            )
    return script


def _command(key: str, value: object) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise _refuse(key, "must be a list of a program and its arguments.")
    return [_text(key, word) for word in value]


def _signal(key: str, value: object) -> str | None:
    if value is not None and value not in SIGNALS:
        raise _refuse(key, f"must be one of {', '.join(SIGNALS)}, or null, not {value!r}.")
    return None if value is None else str(value)


def _within(low: int, high: int) -> Callable[[str, object], int]:
    def read(key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refuse(key, f"must be a whole number, not {value!r}.")
        if not low <= value <= high:
            raise _refuse(key, f"must be from {low:,} to {high:,}.")
        return value

    return read


def _memory(key: str, value: object) -> int | None:
    return None if value is None else _within(1, 100_000_000)(key, value)


def _environment(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _refuse(key, "must be an object of names and texts.")
    read = {}
    for name, text in value.items():
        if not isinstance(name, str) or not VARIABLE.fullmatch(name):
            raise _refuse(key, f"has a name that no variable may have: {str(name)[:40]!r}.")
        if name.startswith(("SLURM_", "SBATCH_", "ROLLCALL_")):
            raise _refuse(key, f"must not set {name[:40]}.")
        read[name] = _text(f"{key}.{name}", text)
    return read


def _path(key: str, value: object) -> str | None:
    if value is None:
        return None
    path = _text(key, value)
    if not path.isprintable() or not PurePosixPath(path).is_absolute():
        raise _refuse(key, "must be a whole path that starts with /.")
    return path


# Each key: what it defaults to, and what reads it.
KEYS: dict[str, tuple[Any, Callable[[str, object], Any]]] = {
    "kind": ("slurm", _kind),
    "script": (None, _script),
    "command": (None, _command),
    "checkpoint_signal": (None, _signal),
    "cpus_per_member": (1, _within(1, 4_096)),
    "memory_mib_per_member": (None, _memory),
    "environment": ({}, _environment),
    "directory": (None, _path),
    "output": (None, _path),
}


def check(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload with its defaults filled in.

    ``script`` is a batch script that runs once, on the first node; ``command`` runs once a member.
    ``checkpoint_signal`` None: it cannot save its work, and is stopped at the end of its grace.

    :raises Invalid: naming ``workload.<key>``.
    """
    if not isinstance(workload, Mapping):
        raise Invalid("workload must be an object.", field="workload")
    unknown = sorted(str(key) for key in workload if key not in KEYS)
    if unknown:
        raise _refuse(unknown[0][:80], f"is not known; there are {', '.join(KEYS)}.")
    checked = {
        key: read(key, workload[key]) if key in workload else default
        for key, (default, read) in KEYS.items()
    }
    if checked["script"] is None and checked["command"] is None:
        raise _refuse("script", "or workload.command must say what the job runs.")
    if checked["script"] is not None and checked["command"] is not None:
        raise _refuse("command", "must not stand beside workload.script.")
    if checked["script"] is not None and checked["environment"]:
        raise _refuse("environment", "goes with a command; a script exports its own variables.")
    return checked
