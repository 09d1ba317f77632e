"""What a job runs on a Slurm cluster, checked at the door field by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from apps.backends.adapters.workloads import Keys, invalid, read_keys

LONGEST_SCRIPT = 256 * 1024
SIGNALS = ("USR1", "USR2", "TERM", "HUP", "INT")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _kind(key: str, value: object) -> str:
    if value != "slurm":
        raise invalid(key, f"must be 'slurm' on a Slurm cluster, not {value!r}.")
    return "slurm"


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise invalid(key, f"must be text, not {value!r}.")
    if "\0" in value:
        raise invalid(key, "must not hold a NUL.")
    return value


def _script(key: str, value: object) -> str | None:
    if value is None:
        return None
    script = _text(key, value)
    if len(script.encode()) > LONGEST_SCRIPT:
        raise invalid(key, f"must be at most {LONGEST_SCRIPT // 1024} KiB; copy the rest there.")
    if not script.startswith("#!"):
        raise invalid(key, "must start with #! and the program that runs it.")
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith("#SBATCH"):
            raise invalid(
                key,
                f"has an #SBATCH line (line {number}); what is asked of Slurm comes from the job's"
                " own fields.",
            )
    return script


def _command(key: str, value: object) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise invalid(key, "must be a list of a program and its arguments.")
    return [_text(key, word) for word in value]


def _signal(key: str, value: object) -> str | None:
    if value is not None and value not in SIGNALS:
        raise invalid(key, f"must be one of {', '.join(SIGNALS)}, or null, not {value!r}.")
    return None if value is None else str(value)


def _within(low: int, high: int) -> Callable[[str, object], int]:
    def read(key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(key, f"must be a whole number, not {value!r}.")
        if not low <= value <= high:
            raise invalid(key, f"must be from {low:,} to {high:,}.")
        return value

    return read


def _memory(key: str, value: object) -> int | None:
    return None if value is None else _within(1, 100_000_000)(key, value)


def _environment(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise invalid(key, "must be an object of names and texts.")
    read = {}
    for name, text in value.items():
        if not isinstance(name, str) or not VARIABLE.fullmatch(name):
            raise invalid(key, f"has a name that no variable may have: {str(name)[:40]!r}.")
        if name.startswith(("SLURM_", "SBATCH_", "ROLLCALL_")):
            raise invalid(key, f"must not set {name[:40]}.")
        read[name] = _text(f"{key}.{name}", text)
    return read


def _path(key: str, value: object) -> str | None:
    if value is None:
        return None
    path = _text(key, value)
    if not path.isprintable() or not PurePosixPath(path).is_absolute():
        raise invalid(key, "must be a whole path that starts with /.")
    return path


KEYS: Keys = {
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
    checked = read_keys(workload, KEYS)
    if checked["script"] is None and checked["command"] is None:
        raise invalid("script", "or workload.command must say what the job runs.")
    if checked["script"] is not None and checked["command"] is not None:
        raise invalid("command", "must not stand beside workload.script.")
    if checked["script"] is not None and checked["environment"]:
        raise invalid("environment", "goes with a command; a script exports its own variables.")
    return checked
