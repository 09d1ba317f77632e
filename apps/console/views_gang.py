"""The waterfall of one job."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode

from apps.common import show
from apps.common.errors import Invalid
from apps.common.time import MICROSECOND, from_us, to_us
from apps.console import ranges
from apps.console.gangs import ENDINGS
from apps.console.job_facts import job_or_404
from apps.console.pages import Crumb, Export, Foot
from apps.console.people import viewer_of
from apps.console.ranges import Span
from apps.console.scope import Option, Scope, Switcher
from apps.console.views_waterfall import WaterfallPage, exact, which_of
from apps.jobs.models import Job
from apps.jobs.states import WAITING
from apps.ledger.reports import Amount
from apps.ledger.selectors import Prices
from apps.ledger.waits import GangWait, gang_waits


class JobWaterfallPage(WaterfallPage):
    """The waterfall of one job: the reservation of an attempt, drawn large."""

    key = "job-waterfall"
    template = "console/job_waterfall.html"
    parameters = frozenset({"attempt", "reservation"})
    scoped = False

    job: Job

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        """Answer for a job the reader sees; another's is the same 404 as none."""
        self.job = job_or_404(viewer_of(request), kwargs["pk"])
        return super().get(request, **kwargs)

    @cached_property
    def span(self) -> Span:
        now_us = to_us(self.now)
        return Span(
            "all", 0, now_us, ranges.day_of(0, show.zone()), ranges.day_of(now_us, show.zone())
        )

    @cached_property
    def waits(self) -> list[GangWait]:
        """Return the job's reservations, the first first."""
        found = gang_waits(
            [self.job.cluster], 0, self.span.until_us, job=self.job, prices=self.prices
        )
        return sorted(found, key=lambda wait: wait.reservation.pk)

    @cached_property
    def prices(self) -> Prices:
        return Prices([self.job.pool])

    @cached_property
    def chosen(self) -> GangWait | None:
        """Return the reservation asked for, or the newest: of an attempt, or of all."""
        number = self.query.whole("attempt", least=1)
        mine = [w for w in self.waits if number in (None, w.reservation.attempt_number)]
        if number is not None and not mine:
            raise Invalid(
                f"Attempt {number} of job {self.job.pk} reserved nothing.", field="attempt"
            )
        asked = self.query.whole("reservation", least=1, most=2**62)
        return which_of(mine, asked) if mine or asked is not None else None

    @property
    def filtered(self) -> bool:
        """Return that this is one job's."""
        return True

    @cached_property
    def others(self) -> Amount:
        return Amount()

    def narrow(self) -> None:
        """Make the page about the job's own cluster and its time."""
        self.scope = Scope(self.job.cluster, None, (self.job.cluster,), (self.job.pool,))
        self.now = self.scope.now

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        self.narrow()
        gang = self.drawn(self.chosen) if self.chosen is not None else None
        return {
            "job": self.job,
            "gang": gang,
            "answer": gang.sentence if gang is not None else self.nothing_held(),
            "switcher": self.switcher() if len(self.waits) > 1 else None,
            "job_url": reverse("console:job", args=[self.job.pk]),
        }

    def switcher(self) -> Switcher:
        """Return the job's reservations to choose from: an attempt may have had several."""
        options = []
        for place, wait in enumerate(self.waits, start=1):
            at = show.instant(from_us(wait.since_us), now=self.now)
            ending = ENDINGS[wait.outcome].label.lower()
            number = wait.reservation.attempt_number
            label = f"{place} · {at} · {ending}, attempt {number}"
            url = self.query.url({"attempt": None, "reservation": str(wait.reservation.pk)})
            options.append(Option(label, url, wait is self.chosen))
        chosen = next(place for place, option in enumerate(options, start=1) if option.current)
        return Switcher("Reservation", f"{chosen} of {len(options)}", tuple(options))

    def nothing_held(self) -> str:
        """Say that no member held a GPU before the start."""
        name = show.cut(show.spoken(self.job.name))
        if self.job.state in WAITING:
            return f"{name} waits and holds no GPU yet."
        return f"{name} never held GPUs while it waited."

    def export(self) -> Export:
        """Return what each member held, of all the job's reservations."""
        self.narrow()
        columns = [
            "attempt",
            "reservation",
            "outcome",
            "rank",
            "node",
            "gpus",
            "reserved_at",
            "until",
            "idle_gpu_seconds",
        ]
        return Export(f"job-{self.job.pk}-waterfall", columns, self.holds(), {"job": self.job.pk})

    def holds(self) -> Iterator[list[Any]]:
        for wait in self.waits:
            for hold in wait.holds:
                end = wait.until_us if hold.end_us is None else hold.end_us
                gpus = self.job.gpus_per_member
                yield [
                    wait.reservation.attempt_number, wait.reservation.pk, wait.outcome, hold.rank, hold.node, gpus,
                    show.iso(from_us(hold.start_us)), show.iso(from_us(end)),
                    exact(Fraction((end - hold.start_us) * gpus, MICROSECOND)),
                ]  # fmt: skip

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return cluster, job, page."""
        job = self.job
        link = f"{reverse('console:waterfall')}?{urlencode({'cluster': job.cluster.name})}"
        return (
            Crumb(job.cluster.name, link),
            Crumb(job.name, reverse("console:job", args=[job.pk])),
            Crumb("Waterfall"),
        )

    def title(self) -> str:
        """Return the unique title."""
        return f"Waterfall of job {self.job.pk} · {self.job.cluster.name}"

    def foot(self, of: str = "") -> Foot:
        """Return the end of the page."""
        return super().foot("of what each member held")
