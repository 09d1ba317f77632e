"""Read queues and the policy of a cluster."""

from __future__ import annotations

from django.db.models import QuerySet

from apps.accounts.models import User
from apps.backends.models import Cluster
from apps.queues.models import ClusterPolicy, PriorityClass, Queue
from apps.tenants.models import Tenant
from apps.tenants.selectors import sight_of

DEFAULT_CLASS = "normal"


def policy_of(cluster: Cluster) -> ClusterPolicy:
    """Return how a cluster decides: its row, or the defaults unsaved where it has none."""
    return ClusterPolicy.objects.filter(cluster=cluster).first() or ClusterPolicy(cluster=cluster)


def policy_beside(cluster: Cluster) -> ClusterPolicy:
    """Return the same of a cluster that was read with its policy: without a query."""
    try:
        return cluster.policy
    except ClusterPolicy.DoesNotExist:
        return ClusterPolicy(cluster=cluster)


def find_queue(tenant: Tenant, cluster: Cluster) -> Queue:
    """Return where a tenant's jobs wait on a cluster: its row, or the defaults unsaved."""
    found = Queue.objects.filter(tenant=tenant, cluster=cluster).first()
    return found or Queue(tenant=tenant, cluster=cluster)


def find_default_class() -> PriorityClass:
    """Return the class of a job that names none: its row, or the defaults unsaved."""
    found = PriorityClass.objects.filter(name=DEFAULT_CLASS).first()
    return found or PriorityClass(name=DEFAULT_CLASS)


def queues_visible_to(user: User) -> QuerySet[Queue]:
    """Return the queues of the tenants a user sees, cluster and tenant loaded."""
    return Queue.objects.filter(sight_of(user).condition("tenant__")).select_related(
        "cluster", "tenant"
    )
