"""Rollcall's own name on a Slurm job: what stands in its comment, and what its job is called.

Ids are given out again after a crash, so nothing is known by its id alone: a job is ours if the
service user owns it and its comment carries our cluster's name and an attempt's uid. The comment
also keeps what was asked of the job, so that a restart of Rollcall asks nothing twice.

Where a job runs as the one who submitted it, that user may write its comment: there it is signed for
that user, so that nobody's job passes for another's attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from django.core.signing import BadSignature, Signer

PREFIX = "rollcall"
PART = re.compile(r"([a-z]+)=(\S+)")
NAMED = re.compile(r"\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """What a comment says; instants in microseconds of Rollcall's clock, 0: never.

    Each node holds ``members`` of ``gpus`` GPUs; 0: they lie unevenly, ``size`` of them in all.
    ``left``: when it exited 75 and Slurm laid it back in line (RequeueExit), ``why``: Slurm's
    reason for not starting it. ``owner``: the user it runs as, empty: the service user. ``by_name``:
    somebody overwrote the comment, and the job is known by its name alone. ``typed``: it is submitted
    with the type of its GPUs, which its comment does not say.
    """

    cluster: str
    uid: str
    at: int
    members: int = 1
    gpus: int = 1
    pool: str = "gpu"
    signal: str = ""
    asked: int = 0
    stop: int = 0
    left: int = 0
    why: str = ""
    owner: str = ""
    by_name: bool = False
    size: int = 0
    typed: bool = field(default=True, compare=False)

    @property
    def per_node(self) -> int:
        """Return the GPUs it holds on each of its nodes, 0: not the same on each."""
        return self.members * self.gpus

    def text(self) -> str:
        """Return the comment."""
        parts = [f"{PREFIX}:{self.cluster}:{self.uid}", f"at={self.at}"]
        parts.append(f"shape={self.members}x{self.gpus}")
        for name in ("size", "pool", "signal", "asked", "stop", "left", "why"):
            value = getattr(self, name)
            if value:
                parts.append(f"{name}={value}")
        text = " ".join(parts)
        return _signer(self.owner).sign(text) if self.owner else text

    def stopped(self, at: int, why: str = "") -> Mark:
        """Return it as it stands once it is to be cancelled."""
        return replace(self, stop=at, why=UNSAFE.sub("_", why)[:60])


def _signer(owner: str) -> Signer:
    return Signer(sep=" sig=", salt=f"rollcall.slurm.mark.{owner}")


def mark_of(comment: str, owner: str = "") -> Mark | None:
    """Return what a comment says; None: it is no comment of Rollcall's.

    ``owner``: the job's, if not the service user; then it must be signed for them.
    """
    if owner:
        try:
            comment = _signer(owner).unsign(comment.strip())
        except BadSignature:
            return None
    name, _, rest = comment.strip().partition(" ")
    parts = name.split(":")
    if len(parts) != 3 or parts[0] != PREFIX:
        return None
    said = dict(PART.findall(rest))
    members, _, gpus = said.get("shape", "1x1").partition("x")
    try:
        return Mark(
            cluster=parts[1],
            uid=str(UUID(parts[2])),
            at=int(said.get("at", "0")),
            members=int(members),
            gpus=int(gpus),
            pool=said.get("pool", "gpu"),
            signal=said.get("signal", ""),
            asked=int(said.get("asked", "0")),
            stop=int(said.get("stop", "0")),
            left=int(said.get("left", "0")),
            why=said.get("why", ""),
            owner=owner,
            size=int(said.get("size", "0")),
        )
    except ValueError:
        return None


def mark_by_name(name: str, cluster: str, gpus: Mapping[str, int], size: int = 0) -> Mark | None:
    """Return what is left to know of a job of the service user's whose comment somebody overwrote.

    ``gpus``: what it holds on each node, by pool; or, where it lies unevenly, each of its ``size``
    members. None: by its name it is no attempt's.
    """
    found = NAMED.search(name)
    if found is None or found.end() != len(name) or len(gpus) != 1:
        return None
    ((pool, each),) = gpus.items()
    return Mark(
        cluster=cluster, uid=found[1], at=0, members=0 if size else 1, gpus=each, pool=pool,
        by_name=True, size=size,
    )  # fmt: skip


def job_name(name: str, uid: str) -> str:
    """Return what Slurm calls an attempt: readable, and nobody else's."""
    return f"{UNSAFE.sub('-', name).strip('-')[:24] or 'job'}.{uid}"
