"""Read clusters and their pools."""

from __future__ import annotations

from django.db.models import QuerySet

from apps.backends.models import Cluster, Pool


def clusters_in_use() -> QuerySet[Cluster]:
    """Return the clusters that are not archived, by name; every user may know of them."""
    return Cluster.objects.filter(archived_at__isnull=True)


def pools_of(cluster: Cluster) -> QuerySet[Pool]:
    """Return a cluster's pools, by name."""
    return Pool.objects.filter(cluster=cluster)
