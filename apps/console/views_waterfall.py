"""Waterfall: what gangs held idle while they waited to be whole, one of them drawn large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import cached_property
from typing import Any

from django.conf import settings

from apps.common import show
from apps.common.errors import Invalid
from apps.common.money import round_half_up, scaled
from apps.common.time import MICROSECOND, from_us, to_us
from apps.console import drawings, ranges
from apps.console.causes import cause_of
from apps.console.clocks import reading_time
from apps.console.drawings import Mini
from apps.console.filters import Chips, Filter, chips_of
from apps.console.gangs import (
    ENDINGS,
    OUTCOMES,
    Ending,
    GangView,
    gang_of,
    held_words,
    money_of,
    run_of,
    view_of,
)
from apps.console.money_seen import sees_money
from apps.console.pages import Crumb, Export, Page
from apps.console.people import Told
from apps.console.plans import Plans, plans_of
from apps.console.ranges import RELATIVE, WORDS, Span
from apps.console.scope import Option, Segment
from apps.console.views_stories import may_play
from apps.jobs.models import Job
from apps.ledger.reports import Amount, Entry, total_of
from apps.ledger.selectors import Prices, gpu_time
from apps.ledger.sweep import GANG_WAIT
from apps.ledger.waits import WAITING, GangWait, gang_waits
from apps.tenants.models import Tenant

ROWS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class GangRow:
    """A gang as a line of the list; ``cost`` is empty where none is shown."""

    id: int
    told: Told
    tenant: str
    at: datetime
    ending: Ending
    outcome: str
    shape: str
    held: str
    mini: Mini
    waited: str
    limit: str
    gpu_seconds: int
    gpu_hours: str
    cost: str
    url: str
    selected: bool


class WaterfallPage(Page):
    """The gangs of a range that waited, worst first."""

    key = "waterfall"
    heading = "Reservation waterfall"
    template = "console/waterfall.html"
    parameters = frozenset({"tenant", "range", "outcome", "job", "reservation"})

    def settle(self) -> None:
        """Choose the time that ranges end at."""
        self.now = reading_time(self.scope.clusters, self.now)

    # What is asked ------------------------------------------------------------------------------

    @cached_property
    def span(self) -> Span:
        name = self.query.one_of("range", RELATIVE) or "24h"
        return ranges.relative(name, now_us=to_us(self.now), zone=show.zone())

    @cached_property
    def money(self) -> bool:
        return sees_money(self.viewer)

    @cached_property
    def tenants(self) -> list[Tenant] | None:
        """Return the tenants asked for; None: all that the reader sees."""
        path = self.query.get("tenant")
        if path is None:
            return None
        rows = Tenant.objects.filter(self.viewer.own(""))
        chosen = [t for t in rows if t.path == path or t.path.startswith(f"{path}/")]
        if not chosen or chosen[0].path != path:
            raise Invalid(f"There is no tenant {path!r} you can see.", field="tenant")
        return chosen

    @cached_property
    def outcome(self) -> str | None:
        return self.query.one_of("outcome", OUTCOMES)

    @property
    def filtered(self) -> bool:
        """Return whether the list is narrowed to a part of what waited."""
        return self.outcome is not None or "tenant" in self.query or self.scope.pool is not None

    # What is read -------------------------------------------------------------------------------

    @cached_property
    def waits(self) -> list[GangWait]:
        """Return the gangs the reader may see, with these filters, costliest first."""
        found = gang_waits(
            self.scope.clusters,
            self.span.since_us,
            self.span.until_us,
            tenants=self.tenants,
            visible=self.viewer.own("job__tenant__"),
            outcome=self.outcome,
            prices=self.prices,
        )
        pools = {pool.pk for pool in self.scope.pools}
        return [w for w in found if w.in_range.gpu_hours and w.job.pool_id in pools]

    @cached_property
    def gpu_time(self) -> list[Entry]:
        """Return where all GPU time of the range went; read only where all gangs are listed."""
        if self.filtered:
            return []
        span = self.span
        return gpu_time(self.scope.clusters, span.since_us, span.until_us, prices=self.prices)

    @cached_property
    def prices(self) -> Prices:
        return Prices(self.scope.all_pools)

    @cached_property
    def chosen(self) -> GangWait | None:
        """Return the gang that is drawn large: asked for, or waiting now, or the worst."""
        asked = self.query.whole("job", least=1, most=2**62)
        if asked is not None:
            mine = [wait for wait in self.waits if wait.job.pk == asked]
            if not mine:
                job = Job.objects.filter(self.viewer.own(), pk=asked).first()
                mine = (
                    []
                    if job is None
                    else gang_waits(self.scope.clusters, 0, to_us(self.now), job=job)
                )
            if not mine:
                raise Invalid(
                    f"Job {asked} is no gang that waited and that you can see.", field="job"
                )
            return which_of(mine, self.query.whole("reservation", least=1, most=2**62))
        if "reservation" in self.query:
            raise Invalid("reservation goes with the job whose it is.", field="reservation")
        waiting = [wait for wait in self.waits if wait.outcome == WAITING]
        return next(iter(waiting or self.waits), None)

    @cached_property
    def others(self) -> Amount:
        """Return what gangs of other tenants held, as one sum; nothing where the list is narrowed."""
        if self.viewer.is_admin:
            return Amount()
        own = {wait.job.tenant_id for wait in self.waits}
        return total_of(
            entry.amount
            for entry in self.gpu_time
            if entry.state == GANG_WAIT and entry.tenant_id not in own
        )

    @cached_property
    def total(self) -> Amount:
        """Return what the listed gangs and other tenants' held idle inside the range."""
        return total_of([*(wait.in_range for wait in self.waits), self.others])

    # The page -----------------------------------------------------------------------------------

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        self.settle()
        rows = [self.row(wait) for wait in self.waits[:ROWS_SHOWN]]
        left = self.waits[ROWS_SHOWN:]
        return {
            "answer": self.answer(),
            **self.context_parts(),
            "segment": self.range_segment(),
            "chips": self.chips(),
            "gang": self.drawn(self.chosen) if self.chosen is not None else None,
            "drawn": self.chosen,
            "drawn_told": self.viewer.told(self.chosen.job) if self.chosen is not None else None,
            "rows": rows,
            "left": self.sum_row(left) if left else None,
            "left_count": len(left),
            "plans": self.plans(),
            "others": self.figures(self.others) if self.others.gpu_hours else None,
            "total": self.figures(self.total),
            "count": len(self.waits),
            "range_words": WORDS[self.span.name],
            "money": self.money,
            "demo": may_play(self.viewer),
        }

    def answer(self) -> str:
        """Return the sentence with what gangs held idle."""
        span, total = WORDS[self.span.name], self.total
        if not total.gpu_hours:
            if self.filtered:
                return f"No gang that matches waited in these {span}."
            return f"No gang waited in these {span}."
        hours = show.decimals(total.gpu_hours, 0 if total.gpu_hours >= 100 else 2)
        if total.gpu_hours < 1:
            hours = f"{show.whole(total.gpu_hours * 3600)} GPU-seconds"
        else:
            hours = f"{hours} GPU-hours"
        cost = f": {show.money(total.money)}" if self.money and total.has_money else ""
        return f"In {span} gangs held {hours} idle while they waited to be whole{cost}."

    def context_parts(self) -> dict[str, Any]:
        """Return what stands below the answer: the share, how they ended, who waits now."""
        counts = {outcome: 0 for outcome in OUTCOMES}
        for wait in self.waits:
            counts[wait.outcome] += 1
        words = {
            "started": "started",
            "timed_out": "timed out",
            "released": "gave back their room",
            "cancelled": "were cancelled",
        }
        ended = [f"{show.whole(counts[key])} {word}" for key, word in words.items() if counts[key]]
        waiting = [wait for wait in self.waits if wait.outcome == WAITING]
        share = ""
        waited = total_of(e.amount for e in self.gpu_time if e.state == GANG_WAIT).gpu_hours
        if waited:
            part = waited / total_of(entry.amount for entry in self.gpu_time).gpu_hours
            where = f"{self.scope.only.name}’s" if self.scope.only is not None else "all"
            share = f"{show.percent(part)} of {where} GPU time."
        now = waiting[0] if waiting else None
        whose = "" if self.viewer.is_admin else "your "
        return {
            "share": share,
            "ended": f"Of {whose}{show.counted(len(self.waits), 'gang')} {', '.join(ended)}."
            if ended
            else "",
            "waiting": self.viewer.told(now.job) if now is not None else None,
            "waiting_more": len(waiting) - 1,
            "waiting_rate": self.rate_words(now),
        }

    def plans(self) -> list[Plans]:
        """Return what clusters plan themselves for jobs that the reader may see."""
        pools = [pool.pk for pool in self.scope.pools]
        tenants = None if self.tenants is None else [tenant.pk for tenant in self.tenants]
        return plans_of(self.scope.clusters, pools, self.viewer, tenants, now=self.now)

    def rate_words(self, wait: GangWait | None) -> str:
        if wait is None or not self.money:
            return ""
        money = money_of(wait, self.prices)
        return f" at {show.money(money.per_hour)} an hour" if money and money.per_hour else ""

    def row(self, wait: GangWait) -> GangRow:
        """Return one gang as a line of the list."""
        job, reservation, gang = wait.job, wait.reservation, gang_of(wait)
        length = show.duration((gang.until_us - gang.since_us) // MICROSECOND)
        so_far = " so far" if wait.outcome == WAITING else ""
        figures = self.figures(wait.in_range)
        timeout = reservation.timeout_seconds
        return GangRow(
            id=reservation.pk,
            told=self.viewer.told(job),
            tenant=job.tenant.path,
            at=from_us(wait.since_us),
            ending=ENDINGS[wait.outcome],
            outcome=wait.outcome,
            shape=f"{show.whole(job.size)} × {show.whole(job.gpus_per_member)}",
            held=held_words(gang),
            mini=drawings.mini(gang),
            waited=f"{length}{so_far}",
            limit=f"of {show.duration(timeout)}" if timeout else "no timeout",
            gpu_seconds=figures["gpu_seconds"],
            gpu_hours=figures["gpu_hours"],
            cost=figures["cost"],
            url=self.query.url({"job": str(job.pk), "reservation": str(reservation.pk)}),
            selected=self.chosen is not None and self.chosen.reservation.pk == reservation.pk,
        )

    def figures(self, amount: Amount) -> dict[str, Any]:
        """Return an amount as the columns of the list."""
        cost = show.money(amount.money) if amount.has_money else "no price"
        return {
            "gpu_seconds": round_half_up(amount.gpu_hours * 3600),
            "gpu_hours": show.gpu_hours(amount.gpu_hours, unit=False),
            "cost": cost if self.money else "",
        }

    def sum_row(self, waits: Sequence[GangWait]) -> dict[str, Any]:
        """Return the gangs that are not listed one by one, as one line."""
        lengths = sorted(wait.until_us - wait.since_us for wait in waits)
        median = show.duration(lengths[len(lengths) // 2] // MICROSECOND)
        return {**self.figures(total_of(w.in_range for w in waits)), "median": median}

    def drawn(self, wait: GangWait) -> GangView:
        """Return one gang drawn large."""
        run, places = run_of(wait)
        money = money_of(wait, self.prices) if self.money else None
        cause = cause_of(wait, places, self.viewer, now=self.now)
        return view_of(wait.job, gang_of(wait, run, places), money, cause)

    def range_segment(self) -> Segment:
        """Return 1 h, 24 h, 7 d, 30 d."""
        labels = {"1h": "1 h", "24h": "24 h", "7d": "7 d", "30d": "30 d"}
        return Segment(
            "Range",
            tuple(
                Option(
                    label,
                    self.query.url({"range": name, "job": None, "reservation": None}),
                    name == self.span.name,
                )
                for name, label in labels.items()
            ),
        )

    def chips(self) -> Chips:
        """Return the filters of the list."""
        outcomes = tuple((key, ENDINGS[key].label.lower()) for key in OUTCOMES)
        return chips_of(
            self.query,
            [
                Filter("outcome", "outcome", outcomes),
                Filter("tenant", "tenant", placeholder="nlp/alignment"),
            ],
        )

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return scope, page, gang."""
        scope = super().crumbs()[:-1]
        page = Crumb("Waterfall", self.query.url({"job": None, "reservation": None}))
        if self.chosen is None:
            return (*scope, Crumb("Waterfall"))
        return (*scope, page, Crumb(show.cut(self.viewer.told(self.chosen.job).text)))

    # For machines -------------------------------------------------------------------------------

    def export(self) -> Export:
        """Return the gangs the reader sees, exact, costliest first."""
        self.settle()
        cost = f"cost_{settings.CURRENCY.lower()}"
        columns = [
            "job", "name", "tenant", "cluster", "pool", "attempt", "outcome", "members",
            "gpus_per_member", "reserved_at", "ended_at", "waited_seconds", "timeout_seconds",
            "idle_gpu_seconds", "idle_gpu_hours",
        ]  # fmt: skip
        total = self.total
        facts: dict[str, Any] = {
            "range": self.span.name,
            "from": show.iso(from_us(self.span.since_us)),
            "until": show.iso(from_us(self.span.until_us)),
            "total_gpu_hours": exact(total.gpu_hours),
            "other_tenants_gpu_hours": exact(self.others.gpu_hours),
            "planned_by_clusters": [plans.facts() for plans in self.plans()],
        }
        if self.money:
            columns.append(cost)
            facts[f"total_{cost}"] = exact(total.money) if total.has_money else None
        return Export("waterfall", columns, self.export_rows(), facts)

    def export_rows(self) -> Iterator[list[Any]]:
        for wait in self.waits:
            job, reservation = wait.job, wait.reservation
            row = [
                job.pk, job.name, job.tenant.path, job.cluster.name, job.pool.name,
                reservation.attempt_number, wait.outcome, job.size, job.gpus_per_member,
                show.iso(from_us(wait.since_us)),
                show.iso(reservation.ended_at) if reservation.ended_at else None,
                (wait.until_us - wait.since_us) / MICROSECOND, reservation.timeout_seconds,
                exact(wait.in_range.gpu_hours * 3600), exact(wait.in_range.gpu_hours),
            ]  # fmt: skip
            if self.money:
                row.append(exact(wait.in_range.money) if wait.in_range.has_money else None)
            yield row


def which_of(waits: Sequence[GangWait], asked: int | None) -> GangWait:
    """Return a job's reservation that is asked for, or its newest.

    :raises Invalid: if the one asked for is none of them.
    """
    mine = [wait for wait in waits if asked in (None, wait.reservation.pk)]
    if not mine:
        raise Invalid(f"Reservation {asked} is none of that job’s.", field="reservation")
    return max(mine, key=lambda wait: wait.reservation.pk)


def exact(value: Fraction) -> str:
    """Write an exact amount for machines, to nine decimals."""
    return str(scaled(round_half_up(value, 9), 9))
