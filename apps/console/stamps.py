"""As of when a page's facts are, and whether that is late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from apps.backends.models import Cluster
from apps.backends.pace import unhurried
from apps.common import show
from apps.scheduling.models import Tick

FRESH_TICKS = 3
LOST_AFTER = timedelta(seconds=180)
LOST_TICKS = 30


@dataclass(frozen=True, slots=True)
class Stamp:
    """The one stamp of a page; ``state`` is fresh, late, lost or none (nothing looked at yet)."""

    state: str
    at: datetime | None
    note: str = ""
    trouble: str = ""
    tick_id: int | None = None


RANKS = {"fresh": 0, "none": 1, "late": 2, "lost": 3}


def _silence(cluster: Cluster, wall: datetime) -> timedelta | None:
    """Return how long ago, in wall time, a cluster was last looked at; None: never.

    A virtual clock says nothing about that; the lease's own times are wall time.
    """
    if cluster.clock_now is None:
        return None if cluster.observed_at is None else wall - cluster.observed_at
    contacts = [at for at in (cluster.lease_until, cluster.not_before) if at is not None]
    return None if not contacts else max(timedelta(), wall - max(contacts))


def state_of(cluster: Cluster, wall: datetime) -> tuple[str, timedelta | None]:
    """Return fresh, late, lost or none, and how long the cluster has been silent."""
    silence = _silence(cluster, wall)
    if cluster.observed_at is None or silence is None:
        return "none", None
    if silence > max(LOST_AFTER, timedelta(seconds=LOST_TICKS * unhurried(cluster))):
        return "lost", silence
    # One second on top: a look itself takes time.
    if silence > timedelta(seconds=FRESH_TICKS * unhurried(cluster) + 1):
        return "late", silence
    return "fresh", silence


def lateness(cluster: Cluster, wall: datetime) -> str:
    """Return the sentence of a cluster whose tick is late, or nothing."""
    state, silence = state_of(cluster, wall)
    if state not in {"late", "lost"} or silence is None:
        return ""
    return f"{cluster.name} has not reported for {show.duration(silence)}"


def stamp_of(clusters: Sequence[Cluster], *, wall: datetime | None = None) -> Stamp:
    """Return the stamp of a page over some clusters: the oldest look, and the worst state."""
    wall = wall or timezone.now()
    seen = [cluster for cluster in clusters if cluster.observed_at is not None]
    if not seen:
        return Stamp("none", None, note="not observed yet")
    worst = max(seen, key=lambda cluster: RANKS[state_of(cluster, wall)[0]])
    state, silence = state_of(worst, wall)
    oldest = min(cluster.observed_at for cluster in seen if cluster.observed_at is not None)
    tick_id, notes = None, []
    if len(clusters) == 1:
        tick_id = newest_tick(clusters[0])
        if tick_id is not None:
            notes.append(f"tick {show.whole(tick_id)}")
    behind = [cluster for cluster in seen if cluster.clock_now is not None]
    if behind:
        notes.append("catching up" if behind[0].clock_until is None else "replay")
    trouble = ""
    if state in {"late", "lost"} and silence is not None:
        name = f"{worst.name}: " if len(clusters) > 1 else ""
        expected = show.duration(unhurried(worst))
        trouble = f"{name}{show.duration(silence)} ago, expected every {expected}"
    return Stamp(state, oldest, " · ".join(notes), trouble, tick_id)


def newest_tick(cluster: Cluster) -> int | None:
    """Return the id of the newest tick of a cluster: as read with it, else by a query."""
    if hasattr(cluster, "newest_tick_id"):
        known: int | None = cluster.newest_tick_id
        return known
    return Tick.objects.filter(cluster=cluster).order_by("-id").values_list("id", flat=True).first()
