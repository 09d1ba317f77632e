"""Read queues and the policy of a cluster."""

from __future__ import annotations

from django.db.models import QuerySet

from apps.accounts.models import User
from apps.backends.models import Cluster
from apps.queues.models import ClusterPolicy, Queue
from apps.tenants.selectors import sight_of


def policy_of(cluster: Cluster) -> ClusterPolicy:
    """Return how a cluster decides: its row, or the defaults unsaved where it has none."""
    return ClusterPolicy.objects.filter(cluster=cluster).first() or ClusterPolicy(cluster=cluster)


def policy_beside(cluster: Cluster) -> ClusterPolicy:
    """Return the same of a cluster that was read with its policy: without a query."""
    try:
        return cluster.policy
    except ClusterPolicy.DoesNotExist:
        return ClusterPolicy(cluster=cluster)


def queues_visible_to(user: User) -> QuerySet[Queue]:
    """Return the queues of the tenants a user sees, cluster and tenant loaded."""
    return Queue.objects.filter(sight_of(user).condition("tenant__")).select_related(
        "cluster", "tenant"
    )
