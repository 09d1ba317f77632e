"""Which cluster and pool a page is about, and the switchers that change it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import OuterRef, Subquery
from django.http import HttpRequest
from django.utils import timezone

from apps.backends.models import Cluster, Pool
from apps.common.errors import Invalid
from apps.console.query import Query
from apps.scheduling.models import Tick

ALL = "all"
PARAMETERS = frozenset({"cluster", "pool"})


@dataclass(frozen=True, slots=True)
class Option:
    """One choice of a switcher or segment."""

    label: str
    url: str
    current: bool


@dataclass(frozen=True, slots=True)
class Switcher:
    """A closed list of links; each keeps the other parameters."""

    label: str
    value: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Alternatives side by side."""

    label: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """The cluster and pool a page is narrowed to, and all there are."""

    cluster: Cluster | None
    pool: str | None
    all_clusters: tuple[Cluster, ...]
    all_pools: tuple[Pool, ...]

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Return the clusters the page is about; those with the pool, where one is chosen."""
        if self.cluster is not None:
            return (self.cluster,)
        if self.pool is None:
            return self.all_clusters
        having = {pool.cluster_id for pool in self.pools}
        return tuple(cluster for cluster in self.all_clusters if cluster.pk in having)

    @property
    def only(self) -> Cluster | None:
        """Return the one cluster the page is about: chosen, or the only one there is."""
        return self.clusters[0] if len(self.clusters) == 1 else None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return the pools the page is about."""
        return tuple(
            pool
            for pool in self.all_pools
            if (self.cluster is None or pool.cluster_id == self.cluster.pk)
            and (self.pool is None or pool.name == self.pool)
        )

    @property
    def now(self) -> datetime:
        """Return the page's time: its cluster's, or wall time over several."""
        return self.only.now() if self.only is not None else timezone.now()

    def crumbs(self) -> list[str]:
        """Return the scope as the first parts of a breadcrumb."""
        first = self.only.name if self.only is not None else "All clusters"
        return [first, self.pool] if self.pool else [first]


def clusters_of(request: HttpRequest) -> tuple[Cluster, ...]:
    """Return the clusters in use with their policies and newest tick's id, read once a request."""
    known: tuple[Cluster, ...] | None = getattr(request, "_clusters", None)
    if known is None:
        newest = Tick.objects.filter(cluster=OuterRef("pk")).order_by("-id").values("id")[:1]
        rows = Cluster.objects.filter(archived_at__isnull=True).select_related("policy")
        rows = rows.annotate(newest_tick_id=Subquery(newest))
        known = tuple(rows.defer("cursor", "options").order_by("name"))
        request._clusters = known  # type: ignore[attr-defined]  # kept for the request's lifetime
    return known


def whole_scope(request: HttpRequest) -> Scope:
    """Return the scope of a page that is about one thing: all clusters, and no pool read."""
    return Scope(None, None, clusters_of(request), ())


def read_scope(request: HttpRequest, query: Query) -> Scope:
    """Return the scope an address asks for; two queries.

    :raises Invalid: naming the parameter, for a cluster or pool there is not.
    """
    clusters = clusters_of(request)
    by_id = {cluster.pk: cluster for cluster in clusters}
    pools = tuple(Pool.objects.filter(cluster__in=clusters).order_by("name", "cluster_id"))
    for pool in pools:
        pool.cluster = by_id[pool.cluster_id]
    chosen: Cluster | None = None
    asked = query.get("cluster")
    if asked not in (None, ALL):
        chosen = next((cluster for cluster in clusters if cluster.name == asked), None)
        if chosen is None:
            raise Invalid(f"There is no cluster {asked!r}.", field="cluster")
    name = query.get("pool")
    name = None if name == ALL else name
    if name is not None:
        within = [p for p in pools if chosen is None or p.cluster_id == chosen.pk]
        if all(pool.name != name for pool in within):
            where = f"{chosen.name} has" if chosen is not None else "There is"
            raise Invalid(f"{where} no pool {name!r}.", field="pool")
    return Scope(chosen, name, clusters, pools)


def switchers_of(scope: Scope, query: Query) -> tuple[Switcher, ...]:
    """Return the switchers of cluster and pool; one of a single choice says it all the same."""
    return (_cluster_switcher(scope, query), _pool_switcher(scope, query))


def _cluster_switcher(scope: Scope, query: Query) -> Switcher:
    names = [cluster.name for cluster in scope.all_clusters]
    current = scope.cluster.name if scope.cluster is not None else ALL
    shown = names[0] if len(names) == 1 else current
    # A pool of another cluster would be refused: it goes when the cluster changes.
    options = [
        Option(name, query.url({"cluster": name, "pool": None}), name == current) for name in names
    ]
    if len(names) != 1:
        options.insert(0, Option(ALL, query.url({"cluster": ALL, "pool": None}), current == ALL))
    return Switcher("Cluster", shown, tuple(options))


def _pool_switcher(scope: Scope, query: Query) -> Switcher:
    names = _names(pool for pool in scope.all_pools if scope.cluster in (None, pool.cluster))
    current = scope.pool or ALL
    shown = names[0] if len(names) == 1 else current
    options = [Option(name, query.url({"pool": name}), name == current) for name in names]
    if len(names) != 1:
        options.insert(0, Option(ALL, query.url({"pool": None}), current == ALL))
    return Switcher("Pool", shown, tuple(options))


def _names(pools: Iterable[Pool]) -> list[str]:
    return sorted({pool.name for pool in pools})
