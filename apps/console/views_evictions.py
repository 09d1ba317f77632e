"""Evictions: who made way for whom, by which rule, and what was lost."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from functools import cached_property
from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet

from apps.common import show
from apps.common.errors import Invalid
from apps.common.time import HOUR_US, from_us, to_us
from apps.console import eviction_export, eviction_figure, line, ranges
from apps.console.clocks import reading_time
from apps.console.eviction_alarms import recent, thrashing
from apps.console.eviction_figure import Group
from apps.console.eviction_rows import lines_of
from apps.console.eviction_summary import Summary
from apps.console.filters import Chips, Filter, chips_of
from apps.console.money_seen import sees_money
from apps.console.pages import Crumb, Export, Foot, Page
from apps.console.paging import Key, slice_of
from apps.console.palette import MODES
from apps.console.ranges import WORDS, Span
from apps.console.scope import Option, Segment
from apps.console.views_stories import eviction_buttons
from apps.engine.preemption import RULES
from apps.jobs.eviction_facts import (
    LEAVING,
    OUTCOMES,
    either_side,
    fraction_of,
    of_outcome,
    of_tenant,
    with_sides,
)
from apps.jobs.eviction_words import LABELS
from apps.jobs.models import Eviction
from apps.jobs.states import EvictionMode

RANGES = {"24h": "24 h", "7d": "7 d", "30d": "30 d"}
DEFAULT = "7d"
NEWEST_FIRST = (Key("pk", descending=True),)
HOURS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


class EvictionsPage(Page):
    """The evictions of a range in which either side is the reader's, newest first."""

    key = "evictions"
    heading = "Evictions"
    template = "console/evictions.html"
    parameters = frozenset(
        {"tenant", "rule", "mode", "outcome", "lost_over", "job", "range", "after", "before"}
    )

    def settle(self) -> None:
        """Choose the time that ranges end at."""
        self.now = reading_time(self.scope.clusters, self.now)

    # What is asked ------------------------------------------------------------------------------

    @cached_property
    def span(self) -> Span:
        name = self.query.one_of("range", RANGES) or DEFAULT
        return ranges.relative(name, now_us=to_us(self.now), zone=show.zone())

    @cached_property
    def money(self) -> bool:
        return sees_money(self.viewer)

    @cached_property
    def tenants(self) -> list[str]:
        return line.tenants_offered(self.viewer)

    @property
    def filtered(self) -> bool:
        """Return whether the list is narrowed to a part of what there was."""
        return any(each.key in self.query for each in self.filters()) or "pool" in self.query

    def filters(self) -> list[Filter]:
        """Return what the list can be narrowed by."""
        rules = [name for name in RULES if name != "none"]
        words = {LEAVING: "leaving", **{key.value: text for key, text in LABELS.items()}}
        return [
            Filter("tenant", "tenant", tuple((path, path) for path in self.tenants)),
            Filter("rule", "rule", tuple((name, name) for name in rules)),
            Filter("mode", "mode", tuple((mode, mode) for mode in MODES)),
            Filter("outcome", "outcome", tuple((key, words[key]) for key in OUTCOMES)),
            Filter("lost_over", "lost more than", placeholder="GPU-hours, such as 1.5"),
            Filter("job", "job"),
        ]

    def lost_over(self) -> Fraction | None:
        """Return the GPU-hours that more than must have been lost, or None."""
        asked = self.query.get("lost_over")
        if asked is None:
            return None
        if not HOURS.fullmatch(asked):
            raise Invalid(
                f"lost_over must be GPU-hours such as 1.5, not {asked!r}.", field="lost_over"
            )
        return Fraction(asked)

    # What is read -------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> QuerySet[Eviction]:
        """Return what the reader may see of the range, with these filters; unordered."""
        rows = Eviction.objects.filter(
            either_side(self.viewer.sight),
            cluster__in=[cluster.pk for cluster in self.scope.clusters],
            at__gte=from_us(self.span.since_us),
            at__lt=from_us(self.span.until_us + 1),
        )
        if self.scope.pool is not None:
            rows = rows.filter(job__pool__in=[pool.pk for pool in self.scope.pools])
        return rows.filter(self._tenant(), self._choices(), self._lost(), self._job())

    def _tenant(self) -> Q:
        path = self.query.get("tenant")
        if path is None:
            return Q()
        if path not in self.tenants:
            raise Invalid(f"There is no tenant {path!r} that you can see.", field="tenant")
        return of_tenant(path)

    def _choices(self) -> Q:
        condition = Q()
        if (rule := self.query.one_of("rule", RULES)) is not None:
            condition &= Q(rule=rule)
        if (mode := self.query.one_of("mode", EvictionMode.values)) is not None:
            condition &= Q(mode=mode)
        if (outcome := self.query.one_of("outcome", OUTCOMES)) is not None:
            condition &= of_outcome(outcome)
        return condition

    def _lost(self) -> Q:
        hours = self.lost_over()
        if hours is None:
            return Q()
        condition = Q(pk__in=())
        for pool in self.scope.pools:
            least = int(hours * HOUR_US / fraction_of(pool))
            condition |= Q(job__pool=pool.pk, lost_gpu_us__gt=min(least, 2**63 - 1))
        return condition

    def _job(self) -> Q:
        pk = self.query.whole("job", least=1, most=2**62)
        if pk is None:
            return Q()
        # Of another team's job nothing is told, and so is no way to find it either.
        return Q(self.viewer.own("job__tenant__"), job=pk) | Q(
            self.viewer.own("beneficiary__tenant__"), beneficiary=pk
        )

    @cached_property
    def groups(self) -> list[Group]:
        return eviction_figure.groups_of(
            self.rows, self.span, self.scope.all_pools, self.viewer, show.zone()
        )

    @cached_property
    def summary(self) -> Summary:
        return Summary(self.groups, self.viewer, WORDS[self.span.name], self.money, self.filtered)

    # The page -----------------------------------------------------------------------------------

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        self.settle()
        page = slice_of(with_sides(self.rows).defer("considered"), NEWEST_FIRST, self.query)
        chips = self.chips()
        words = f"{show.whole(len(page.rows))} of {show.whole(self.summary.count)}, newest first"
        thrashes = thrashing(recent(self.viewer, self.scope.clusters), self.scope.clusters)
        return {
            "answer": self.summary.answer(),
            "context_words": self.summary.context(thrashes),
            "segment": self.range_segment(),
            "chips": chips,
            "rows": lines_of(page.rows, self.viewer, money=self.money),
            "pager": page.pager(self.query, words, names=("newer", "older")),
            "money": self.money,
            "zone": show.zone_name(self.now),
            "span": WORDS[self.span.name],
            "totals": self.totals(),
            "stories": eviction_buttons(self.viewer),
            **(self.figure() if self.groups else {}),
        }

    def figure(self) -> dict[str, Any]:
        """Return the figure and its twin, a table."""
        bars = eviction_figure.bars_of(self.groups, self.span, show.zone())
        modes = eviction_figure.shown_modes(bars)
        lines, last = eviction_figure.table_of(bars, modes)
        return {
            "spec": json.dumps(eviction_figure.figure_of(bars, modes), allow_nan=False),
            "legend": [MODES[mode] for mode in modes],
            "step": "day" if eviction_figure.by_day(self.span) else "hour",
            "bars": lines,
            "bars_total": last,
        }

    def totals(self) -> dict[str, str]:
        """Return the foot of the list: what all rows lost, money rounded once."""
        lost, others = self.summary.lost, self.summary.others_lost
        cost = show.money(lost.money) if lost.has_money else "no price"
        return {
            "label": show.counted(self.summary.count, "eviction"),
            "gpu_hours": show.gpu_hours(lost.gpu_hours + others.gpu_hours, unit=False),
            "cost": cost if self.money else "",
            "others": show.gpu_hours(others.gpu_hours) if others.gpu_hours else "",
        }

    def range_segment(self) -> Segment:
        """Return 24 h, 7 d, 30 d."""
        options = (
            Option(label, self.query.url({"range": name}), name == self.span.name)
            for name, label in RANGES.items()
        )
        return Segment("Range", tuple(options))

    def chips(self) -> Chips:
        """Return the filters of the list."""
        return chips_of(self.query, self.filters())

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return scope, page, range."""
        *scope, page = super().crumbs()
        return (*scope, Crumb(page.text, self.query.path), Crumb(WORDS[self.span.name]))

    def foot(self, of: str = "") -> Foot:
        """Return the end of the page."""
        return super().foot(f"of {show.counted(self.summary.count, 'row')}")

    # For machines -------------------------------------------------------------------------------

    def export(self) -> Export:
        """Return all rows of these filters, exact, as this reader may see them."""
        self.settle()
        summary, cost = self.summary, f"total_cost_{settings.CURRENCY.lower()}"
        lost, others = summary.lost, summary.others_lost
        facts: dict[str, Any] = {
            "range": self.span.name,
            "from": show.iso(from_us(self.span.since_us)),
            "until": show.iso(from_us(self.span.until_us)),
            "answer": summary.answer(),
            "evictions": summary.count,
            "total_gpu_hours": eviction_export.exact(lost.gpu_hours + others.gpu_hours),
            "other_tenants_gpu_hours": eviction_export.exact(others.gpu_hours),
        }
        if self.money:
            facts[cost] = eviction_export.exact(lost.money) if lost.has_money else None
        found = with_sides(self.rows).defer("considered").order_by("-pk")
        return Export(
            "evictions",
            eviction_export.columns(money=self.money),
            eviction_export.rows(
                found.iterator(eviction_export.BATCH), self.viewer, money=self.money
            ),
            facts,
        )
