"""One time for a page over several clusters, of which some may be on a clock of their own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from apps.backends.models import Cluster

TOGETHER = timedelta(hours=1)


def reading_time(clusters: Sequence[Cluster], wall: datetime) -> datetime:
    """Return the time ranges end at: the latest of the clusters' where they agree.

    Where clocks stand far apart (one catches up) it is that of the cluster known longest.
    """
    times = [cluster.now() for cluster in clusters]
    if not times:
        return wall
    if max(times) - min(times) <= TOGETHER:
        return max(times)
    return min(clusters, key=lambda cluster: (cluster.created_at, cluster.pk)).now()
