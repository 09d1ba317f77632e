"""One eviction: what happened to whom and why, what it cost, and who else was considered."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode

from apps.common import show
from apps.console import eviction_record as record
from apps.console.eviction_export import columns as export_columns
from apps.console.eviction_export import exact, rows
from apps.console.eviction_rows import clock, countdown_of, filled, known_side, tells_money
from apps.console.marks import Tile
from apps.console.money_seen import sees_money
from apps.console.pages import Crumb, Export, Foot, Page, PageInfo
from apps.console.people import Viewer, viewer_of
from apps.console.scope import Scope
from apps.console.stamps import stamp_of
from apps.jobs.eviction_facts import (
    Candidate,
    Loss,
    candidates_of,
    either_side,
    loss_of,
    tenants_in,
    with_sides,
)
from apps.jobs.eviction_words import (
    grace_of,
    happened,
    how_it_left,
    outcome_label,
    what_it_cost,
    where_from,
)
from apps.jobs.models import Eviction

CANDIDATES_SHOWN = 50


def eviction_or_404(viewer: Viewer, pk: int) -> Eviction:
    """Return an eviction with a side the reader sees in full; any other is the same 404 as none."""
    rows = with_sides(Eviction.objects.filter(either_side(viewer.sight))).select_related(
        "job__priority_class", "beneficiary__priority_class", "confirmed_by"
    )
    found = rows.filter(pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise Http404
    return found


class EvictionPage(Page):
    """An eviction with both its sides, its candidates, and what it cost."""

    key = "eviction"
    heading = "Eviction"
    template = "console/eviction.html"
    scoped = False

    eviction: Eviction

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        """Answer with the page or its rows, for who may see the eviction."""
        if not request.user.is_authenticated:
            return self.handle_no_permission()
        self.eviction = eviction_or_404(viewer_of(request), kwargs["pk"])
        return super().get(request, **kwargs)

    # What is read -------------------------------------------------------------------------------

    @cached_property
    def paths(self) -> dict[int, str]:
        return tenants_in([self.eviction])

    @cached_property
    def loss(self) -> Loss | None:
        return loss_of(self.eviction)

    @cached_property
    def money(self) -> bool:
        """Return whether the price of the loss is told: the page's reader sees money, and this."""
        return sees_money(self.viewer) and tells_money(self.viewer, self.eviction.job)

    @cached_property
    def candidates(self) -> list[Candidate]:
        return candidates_of(self.eviction, self.viewer.sight)

    # The page -----------------------------------------------------------------------------------

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        one = self.eviction
        self.now = one.cluster.now()
        price = record.price_words(one, self.loss, self.viewer) if sees_money(self.viewer) else ""
        shown = record.candidate_rows(self.candidates[:CANDIDATES_SHOWN], self.viewer)
        return {
            "eviction": one,
            "answer": self.answer(html=True),
            "context_words": self.cost_words(html=True),
            "countdown": countdown_of(one),
            "tiles": self.tiles(),
            "sides": record.sides_of(one, self.viewer),
            "standings": record.stood_rows(one, self.viewer, self.paths),
            "candidates": shown,
            "candidates_left": len(self.candidates) - len(shown),
            "candidate_words": record.candidate_words(self.candidates),
            "where_from": where_from(one, clock(one)),
            "price_words": price,
            "events": record.events_of(one, self.viewer),
            "json_url": reverse("console:eviction-json", args=[one.pk]),
            "hidden": not self.viewer.is_admin and settings.OTHER_TENANTS != "named",
            "zone": show.zone_name(self.now),
        }

    def answer(self, *, html: bool) -> str:
        """Return the sentence of what happened."""
        template = happened(self.eviction, known_side(self.eviction, self.paths))
        return filled(template, self.eviction, self.viewer, self.paths, html=html)

    def cost_words(self, *, html: bool) -> str:
        """Return how it left, and what was lost."""
        template = what_it_cost(self.eviction, self.loss, clock(self.eviction), money=self.money)
        return filled(template, self.eviction, self.viewer, self.paths, html=html)

    def tiles(self) -> list[Tile]:
        """Return rule and mode, when it was asked and left, how it ended, and what was lost."""
        one, at = self.eviction, clock(self.eviction)
        grace = grace_of(one)
        often = (
            "" if one.within_hour < 2 else f"number {show.whole(one.within_hour)} within an hour"
        )
        asked = f"grace {show.duration(grace)}" if grace else "without grace"
        return [
            Tile("Rule", one.rule, one.mode, f"by tick {show.whole(one.tick_id)}"),
            Tile("Asked", at(one.asked_at or one.at), "", asked),
            Tile("Outcome", outcome_label(one), "", often or how_it_left(one, at)),
            self.lost_tile(),
        ]

    def lost_tile(self) -> Tile:
        """Return what was lost; what is not known yet is not a zero."""
        gave = f"{show.counted(self.eviction.gpus, 'GPU')} given up"
        if self.loss is None:
            return Tile("Lost", "not known yet", "", gave)
        hours = show.gpu_hours(self.loss.gpu_hours)
        if not self.loss.gpu_hours:
            hours = "0.00 GPUh"
        if not self.money:
            return Tile("Lost", hours, "", gave)
        if self.loss.money is None:
            return Tile("Lost", "no price", "", f"{hours}, {gave}")
        return Tile("Lost", show.money(self.loss.money), "", f"{hours}, {gave}")

    def info(self, **changes: Any) -> PageInfo:
        """Return what base.html says around an eviction."""
        one = self.eviction
        return super().info(
            title=f"Eviction {one.pk} · {one.cluster.name}",
            heading=f"Eviction {one.pk} · {one.cluster.name} · {one.job.pool.name}",
            stamp=stamp_of([c for c in self.scope.all_clusters if c.pk == one.cluster_id]),
            refresh=self.refresh if one.ended_at is None else 0,
            **changes,
        )

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return cluster, list, eviction."""
        cluster = urlencode({"cluster": self.eviction.cluster.name})
        return (
            Crumb(self.eviction.cluster.name, f"{reverse('console:overview')}?{cluster}"),
            Crumb("Evictions", f"{reverse('console:evictions')}?{cluster}"),
            Crumb(f"Eviction {self.eviction.pk}"),
        )

    def foot(self, of: str = "") -> Foot:
        """Return the end of the page, with its own cluster's policy."""
        cluster = self.eviction.cluster
        known = [c for c in self.scope.all_clusters if c.pk == cluster.pk] or [cluster]
        self.scope = Scope(known[0], None, tuple(known), ())
        return super().foot("of the candidates")

    # For machines -------------------------------------------------------------------------------

    def export(self) -> Export:
        """Return who was considered, in order; beside them the eviction itself."""
        self.now = self.eviction.cluster.now()
        return Export(
            f"eviction-{self.eviction.pk}",
            ["place", "job_id", "job", "gpus", "lost_gpu_hours_if_killed", "passed", "why"],
            self.candidate_cells(),
            self.about(),
        )

    def candidate_cells(self) -> Iterator[list[Any]]:
        """Yield the candidates for machines."""
        for one, row in zip(
            self.candidates, record.candidate_rows(self.candidates, self.viewer), strict=True
        ):
            job = None if one.job is None else one.job.pk
            lost = None if one.lost is None else exact(one.lost)
            yield [one.place, job, one.name, one.gpus, lost, one.passed, row.why]

    def about(self) -> dict[str, Any]:
        """Return the eviction as in the list for machines, its sentences and its standings."""
        names = export_columns(money=sees_money(self.viewer))
        (cells,) = rows([self.eviction], self.viewer, money=sees_money(self.viewer))
        return {
            "eviction": dict(zip(names, cells, strict=True)),
            "answer": self.answer(html=False),
            "cost": self.cost_words(html=False),
            "where_from": where_from(self.eviction, show.iso),
            "standings": record.standings_for_machines(self.eviction, self.viewer, self.paths),
        }
