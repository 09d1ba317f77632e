"""The clusters there are, and one of them: its health, its nodes, and how far it is controlled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from django.db.models import Count
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from apps.backends.kinds import preflight
from apps.backends.models import Cluster, Node, NodeState, Pool
from apps.backends.pace import pace_words
from apps.backends.selectors import clusters_in_use
from apps.common import show
from apps.console.cluster_facts import (
    GRADES,
    Look,
    Sum,
    abilities_of,
    able_to,
    advice_row,
    finding_rows,
    findings_words,
    import_rows,
    look_of,
    milliseconds,
    node_rows,
    reading_words,
    sums_of,
    trouble_of,
)
from apps.console.filters import Filter, chips_of
from apps.console.money_seen import sees_money
from apps.console.now import blocks_of
from apps.console.pages import Crumb, Export, Foot, Page, PageInfo
from apps.console.paging import Key, slice_of
from apps.console.scope import clusters_of
from apps.console.stamps import lateness
from apps.jobs.models import Job
from apps.jobs.states import WAITING
from apps.ledger.selectors import Prices, gpus_now

IN_ORDER = (Key("id"),)
STATE_WORDS = tuple((state.value, state.value) for state in NodeState)


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster as a line of the list."""

    cluster: Cluster
    url: str
    sum: Sum
    late: str


