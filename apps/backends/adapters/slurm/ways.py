"""What each way into Slurm offers, so that all above it is one code: by commands, or by REST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from apps.backends.adapters.slurm.marks import Mark
from apps.backends.adapters.slurm.own import Detail, OwnJob
from apps.backends.adapters.slurm.text import JobRow, NodeText
from apps.backends.port import LaunchRequest


class Refused(Exception):
    """Slurm said no to what was asked; the message is Slurm's own words."""


class Denied(Refused):
    """Slurm said no because of who asked."""


@dataclass(frozen=True, slots=True)
class Records:
    """What Slurm said when it was asked once; instants in seconds of its clock.

    ``own`` are the jobs with our mark, ``details`` those of them that do not run, by id.
    """

    booted: int
    as_of: int
    nodes: list[NodeText]
    rows: list[JobRow]
    own: list[OwnJob]
    details: Mapping[int, Detail]


class Way(Protocol):
    """A way into Slurm; each call raises BackendError if nothing answered in time.

    A change of a job that is gone by now is success; one that Slurm will not do raises BackendError.
    ``slurm`` is what Slurm calls its cluster, once something told it.
    """

    slurm: str

    def records(self, cluster: str, known: frozenset[str]) -> Records:
        """Return what is there; ``known``: the ended jobs whose end need not be told again."""

    def submit(self, request: LaunchRequest, mark: Mark, nodes: list[str]) -> str:
        """Submit a gang and return its job's id.

        :raises Refused: if Slurm will not have it.
        """

    def submitted(self, number: str, name: str, cluster: str, owner: str) -> list[OwnJob]:
        """Return our jobs of this name; ``number`` is the id that one was given."""

    def cancel(self, job: OwnJob) -> None:
        """End a job: the one of this id *and* this name, for an id may be somebody else's by now."""

    def signal(self, job: OwnJob) -> None:
        """Send a running job the signal of its mark; as ``cancel``, by id and name."""

    def hold(self, job: OwnJob) -> None:
        """Put a job on hold; one that runs goes on."""

    def release(self, job: OwnJob) -> None:
        """Take a job off hold."""

    def renice(self, job: OwnJob, nice: int) -> None:
        """Change how far a job stands behind others."""

    def user(self) -> str:
        """Return as whom all of it is done there."""

    def renice_each(self, nice: Mapping[int, int]) -> None:
        """Change the nice of several jobs, anybody's, by id; of an array's id all tasks.

        :raises Denied: if some are not ours to change.
        :raises Refused: if some could not be changed otherwise; the rest is.
        """

    def remark(self, job: OwnJob, mark: Mark) -> None:
        """Write another mark into a job's comment."""
