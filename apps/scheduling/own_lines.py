"""A waiting job as its cluster's own scheduler sees it, beside what Rollcall makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.backends.lines import Place, line_look_of, places_of
from apps.jobs.models import Attempt, Job
from apps.jobs.states import WAITING, JobState
from apps.scheduling.selectors import TERM_NAMES

# What only the cluster counts: shown where it comes to something.
THEIRS_ALONE = ("job_size", "association", "site")


@dataclass(frozen=True, slots=True)
class TermBeside:
    """One term of both sides; ``ours`` None: it is not counted or not known here."""

    name: str
    ours: float | None
    theirs: float

    @property
    def difference(self) -> float | None:
        """Return ours less theirs."""
        return None if self.ours is None else self.ours - self.theirs


@dataclass(frozen=True, slots=True)
class OnCluster:
    """What a cluster says of a job that waits there, as of ``read_at`` (None: it was never read).

    ``trouble``: why it could not be asked since; ``no_terms``: why there is no priority of it.
    """

    read_at: datetime | None
    trouble: str
    no_terms: str
    priority: TermBeside | None
    terms: tuple[TermBeside, ...]
    planned_at: datetime | None
    planned_nodes: str


def ref_of(job: Job) -> str:
    """Return what its cluster calls a job that waits there; empty: it does not wait there."""
    if job.foreign_ref:
        return job.foreign_ref if job.state in WAITING else ""
    if job.state != JobState.ADMITTED:
        return ""
    sent = Attempt.objects.filter(job=job, ended_at__isnull=True, started_at__isnull=True)
    return sent.values_list("cluster_ref", flat=True).first() or ""


def on_cluster(
    job: Job, terms: Iterable[Mapping[str, Any]], priority: float | None
) -> OnCluster | None:
    """Return what a job's cluster has of it beside our terms; None: it tells nothing of its line.

    ``terms`` are those of ``explain``, ``priority`` their sum, None where this side has none. Three
    queries at most.
    """
    ref = ref_of(job)
    look = line_look_of(job.cluster_id) if ref else None
    if look is None:
        return None
    place = places_of(look, [ref]).get(ref, Place())
    theirs = place.terms
    no_terms = ""
    if look.read_at is not None and not theirs:
        no_terms = look.no_terms or _why_none(job, look.read_at)
    ours = {str(row["name"]): float(row["value"]) for row in terms}
    rows = [TermBeside(name, ours.get(name), theirs.get(name, 0.0)) for name in TERM_NAMES]
    rows += [TermBeside(name, None, theirs[name]) for name in THEIRS_ALONE if theirs.get(name)]
    return OnCluster(
        read_at=look.read_at,
        trouble=look.trouble,
        no_terms=no_terms,
        priority=TermBeside("priority", priority, theirs["priority"]) if theirs else None,
        terms=tuple(rows) if theirs else (),
        planned_at=place.planned_at,
        planned_nodes=place.planned_nodes,
    )


def _why_none(job: Job, read_at: datetime) -> str:
    """Say why a cluster that tells priorities told none of a job."""
    if job.submitted_at >= read_at:
        return "It was submitted after that; the next look is within a minute."
    if job.held_at is not None:
        return f"{job.cluster} gives it no priority while it is on hold there."
    return f"{job.cluster} told no priority of it then."
