"""Idle cost: what was paid for nothing, whose it was, and where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from functools import cached_property
from typing import Any

from django.conf import settings
from django.urls import reverse

from apps.backends.models import Pool
from apps.common import show
from apps.common.errors import Invalid
from apps.common.time import from_us, to_us
from apps.console import idle_tables, marks, ranges
from apps.console.clocks import reading_time
from apps.console.idle_words import Words
from apps.console.money_seen import sees_money
from apps.console.pages import Crumb, Export, Foot, Page
from apps.console.palette import STATES
from apps.console.ranges import MINUTE_US, RELATIVE, Bucket, Span
from apps.console.scope import Option, Segment
from apps.jobs.models import Job
from apps.ledger.models import Price
from apps.ledger.reports import Entry, Report, Row, Shown
from apps.ledger.selectors import Prices, five_parts_over, held_idle_longest, top_level_of
from apps.tenants.models import Tenant

UNITS = ("gpuh", "money")
PERIODS = {"day": "Day", "week": "Week", "month": "Month"}
LONGEST = 10


class IdlePage(Page):
    """The five parts of a stretch of time, in GPU-hours or money."""

    key = "idle"
    heading = "Idle cost"
    template = "console/idle.html"
    parameters = frozenset({"range", "from", "to", "unit", "tenant"})
    refresh = 0

    def settle(self) -> None:
        """Choose the time that ranges end at."""
        self.now = reading_time(self.scope.clusters, self.now)

    # What is asked --------------------------------------------------------------------------------

    @cached_property
    def asked(self) -> str | None:
        """Return the range the address names, or None."""
        name = self.query.one_of("range", (*RELATIVE, *PERIODS, "custom"))
        if name is None and ("from" in self.query or "to" in self.query):
            return "custom"
        return name

    @cached_property
    def span(self) -> Span:
        """Return the stretch of time the page is about: if not asked, the last whole week."""
        zone, now_us = show.zone(), to_us(self.now)
        first, last = self.query.get("from"), self.query.get("to")
        if self.asked == "custom":
            if first is None or last is None:
                missing = "from" if first is None else "to"
                raise Invalid("A custom range needs both from and to.", field=missing)
            return ranges.custom(first, last, now_us=now_us, zone=zone)
        if last is not None:
            raise Invalid(f"to goes with range custom, not with {self.asked}.", field="to")
        if self.asked in RELATIVE:
            if first is not None:
                raise Invalid(f"from goes with a period, not with {self.asked}.", field="from")
            # Whole minutes: what is not over yet is left out.
            return ranges.relative(self.asked, now_us=now_us - now_us % MINUTE_US, zone=zone)
        if self.asked is not None:
            start = ranges.parse_day(first, "from") if first is not None else None
            return ranges.period(self.asked, now_us=now_us, zone=zone, start=start)
        week = ranges.period("week", now_us=now_us, zone=zone)
        looks = [c.known_from for c in self.scope.clusters if c.known_from is not None]
        if looks and to_us(min(looks)) >= week.until_us:  # nothing to look back at yet
            today = ranges.day_of(now_us, zone)
            return ranges.period("day", now_us=now_us, zone=zone, start=today)
        return week

    @cached_property
    def money(self) -> bool:
        """Return whether the page is in money: known, asked for, and not kept from the reader."""
        unit = self.query.one_of("unit", UNITS)
        return unit != "gpuh" and self.shows_money

    @cached_property
    def shows_money(self) -> bool:
        return sees_money(self.viewer) and self.report.total.cents is not None

    @cached_property
    def pool(self) -> Pool | None:
        """Return the one pool the page is narrowed to; several of one name are refused."""
        if self.scope.pool is None:
            return None
        if len(self.scope.pools) > 1:
            raise Invalid("Several clusters have that pool: choose a cluster too.", field="pool")
        return self.scope.pools[0]

    @cached_property
    def visible(self) -> list[Tenant]:
        return list(Tenant.objects.filter(self.viewer.own("")))

    @cached_property
    def tenants(self) -> list[Tenant] | None:
        """Return the tenants that have rows of their own; None: those at the top."""
        path = self.query.get("tenant")
        if path is None:
            return None if self.viewer.is_admin else self.visible
        chosen = [t for t in self.visible if t.path == path or t.path.startswith(f"{path}/")]
        if not chosen or chosen[0].path != path:
            raise Invalid(f"There is no tenant {path!r} you can see.", field="tenant")
        return chosen

    # What is read -----------------------------------------------------------------------------------

    @cached_property
    def all_prices(self) -> Prices:
        return Prices(self.scope.all_pools)

    @cached_property
    def read(self) -> tuple[Report, list[list[Entry]]]:
        """Return the report and its entries per bar, read in one pass."""
        edges = [*(bar.since_us for bar in self.bars), self.span.until_us]
        tenants = self.tenants
        return five_parts_over(
            self.scope.clusters,
            edges if self.bars else [self.span.since_us, self.span.since_us],
            pool=self.pool,
            row_of=top_level_of(self.visible) if tenants is None else {t.pk: t.pk for t in tenants},
            prices=self.all_prices,
        )

    @property
    def report(self) -> Report:
        """Return where the GPU time of the range went."""
        return self.read[0]

    @cached_property
    def bars(self) -> list[Bucket]:
        return ranges.buckets(self.span.since_us, self.span.until_us, show.zone())

    @cached_property
    def over_time(self) -> list[Row[int]]:
        return self.report.over_time(self.read[1])

    @cached_property
    def prices(self) -> dict[int, Price]:
        return {price.pk: price for price in self.all_prices.all}

    @cached_property
    def names(self) -> dict[int, str]:
        """Return the paths of the tenants that have rows."""
        return {tenant.pk: tenant.path for tenant in self.visible}

    @cached_property
    def pool_names(self) -> dict[int, str]:
        several = len(self.scope.clusters) > 1
        return {
            pool.pk: f"{pool.cluster.name} {pool.name}" if several else pool.name
            for pool in self.scope.all_pools
        }

    @cached_property
    def words(self) -> Words:
        default = self.query.get("from") is None
        return Words(self.report, self.span, self.now, self.money, default, self.names)

    @cached_property
    def states(self) -> list[str]:
        """Return the states with a line: unknown only where there is some."""
        unknown = self.report.parts["unknown"].amount.gpu_hours
        return [state for state in STATES if state != "unknown" or unknown]

    def write(self, shown: Shown) -> str:
        """Return a figure in the page's unit."""
        return self.words.text(shown)

    # The page ---------------------------------------------------------------------------------------

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        self.settle()
        words, report = self.words, self.report
        return {
            "answer": words.answer(),
            "context": " ".join(filter(None, (words.context(), words.unobserved()))),
            "observed": words.observed,
            "no_price": words.observed and sees_money(self.viewer) and report.total.cents is None,
            "money": self.money,
            **self.controls(),
            **(self.tables() if words.observed else {}),
        }

    def controls(self) -> dict[str, Any]:
        """Return the range, its neighbours and the unit."""
        span = self.span
        return {
            "periods": self.period_segment(),
            "units": self.unit_segment(),
            "earlier": self.step_url(span.earlier),
            "later": self.step_url(span.later),
            "dates": self.words.dates(),
            "exactly": self.words.exactly(),
            "custom": span.name == "custom",
            "span": span,
            "hidden": self.query.items(without=("range", "from", "to")),
            "tenant": self.query.get("tenant"),
            "all_tenants": self.query.url({"tenant": None}),
        }

    def tables(self) -> dict[str, Any]:
        """Return the figure, its twin and the tables."""
        report, states = self.report, self.states
        step = ranges.step_words(self.span.since_us, self.span.until_us)
        unit = show.currency_words() if self.money else "GPU-hours"
        pools = {pool.pk for pool in self.scope.pools}
        changes = [
            price
            for price in self.all_prices.all
            if price.pool_id in pools and report.since_us < price.from_us < report.until_us
        ]
        figure = idle_tables.figure_of(
            self.bars,
            self.over_time,
            states,
            money=self.money,
            with_money=self.shows_money,
            axis_title="",
            changes=[price.from_us for price in changes],
        )
        capacity = idle_tables.same_total(self.bars, self.over_time, self.write)
        return {
            "legend": marks.legend(states),
            "spec": json.dumps(figure, allow_nan=False),
            "parts_csv": self.query.url(path=reverse("console:idle-parts-csv")),
            "parts_json": self.query.url(path=reverse("console:idle-parts-json")),
            "note": f"{unit[0].upper()}{unit[1:]} per {step}."
            + (f" Capacity is {capacity} in each." if capacity else ""),
            "bucket_heads": [STATES[state] for state in states],
            "buckets": idle_tables.bucket_lines(self.bars, self.over_time, states, self.write),
            "parts": idle_tables.parts_table(
                report, states, self.pool_names, self.prices, money=self.shows_money
            ),
            "adds_up": report.adds_up(),
            "tenants": idle_tables.tenant_lines(report, self.names, self.tenant_url, self.write),
            "totals": idle_tables.tenant_totals(report, self.write),
            "changes": [self.change_words(price) for price in changes] if self.shows_money else [],
            "longest": self.longest(),
            "assumed": self.hours(report.assumed.gpu_hours),
            "excess": self.hours(report.excess.gpu_hours),
        }

    def hours(self, value: Any) -> str:
        return show.gpu_hours(value) if value else ""

    def change_words(self, price: Price) -> str:
        """Say that a price came into force."""
        at = show.instant(from_us(price.from_us), now=self.now)
        pool = self.pool_names[price.pool_id]
        return f"{pool} costs {idle_tables.price_words(price)} per GPU-hour from {at} on."

    def longest(self) -> list[dict[str, Any]]:
        """Return the jobs that held GPUs idle longest, of what the reader sees."""
        scope, span = self.scope, self.span
        mine = self.tenants if self.tenants is not None or self.viewer.is_admin else self.visible
        rows = held_idle_longest(
            scope.clusters,
            span.since_us,
            span.until_us,
            pool=self.pool,
            tenants=mine,
            limit=LONGEST,
            prices=self.all_prices,
        )
        jobs = Job.objects.select_related("tenant").in_bulk([row.job_id for row in rows])
        return [
            {
                "told": self.viewer.told(jobs[row.job_id]),
                "tenant": jobs[row.job_id].tenant.path,
                "since": from_us(row.since_us),
                "still": row.until_us is None,
                "gpus": row.gpus,
                "gpu_hours": show.gpu_hours(row.amount.gpu_hours, unit=False),
                "cost": self.cost_words(row.amount) if self.shows_money else "",
            }
            for row in rows
            if row.job_id in jobs
        ]

    def cost_words(self, amount: Any) -> str:
        return show.money(amount.money) if amount.has_money else "no price"

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return scope, page, range."""
        *before, page = super().crumbs()
        return (*before, Crumb(page.text, self.query.path), Crumb(self.words.dates()))

    def title(self) -> str:
        """Return the unique title: page, range and scope."""
        return " · ".join([self.heading, self.words.dates(), self.scope.crumbs()[0]])

    def foot(self, of: str = "") -> Foot:
        """Return the end of the page."""
        return super().foot("same rows and totals")

    # Controls ---------------------------------------------------------------------------------------

    def period_segment(self) -> Segment:
        """Return the last hour, Day, Week, Month, Custom."""
        name, url = self.span.name, self.query.url
        options = [
            Option(label, url({"range": key, "from": None, "to": None}), name == key)
            for key, label in {"1h": "1 h", **PERIODS}.items()
        ]
        days = {"range": "custom", "from": str(self.span.first), "to": str(self.span.last)}
        options.append(Option("Custom", url(days), name == "custom"))
        return Segment("Range", tuple(options))

    def unit_segment(self) -> Segment | None:
        """Return GPU-hours or money; None where there is no choice."""
        if not self.shows_money:
            return None
        hours = Option("GPU-hours", self.query.url({"unit": "gpuh"}), not self.money)
        money = Option("Money", self.query.url({"unit": "money"}), self.money)
        return Segment("Unit", (hours, money))

    def step_url(self, start: date | None) -> str:
        """Return the address of the same length of time from another day on."""
        span = self.span
        if start is None:
            return ""
        if span.name != "custom":
            return self.query.url({"range": span.name, "from": str(start), "to": None})
        end = start + (span.last - span.first)
        return self.query.url({"range": "custom", "from": str(start), "to": str(end)})

    def tenant_url(self, path: str) -> str:
        """Return the page narrowed to what is below a tenant; none for one without children."""
        below = any(tenant.path.startswith(f"{path}/") for tenant in self.visible)
        return (
            self.query.url({"tenant": path}) if below and self.query.get("tenant") != path else ""
        )

    # For machines -----------------------------------------------------------------------------------

    def export(self) -> Export:
        """Return what each tenant, or nobody, held in each state: figures as shown.

        Or, of the figure, what each of its bars stands for.
        """
        self.settle()
        currency = f"cost_{settings.CURRENCY.lower()}"
        columns = ["holder", "tenant", "state", "gpu_hours"]
        if self.shows_money:
            columns.append(currency)
        if self.part == "parts":
            return Export("idle-parts", ["from", "until", *columns[2:]], self.bar_rows())
        report, span = self.report, self.span
        facts = {
            "from": show.iso(from_us(span.since_us)),
            "until": show.iso(from_us(span.until_us)),
            "observed_from": show.iso(from_us(report.since_us)),
            "observed_until": show.iso(from_us(report.until_us)),
            "time_zone": settings.REPORT_ZONE,
            "adds_up": report.adds_up(),
            "total": self.figures(report.total),
            "parts": [
                {"state": state, **self.figures(part.shown), "percent": str(part.percent)}
                for state, part in report.parts.items()
            ],
        }
        return Export("idle", columns, self.export_rows(), facts)

    def figures(self, shown: Shown) -> dict[str, str | None]:
        """Return a figure for machines; money is text, so that no reader makes a float of it."""
        figures: dict[str, str | None] = {"gpu_hours": str(shown.gpu_hours)}
        if self.shows_money:
            money = shown.money
            figures[f"cost_{settings.CURRENCY.lower()}"] = None if money is None else str(money)
        return figures

    def bar_rows(self) -> Iterator[list[str | None]]:
        for bar, row in zip(self.bars, self.over_time, strict=True):
            span = [show.iso(from_us(at)) for at in (bar.since_us, bar.until_us)]
            for state, cell in row.cells.items():
                yield [*span, state, *self.figures(cell).values()]

    def export_rows(self) -> Iterator[list[str | None]]:
        held: list[Row[Any]] = [*self.report.by_tenant, *self.report.nobody]
        for row in held:
            holder, tenant = "nobody", ""
            if not isinstance(row.key, str):
                holder = "other tenants" if row.key is None else "tenant"
                tenant = self.names.get(row.key, "") if row.key is not None else ""
            for state, cell in row.cells.items():
                if row.amounts[state].gpu_hours:
                    yield [holder, tenant, state, *self.figures(cell).values()]