class ClustersPage(Page):
    """All clusters."""

    key = "clusters"
    heading = "Clusters"
    template = "console/clusters.html"
    scoped = False

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        rows = self.rows()
        driven = sum(row.cluster.driven for row in rows)
        return {
            "answer": f"{show.counted(len(rows), 'cluster')}, {show.whole(driven)} of them driven."
            if rows
            else "There is no cluster yet.",
            "rows": rows,
            "may": self.viewer.is_admin,
            "now": timezone.now(),
        }

    def rows(self) -> list[ClusterRow]:
        """Return the clusters with what their nodes add up to; one query."""
        sums = sums_of(self.scope.all_clusters)
        wall = timezone.now()
        found = []
        for cluster in self.scope.all_clusters:
            url = reverse("console:cluster", args=[cluster.name])
            found.append(ClusterRow(cluster, url, sums[cluster.pk], lateness(cluster, wall)))
        return found

    def export(self) -> Export:
        """Return the same for machines."""
        columns = ["cluster", "kind", "grade", "nodes", "gpus", "gpus_up", "observed_at"]
        rows = (
            [
                row.cluster.name, row.cluster.kind, row.cluster.grade, row.sum.nodes, row.sum.gpus, row.sum.up,
                row.cluster.observed_at,
            ]
            for row in self.rows()
        )  # fmt: skip
        return Export("clusters", columns, rows)

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return the page alone: it is about all clusters."""
        return (Crumb(self.heading),)


class ClusterPage(Page):
    """One cluster."""

    key = "cluster"
    heading = "Cluster"
    template = "console/cluster.html"
    scoped = False
    parameters = frozenset({"pool", "state", "after", "before", "check"})

    cluster: Cluster

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        """Answer with the page or its nodes."""
        found = next((c for c in clusters_of(request) if c.name == kwargs["name"]), None)
        if found is None:
            raise Http404
        self.cluster = found
        return super().get(request, **kwargs)

    @cached_property
    def able(self) -> frozenset[str]:
        return able_to(self.cluster)

    def narrow(self) -> None:
        """Make the page be about this cluster alone."""
        pools = tuple(Pool.objects.filter(cluster=self.cluster).order_by("name"))
        for pool in pools:
            pool.cluster = self.cluster
        self.scope = replace(self.scope, cluster=self.cluster, all_pools=pools)
        self.now = self.cluster.now()

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        self.narrow()
        page = slice_of(self.nodes().select_related("pool"), IN_ORDER, self.query)
        count = self.nodes().count()
        words = f"{show.whole(len(page.rows))} of {show.counted(count, 'node')}"
        look = look_of(self.cluster)
        return {
            "cluster": self.cluster,
            "answer": self.answer(look),
            "context": GRADES[self.cluster.grade],
            "alerts": trouble_of(self.cluster, self.viewer),
            "blocks": self.blocks(),
            "abilities": abilities_of(self.cluster),
            "look": look,
            "advice": advice_row(self.cluster, self.viewer),
            "chips": self.chips(),
            "rows": node_rows(page.rows, self.viewer),
            "pager": page.pager(self.query, words, names=("ahead", "behind")),
            "may": self.viewer.is_admin,
            "links": self.links(),
            "pace": pace_words(self.cluster),
            **self.past(),
            **self.checked(),
        }

    def checked(self) -> dict[str, Any]:
        """Return what a preflight finds, where an admin asks for it: it takes its time."""
        asked = self.query.one_of("check", ("yes",)) is not None
        if not asked or not self.viewer.is_admin:
            return {}
        found = preflight(self.cluster, now=timezone.now())
        return {"findings": finding_rows(found), "findings_words": findings_words(found)}

    def past(self) -> dict[str, Any]:
        """Return how far imports of its history are, for admins, where it has one."""
        if not self.viewer.is_admin or "history" not in self.able:
            return {}
        return {
            "remembers": True,
            "imports": import_rows(self.cluster),
            "reading": reading_words(self.cluster),
        }

    def answer(self, look: Look | None) -> str:
        """Return how many GPUs are up, and how long a tick takes."""
        if self.cluster.first_look_at is None or look is None:
            return f"{self.cluster.name} has not been looked at yet."
        whole = sums_of([self.cluster])[self.cluster.pk]
        took = milliseconds(look.observe_ms + look.decide_ms)
        verb = "is" if whole.up == 1 else "are"
        gpus = show.counted(whole.gpus, "GPU")
        return f"{show.whole(whole.up)} of {gpus} {verb} up; a tick takes {took}."

    def blocks(self) -> list[Any]:
        """Return the state bars of the pools."""
        if self.cluster.first_look_at is None:
            return []
        pools = self.scope.all_pools
        found = gpus_now(self.cluster, pools=pools, prices=Prices(pools))
        rows = Job.objects.filter(cluster=self.cluster, state__in=sorted(WAITING)).order_by()
        waiting = dict(rows.values_list("pool_id").annotate(Count("pk")))
        now_of = [(self.cluster, one) for one in found]
        return blocks_of(now_of, waiting, money=sees_money(self.viewer), url_of={})

    def nodes(self) -> Any:
        """Return the nodes asked for."""
        rows = Node.objects.filter(cluster=self.cluster, gone_at__isnull=True)
        pool = self.query.one_of("pool", [pool.name for pool in self.scope.all_pools])
        state = self.query.one_of("state", NodeState.values)
        if pool is not None:
            rows = rows.filter(pool__name=pool)
        return rows if state is None else rows.filter(state=state)

    def chips(self) -> Any:
        """Return the filters of the nodes."""
        names = tuple((pool.name, pool.name) for pool in self.scope.all_pools)
        pools = Filter("pool", "pool", names if len(names) > 1 else ())
        return chips_of(self.query, [Filter("state", "state", STATE_WORDS), pools])

    def links(self) -> list[tuple[str, str]]:
        """Return the pages about this cluster."""
        views = [("Overview", "overview"), ("Queue", "queue"), ("Waterfall", "waterfall")]
        if self.viewer.is_lead:
            views.append(("Idle cost", "idle"))
        query = urlencode({"cluster": self.cluster.name})
        links = [(text, f"{reverse(f'console:{view}')}?{query}") for text, view in views]
        if "accounts" in self.able:
            address = reverse("console:cluster-accounts", args=[self.cluster.name])
            links.append(("Accounts", address))
        return links

    def info(self, **changes: Any) -> PageInfo:
        """Return what base.html says around a cluster."""
        about = f"{self.cluster.name} · {self.cluster.get_kind_display()} · {self.cluster.grade}"
        values = {"title": f"{self.cluster.name} · Cluster", "heading": about}
        return super().info(**(values | changes))

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return the list, and this."""
        return (Crumb("Clusters", reverse("console:clusters")), Crumb(self.cluster.name))

    def foot(self, of: str = "of the nodes") -> Foot:
        """Return the end of the page."""
        return super().foot(of)

    def export(self) -> Export:
        """Return the nodes asked for, for machines."""
        self.narrow()
        columns = [
            "node", "pool", "gpus", "foreign_gpus", "state", "state_since", "state_reason", "rack",
        ]  # fmt: skip
        return Export(f"{self.cluster.name}-nodes", columns, self.node_lines())

    def node_lines(self) -> Iterator[list[Any]]:
        """Return a line for each node."""
        for node in self.nodes().select_related("pool").order_by("id").iterator(2_000):
            yield [
                node.name, node.pool.name, node.gpus, node.foreign_gpus, node.state,
                node.state_since, node.state_reason, node.rack,
            ]  # fmt: skip


def cluster_or_404(name: str) -> Cluster:
    """Return a cluster in use, all of it."""
    return get_object_or_404(clusters_in_use(), name=name)
