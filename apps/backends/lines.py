"""What a cluster's own scheduler has of the jobs that wait there: asked once a minute, kept, shown."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from django.db.models import Q
from django.db.models.fields.json import KeyTransform

from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, LineLook
from apps.backends.port import BackendError, OwnLine, OwnPlace, TellsLine
from apps.common.errors import Invalid
from apps.common.time import from_us, to_us

logger = logging.getLogger(__name__)

# Two that are sent at once ask once.
APART = timedelta(seconds=30)
# Of more the first are kept, in the cluster's own order: a row of the database has an end.
MOST_PLACES = 20_000
LONGEST = 500
# A database reads all of it for each key.
FEW = 4


@dataclass(frozen=True, slots=True)
class Place:
    """What is kept of a job; ``terms`` empty: the cluster gives it no priority."""

    terms: Mapping[str, float] = field(default_factory=dict)
    planned_at: datetime | None = None
    planned_nodes: str = ""


def look_at_line(cluster: Cluster, *, now: datetime) -> bool:
    """Ask a cluster for its own line and keep it; return whether this call did.

    What fails stands on the look in words; what was read before it stays, with its instant.
    ``now`` is wall time.
    """
    try:
        backend = backend_of(cluster)
    except Invalid:
        return False  # its ticks say so
    able = backend.capabilities()
    why = able.cannot.get("line", "")
    if "line" not in able.can and not why:
        return False
    look, _ = LineLook.objects.get_or_create(cluster=cluster)
    rows = LineLook.objects.filter(pk=look.pk)
    free = Q(tried_at__isnull=True) | Q(tried_at__lte=now - APART)
    if not rows.filter(free).update(tried_at=now):
        return False
    if why:
        rows.update(trouble=why, read_at=None, places={}, no_terms="")
        return False
    try:
        line = cast(TellsLine, backend).line(now=now)
    except BackendError as error:
        rows.update(trouble=error.message)
        logger.warning("line of cluster %s: %s", cluster.name, error.message)
        return False
    rows.update(trouble="", read_at=now, no_terms=line.no_terms, places=_kept(line))
    return True


def _kept(line: OwnLine) -> dict[str, dict[str, Any]]:
    told = [place for place in line.places if place.terms or place.planned_at is not None]
    told.sort(key=lambda place: (-place.terms.get("priority", 0.0), place.ref))
    return {place.ref: _entry(place) for place in told[:MOST_PLACES]}


def _entry(place: OwnPlace) -> dict[str, Any]:
    entry: dict[str, Any] = {"terms": {k: v for k, v in place.terms.items() if v}}
    if place.terms:
        entry["terms"]["priority"] = place.terms["priority"]
    if place.planned_at is not None:
        entry["starts_us"] = to_us(place.planned_at)
        entry["nodes"] = place.planned_nodes[:LONGEST]
    return entry


def places_of(look: LineLook, refs: Iterable[str]) -> dict[str, Place]:
    """Return what was told of jobs, by ref; one query, which for few jobs reads no other's."""
    names = list(refs)
    if len(names) > FEW:
        every = LineLook.objects.values_list("places", flat=True).filter(pk=look.pk).first() or {}
        return {ref: _place(every[ref]) for ref in names if ref in every}
    if not names:
        return {}
    keys = [KeyTransform(ref, "places") for ref in names]
    told = LineLook.objects.filter(pk=look.pk).values_list(*keys).first() or ()
    return {ref: _place(entry) for ref, entry in zip(names, told, strict=False) if entry}


def _place(entry: Mapping[str, Any]) -> Place:
    at = entry.get("starts_us")
    return Place(
        terms=entry["terms"],
        planned_at=None if at is None else from_us(at),
        planned_nodes=entry.get("nodes", ""),
    )


def looks_at_lines(clusters: Iterable[Cluster]) -> list[LineLook]:
    """Return the newest looks at the lines of clusters that told anything, without what they told."""
    rows = LineLook.objects.filter(cluster__in=list(clusters), read_at__isnull=False)
    return list(rows.defer("places").order_by("cluster_id"))


def line_look_of(cluster_id: int) -> LineLook | None:
    """Return the newest look at a cluster's line without what it told; None: there was none."""
    return LineLook.objects.filter(cluster=cluster_id).defer("places").first()
