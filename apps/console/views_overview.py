"""Overview: what the GPUs do now, what idleness costs an hour, and what needs somebody."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from django.conf import settings
from django.db.models import Count, Q
from django.urls import reverse
from django.utils.http import urlencode

from apps.common import show
from apps.common.money import scaled
from apps.common.time import from_us, to_us
from apps.console import hourly, marks
from apps.console.alarms import alarms_of
from apps.console.clocks import reading_time
from apps.console.eviction_rows import Line, lines_of
from apps.console.hourly import Hour
from apps.console.money_seen import sees_money
from apps.console.now import PoolBlock, blocks_of, cents_text, jobs_words
from apps.console.pages import Export, Foot, Page
from apps.console.palette import STATES
from apps.console.people import Told
from apps.console.units import gpus_text
from apps.jobs.eviction_facts import either_side, with_sides
from apps.jobs.models import Eviction, Job
from apps.jobs.states import WAITING
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.selectors import Prices, gpus_now
from apps.scheduling.models import Verdict
from apps.scheduling.selectors import forecast_of, starts_next

IDLE_STATES = tuple(state for state in STATES if state not in ("busy", "unknown"))
NEXT_SHOWN = 4
EVICTED_SHOWN = 3
NOTES = {
    "ceiling": "its tenant is at its ceiling",
    "weightless": "its tenant has weight 0",
    "guarantee": "stays within a guarantee",
    "begin_time": "not before its begin time",
    "no_nodes": "no usable node",
    "leaving": "once its victims have left",
    "deferred": "it may evict, but later",
    "watched": "Rollcall only watches this cluster",
    "elsewhere": "in the cluster's own queue",
}


@dataclass(frozen=True, slots=True)
class NextRow:
    """A job that starts soon, as the reader may see it."""

    told: Told
    glyph: str
    tone: str
    about: str
    start: str
    note: str


class OverviewPage(Page):
    """The page one opens first."""

    key = "overview"
    heading = "Overview"
    template = "console/overview.html"
    parameters = frozenset({"busy"})

    # What is read -------------------------------------------------------------------------------

    @cached_property
    def money(self) -> bool:
        return sees_money(self.viewer)

    @cached_property
    def prices(self) -> Prices:
        return Prices(self.scope.all_pools)

    @cached_property
    def blocks(self) -> list[PoolBlock]:
        """Return the pools that have been looked at, by cluster."""
        chosen = {pool.pk for pool in self.scope.pools}
        found = []
        for cluster in self.scope.clusters:
            pools = [pool for pool in self.scope.all_pools if pool.cluster_id == cluster.pk]
            if cluster.first_look_at is not None:
                now = gpus_now(cluster, pools=pools, prices=self.prices)
                found += [(cluster, one) for one in now if one.pool.pk in chosen]
        links = {one.pool.pk: self.idle_url(cluster.name, one.pool.name) for cluster, one in found}
        waiting = {pool: count for (_, pool), count in self.waiting.items()}
        return blocks_of(
            found, waiting, money=self.money, url_of=links if self.viewer.is_lead else {}
        )

    @cached_property
    def waiting(self) -> dict[tuple[str, int], int]:
        """Return how many jobs wait, by cluster and pool."""
        rows = (
            Job.objects.filter(pool__in=[p.pk for p in self.scope.pools], state__in=sorted(WAITING))
            .order_by()
            .values_list("cluster__name", "pool_id")
            .annotate(Count("pk"))
        )
        return {(cluster, pool): count for cluster, pool, count in rows}

    @cached_property
    def held(self) -> list[Interval]:
        """Return what gangs that wait hold and held, and what is held idle now."""
        waiting = Q(kind=IntervalKind.HOLD, reservation__ended_at__isnull=True)
        idle = Q(kind=IntervalKind.MARK, state="held_idle", end_us__isnull=True)
        rows = Interval.objects.filter(
            waiting | idle,
            cluster__in=self.scope.clusters,
            pool__in=[pool.pk for pool in self.scope.pools],
        )
        return list(rows.select_related("job__tenant", "reservation", "pool", "tenant"))

    @cached_property
    def gathering(self) -> dict[int, int]:
        """Return the GPUs each waiting gang holds, by job id."""
        held: dict[int, int] = defaultdict(int)
        for one in self.held:
            if one.kind == IntervalKind.HOLD and one.end_us is None and one.job_id:
                held[one.job_id] += one.gpus
        return dict(held)

    @cached_property
    def hours(self) -> list[Hour]:
        zone = show.zone()
        now = reading_time(self.scope.clusters, self.now)
        return hourly.hours_of(self.scope.pools, now_us=to_us(now), zone=zone)

    @cached_property
    def next(self) -> list[Verdict]:
        """Return the waiting jobs that likely start first, of this pool."""
        pools = {pool.pk for pool in self.scope.pools}
        rows = starts_next(
            self.scope.clusters, limit=NEXT_SHOWN if self.scope.pool is None else 200
        )
        return [verdict for verdict in rows if verdict.job.pool_id in pools][:NEXT_SHOWN]

    # The page -----------------------------------------------------------------------------------

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        states = list(STATES) if self.with_busy else list(IDLE_STATES)
        if not any(hour.gpus["unknown"] for hour in self.hours):
            states = [state for state in states if state != "unknown"]
        hours = self.hours
        return {
            "answer": self.answer(),
            "context": self.context_words(),
            "alerts": alarms_of(self),
            "blocks": self.blocks,
            "add_up": self.add_up(),
            "next": [self.next_row(verdict) for verdict in self.next],
            "queue_url": self.scoped_url("queue"),
            "evicted": self.evicted(),
            "evictions_url": self.scoped_url("evictions"),
            "mine": self.own_jobs(),
            "hours": [
                {
                    "label": hour.bar.label,
                    "cells": [hour.text(state) for state in states],
                    "total": show.decimals(hour.total(states), 1),
                }
                for hour in hours
            ],
            "spec": json.dumps(hourly.figure_of(hours, states), allow_nan=False) if hours else "",
            "legend": marks.legend(states),
            "with_busy": self.with_busy,
            "busy_url": self.query.url({"busy": None if self.with_busy else "yes"}),
            "total_gpus": gpus_text(self.total),
            "hours_csv": self.query.url({"busy": None}, path=reverse("console:overview-hours-csv")),
            "hours_json": self.query.url(
                {"busy": None}, path=reverse("console:overview-hours-json")
            ),
        }

    @cached_property
    def with_busy(self) -> bool:
        return self.query.one_of("busy", ("yes",)) is not None

    @cached_property
    def total(self) -> Fraction:
        return sum((block.total for block in self.blocks), Fraction(0))

    @cached_property
    def cents(self) -> tuple[int, int] | None:
        """Return what all GPUs, and those that do not work, cost an hour; None: no price."""
        priced = [block for block in self.blocks if block.cents is not None]
        if not priced:
            return None
        return (
            sum(block.money(tuple(STATES)) for block in priced),
            sum(block.money(IDLE_STATES) for block in priced),
        )

    def answer(self) -> str:
        """Return the sentence with what does not work now."""
        if not self.blocks:
            return "No cluster has been looked at yet."
        if not self.total:
            return "No GPUs are reported."
        idle = self.total - sum((block.working for block in self.blocks), Fraction(0))
        cost = f": {cents_text(self.cents[1])} an hour" if self.cents is not None else ""
        if not idle:
            return f"All {gpus_text(self.total)} GPUs are working."
        verb = "is" if idle == 1 else "are"
        return f"{gpus_text(idle)} of {gpus_text(self.total)} GPUs {verb} not working{cost}."

    def context_words(self) -> str:
        """Return one or two sentences: what works, what waits for gangs, how many jobs wait."""
        if not self.total:
            return ""
        working = sum((block.working for block in self.blocks), Fraction(0))
        words = []
        if working:
            verb = "is" if working == 1 else "are"
            spent = f" ({cents_text(self.cents[0] - self.cents[1])}/h)" if self.cents else ""
            words.append(f"{gpus_text(working)} {verb} busy{spent}.")
        unpriced = [block.pool for block in self.blocks if block.cents is None]
        if self.money and unpriced:
            words.append(f"{', '.join(unpriced)} has no price and is not in the money.")
        gangs, held = len(self.gathering), sum(self.gathering.values())
        if gangs:
            which = "one gang that cannot" if gangs == 1 else f"{gangs} gangs that cannot"
            words.append(f"{held} {'waits' if held == 1 else 'wait'} for {which} start yet.")
        counts: dict[str, int] = defaultdict(int)
        for (cluster, _), count in self.waiting.items():
            counts[cluster] += count
        words.append(jobs_words(counts))
        if not self.viewer.is_admin:
            words.append(self.own_words())
        return " ".join(filter(None, words))

    def own_words(self) -> str:
        """Say what the reader's own tenants hold."""
        if not self.viewer.sight.roles:
            return "You belong to no team yet: your admin adds you to one."
        rows = (
            Interval.objects.filter(
                self.viewer.own(),
                pool__in=[pool.pk for pool in self.scope.pools],
                end_us__isnull=True,
                kind=IntervalKind.MEMBER,
            )
            .order_by()
            .values_list("gpus", "pool__fraction_numerator", "pool__fraction_denominator")
        )
        held = sum((g * Fraction(n, d) for g, n, d in rows), Fraction(0))
        names = ", ".join(self.viewer.sight.outermost())
        return f"{show.cut(names)} {'runs on' if held else 'runs on none of them.'}" + (
            f" {gpus_text(held)} of them." if held else ""
        )

    def add_up(self) -> str:
        """Say what the parts add up to, as shown."""
        if not self.total:
            return ""
        money = f" and {cents_text(self.cents[0])} an hour" if self.cents is not None else ""
        return f"the parts add up to {gpus_text(self.total)} GPUs{money}"

    def next_row(self, verdict: Verdict) -> NextRow:
        """Return one job that starts soon."""
        job = verdict.job
        shape = (
            show.counted(job.gpus, job.pool.unit)
            if job.size == 1
            else (f"{show.whole(job.size)} × {show.counted(job.gpus_per_member, job.pool.unit)}")
        )
        told = self.viewer.told(job)
        tenant = f"{job.tenant.path} · " if told.own else ""
        where = f" · {job.cluster.name}" if len(self.scope.clusters) > 1 else ""
        held = self.gathering.get(job.pk, 0)
        at = forecast_of(verdict)
        now = job.cluster.now()
        if at is None:
            start = "no estimate"
        else:
            start = "next tick" if at <= now else show.instant(at, now=now)
        if held:
            note = f"{held} of {show.counted(job.gpus, job.pool.unit)} held"
        elif verdict.needed is not None and verdict.code in ("capacity", "placement"):
            note = f"needs {verdict.needed}, {verdict.available or 0} free"
        else:
            note = NOTES.get(verdict.code, "after those ahead of it")
        glyph = ("reserving", "gang_wait") if held else ("pending", "ink3")
        return NextRow(told, *glyph, f"{tenant}{shape}{where}", start, note)

    def evicted(self) -> list[Line]:
        """Return the newest evictions the reader may see."""
        pools = [pool.pk for pool in self.scope.pools]
        rows = Eviction.objects.filter(either_side(self.viewer.sight), job__pool__in=pools)
        newest = with_sides(rows).defer("considered").order_by("-id")
        return lines_of(list(newest[:EVICTED_SHOWN]), self.viewer, money=self.money, paths={})

    def own_jobs(self) -> list[dict[str, Any]]:
        """Return a member's own jobs that live, newest first; leads and admins have the queue."""
        if self.viewer.is_lead or not self.viewer.sight.roles:
            return []
        jobs = (
            Job.objects.filter(
                self.viewer.own(), submitted_by=self.viewer.user, ended_at__isnull=True
            )
            .select_related("tenant", "pool")
            .order_by("-id")[:5]
        )
        return [
            {
                "told": self.viewer.told(job),
                "badge": marks.badge(job),
                "gpus": show.counted(job.gpus, job.pool.unit),
                "job": job,
            }
            for job in jobs
        ]

    # Links --------------------------------------------------------------------------------------

    def scoped_url(self, view: str) -> str:
        """Return another page with this page's cluster and pool."""
        query = self.query.items(without=("busy",))
        return (
            f"{reverse(f'console:{view}')}?{urlencode(query)}"
            if query
            else reverse(f"console:{view}")
        )

    def idle_url(self, cluster: str, pool: str) -> str:
        """Return the idle cost of one pool, today so far."""
        return f"{reverse('console:idle')}?{urlencode({'cluster': cluster, 'pool': pool})}"

    def foot(self, of: str = "") -> Foot:
        """Return the end of the page; its rows are at /overview.csv."""
        foot = super().foot(of)
        links = {f"{form}_url": self.query.url(path=f"/overview.{form}") for form in self.exports}
        return Foot(foot.words, of="of GPUs now", **links)

    # For machines -------------------------------------------------------------------------------

    def export(self) -> Export:
        """Return GPUs by pool and state, with what they cost an hour; or the figure's hours."""
        if self.part == "hours":
            columns = ["from", "until", "state", "gpus"]
            return Export("overview-hours", columns, self.hour_rows())
        cost = f"cost_{settings.CURRENCY.lower()}_per_hour"
        columns = ["cluster", "pool", "state", "units", "gpus", *([cost] if self.money else [])]
        facts: dict[str, Any] = {
            "answer": self.answer(),
            "gpus": str(float(self.total)),
            "hours": [
                {"from": hour.bar.label, **{s: round(float(hour.gpus[s]), 6) for s in STATES}}
                for hour in self.hours
            ],
        }
        if self.cents is not None:
            facts[cost] = str(scaled(self.cents[0], 2))
        return Export("overview", columns, self.rows(), facts)

    def hour_rows(self) -> Iterator[list[Any]]:
        for hour in self.hours:
            span = [show.iso(from_us(at)) for at in (hour.bar.since_us, hour.bar.until_us)]
            for state in STATES:
                yield [*span, state, round(float(hour.gpus[state]), 6)]

    def rows(self) -> Iterator[list[Any]]:
        for block in self.blocks:
            for state in STATES:
                units = block.gpus[state]
                row = [block.cluster.name, block.pool, state, units, float(units * block.fraction)]
                if self.money:
                    row.append(None if block.cents is None else str(scaled(block.cents[state], 2)))
                yield row
