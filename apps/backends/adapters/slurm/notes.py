"""A note of what Rollcall promises an account, at the end of its Description: Slurm has no field for it.

It reads ``[rollcall guarantee gres/gpu:h100=12 on CLUSTER]``, as slurmdbd may keep the accounts of
several clusters and an account has one description for all. What else stands there stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from apps.backends.port import BackendError

GPUS = "gres/gpu"
UNTYPED = "gpu"  # the pool of GPUs without a type
PART = re.compile(rf"{GPUS}(?::([^,=:]+))?=(\d+)")
# Of a description sacctmgr makes something else of these, so that the rest would not stay as it is.
CHANGED = "'\"\ufffd"
TYPE = re.compile(r"[^\s,=:|'\"\[\]]+")


def _notes_of(cluster: str) -> re.Pattern[str]:
    return re.compile(
        rf" ?\[rollcall guarantee ([^\[\]]*) on {re.escape(cluster)}\]", re.IGNORECASE
    )


def noted(description: str, cluster: str) -> dict[str, int]:
    """Return what a description says is promised on a cluster, by pool in lower case."""
    found: dict[str, int] = {}
    for note in _notes_of(cluster).finditer(description):
        for part in note[1].split(","):
            if match := PART.fullmatch(part.strip()):
                found[(match[1] or UNTYPED).lower()] = int(match[2])
    return found


def with_note(description: str, cluster: str, guarantees: Mapping[str, int]) -> str:
    """Return a description with what is promised in some pools changed in its note; 0 leaves it out.

    :raises BackendError: if it cannot be written without changing what else stands there.
    """
    rest = _notes_of(cluster).sub("", description)
    if bad := [one for one in rest if one in CHANGED or not one.isprintable()]:
        raise BackendError(
            f"The description of the account has {bad[0]!r} in it, which sacctmgr would change; the"
            " guarantee can only be noted by hand.",
            retry=False,
        )
    known = noted(description, cluster)
    known |= {pool.lower(): count for pool, count in guarantees.items()}
    parts = [f"{_spelled(pool)}={known[pool]}" for pool in sorted(known) if known[pool]]
    if not parts:
        return rest
    note = f"[rollcall guarantee {','.join(parts)} on {cluster}]"
    return f"{rest} {note}" if rest else note


def _spelled(pool: str) -> str:
    """Return a pool as Slurm calls its GPUs."""
    if not TYPE.fullmatch(pool):
        raise BackendError(f"A note cannot spell the pool {pool[:60]!r}.", retry=False)
    return GPUS if pool == UNTYPED else f"{GPUS}:{pool}"
