"""One job: why it waits, what happened to it, what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode

from apps.backends.lines import Place
from apps.common import show
from apps.common.money import apportion, round_cents, round_half_up, scaled
from apps.common.time import from_us
from apps.console import eviction_export, life, marks
from apps.console.beside import Beside, beside_of
from apps.console.cluster_facts import runs_as
from apps.console.eviction_rows import countdown_of
from apps.console.job_facts import JobFacts, job_or_404
from apps.console.node_lists import node_list
from apps.console.pages import Crumb, Export, Foot, Page, PageInfo
from apps.console.people import viewer_of
from apps.console.plans import plan_words
from apps.console.scope import Scope
from apps.console.stamps import stamp_of
from apps.console.story import Teller
from apps.jobs.models import Attempt, Member
from apps.jobs.selectors import may_cancel, may_hold
from apps.jobs.states import TERMINAL, Outcome
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.selectors import Prices, observed_until
from apps.scheduling.selectors import verdict_of

MEMBERS_SHOWN = 64
TERM_LABELS = {
    "fair_share": "Fair share",
    "age": "Age",
    "size": "Size",
    "queue": "Queue",
    "class": "Class",
    "boost": "Boost",
    "nice": "Nice",
}
ONLY_IF_ANY = frozenset({"class", "boost"})


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt as the table of attempts shows it."""

    number: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ran: str
    outcome: str
    detail: str
    nodes: str


class JobPage(Page):
    """A job with its reason, its terms, who is ahead, and its story."""

    key = "job"
    heading = "Job"
    template = "console/job.html"
    scoped = False

    facts: JobFacts

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        """Answer with the page or its rows, for who may see the job."""
        viewer = viewer_of(request)
        self.facts = JobFacts(job_or_404(viewer, kwargs["pk"]), viewer, machine=self.form != "html")
        return super().get(request, **kwargs)

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        self.now = self.facts.at
        job, why = self.facts.job, self.facts.why
        likely = why["forecast"] if why is not None else None
        waits = self.facts.waits_told()
        attempts = {a.number: a for a in self.facts.attempts}
        told = self.facts.evicted_told()
        teller = Teller(job, attempts, waits, self.facts.at, told)
        leaving = self.facts.leaving
        last = self.facts.last
        members = self.members(last)
        terms = self.terms()
        return {
            "job": job,
            "badge": marks.badge(job),
            "answer": self.facts.answer(),
            "context": self.facts.context_words(),
            "tiles": self.facts.tiles(likely),
            "life": life.strip_of(job, self.facts.moves, now=self.facts.at, likely=likely),
            "life_words": life.words_of(job, self.facts.moves, now=self.facts.at),
            "why": why,
            "ahead": self.ahead(),
            "in_line": why["position"] if why else 0,
            "ahead_left": (why["ahead_count"] - len(why["ahead"])) if why else 0,
            "ahead_hidden": not self.viewer.is_admin and settings.OTHER_TENANTS != "named",
            "queue_url": _url("queue", {"cluster": job.cluster.name, "pool": job.pool.name}),
            "json_url": reverse("console:job-json", args=[job.pk]),
            "waterfall_url": reverse("console:job-waterfall", args=[job.pk]),
            "zone": self.facts.at.astimezone(show.zone()).tzname(),
            "terms": terms,
            "beside": self.beside(terms),
            "standings": self.standings(),
            "events": teller.lines(self.facts.moves),
            "attempts": [self.attempt_row(a, members) for a in reversed(self.facts.attempts)],
            "members": members[:MEMBERS_SHOWN],
            "members_left": max(0, len(members) - MEMBERS_SHOWN),
            "last": last,
            "buttons": self.buttons(),
            "runs_as": "" if job.foreign_ref else runs_as(job.cluster),
            "waits": bool(waits),
            "countdown": countdown_of(leaving) if leaving is not None else None,
            "evicted": self.facts.eviction_lines("job"),
            "made_room": self.facts.eviction_lines("beneficiary"),
            "money": self.facts.money,
            "evictions_url": _url("evictions", {"job": str(job.pk), "range": "30d"}),
        }

    def info(self, **changes: Any) -> PageInfo:
        """Return what base.html says around a job."""
        job = self.facts.job
        title = f"{show.cut(show.spoken(job.name))} · Job {job.pk} · {job.cluster.name}"
        attempt = f" · attempt {job.attempt_number}" if job.attempt_number > 1 else ""
        return super().info(
            title=title,
            heading=f"Job {job.pk} · {job.tenant.path}{attempt}",
            stamp=stamp_of([c for c in self.scope.all_clusters if c.pk == job.cluster_id]),
            crumbs=self.crumbs(),
            **changes,
        )

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return cluster, pool, queue, job."""
        job = self.facts.job
        cluster = {"cluster": job.cluster.name}
        both = cluster | {"pool": job.pool.name}
        return (
            Crumb(job.cluster.name, _url("overview", cluster)),
            Crumb(job.pool.name, _url("overview", both)),
            Crumb("Queue", _url("queue", both)),
            Crumb(job.name),
        )

    def foot(self, of: str = "") -> Foot:
        """Return the end of the page, with its own cluster's policy."""
        self.scope = Scope(self.facts.job.cluster, None, (self.facts.job.cluster,), ())
        return super().foot("of members and intervals")

    def terms(self) -> dict[str, Any] | None:
        """Return the terms of the priority as shown text that adds up to the priority shown."""
        if self.facts.why is None:
            return None
        values = {row["name"]: float(row["value"]) for row in self.facts.why["terms"]}
        priority = float(self.facts.why["priority"])
        rows = [
            r for r in self.facts.why["terms"] if values[r["name"]] or r["name"] not in ONLY_IF_ANY
        ]
        exact = [Fraction(values[row["name"]]) for row in rows]
        raised = Fraction(priority) - sum(exact, Fraction(0))
        lines = [{**row, "label": TERM_LABELS[row["name"]], **_weight(row)} for row in rows]
        if abs(raised) >= Fraction(1, 2):  # the terms come to less than the least there is
            lines.append({"name": "least", "label": "Raised", "factor_words": "1 is the least"})
            exact.append(raised)
        shown = apportion(exact, round_half_up(Fraction(priority)))
        row = _Terms(priority, values)
        return {
            "rows": [
                {**line, "shown": show.whole(n)} for line, n in zip(lines, shown, strict=True)
            ],
            "whole": {line["name"]: n for line, n in zip(lines, shown, strict=True)}
            | {"priority": round_half_up(Fraction(priority))},
            "priority": show.whole(priority),
            "bar": marks.term_bar(row, marks.term_scale([row])),
        }

    def beside(self, terms: Mapping[str, Any] | None) -> Beside | None:
        """Return what its cluster counts for it beside these terms; None: it tells nothing."""
        told = self.facts.on_cluster
        if told is None:
            return None
        place = Place({}, told.planned_at, told.planned_nodes)
        job = self.facts.job
        verdict = verdict_of(job) if self.facts.why is not None else None
        plan = plan_words(job.cluster.get_kind_display(), place, verdict, now=self.facts.at)
        return beside_of(told, terms["whole"] if terms else {}, plan)

    def ahead(self) -> list[dict[str, Any]]:
        """Return who goes before it; a link only to what the reader sees."""
        rows = (self.facts.why or {}).get("ahead", ())
        return [
            {
                **row,
                "asks": show.counted(row["gpus"], self.facts.job.pool.unit),
                "link": reverse("console:job", args=[row["id"]]) if row["id"] else "",
            }
            for row in rows
        ]

    def standings(self) -> dict[str, Any] | None:
        """Return the siblings at the first level where its tenant meets others."""
        rows = list((self.facts.why or {}).get("standings", ()))
        if len(rows) < 2:
            return None
        mine = next((row for row in rows if row["mine"]), None)
        return {
            "tenant": mine["tenant"] if mine else self.facts.job.tenant.name,
            "verb": "loses" if mine and (mine["ratio"] or 0) > 1 else "stands",
            "rows": [{**row, "meter": marks.share_meter(row["ratio"])} for row in rows],
        }

    def members(self, last: Attempt | None) -> list[Member]:
        """Return where the newest attempt's members run or ran."""
        if last is None:
            return []
        return list(last.members.select_related("node").order_by("rank"))

    def attempt_row(self, attempt: Attempt, members: Sequence[Member]) -> AttemptRow:
        is_last = bool(self.facts.attempts) and attempt.pk == self.facts.attempts[-1].pk
        ran = ""
        if attempt.started_at is not None:
            ran = show.duration((attempt.ended_at or self.facts.at) - attempt.started_at)
        label = "Runs" if attempt.started_at else "Is told to start"
        if attempt.outcome:
            label = Outcome(attempt.outcome).label
        return AttemptRow(
            attempt.number,
            attempt.created_at,
            attempt.started_at,
            attempt.ended_at,
            ran,
            label,
            attempt.detail,
            node_list(sorted({m.node.name for m in members})) if is_last else "",
        )

    def buttons(self) -> list[dict[str, str]]:
        """Return what the reader may do with the job: links to pages that ask why."""
        job, user = self.facts.job, self.request.user
        found: list[dict[str, str]] = []
        if job.state in TERMINAL:
            return found
        if may_hold(user, job):
            view, text = ("job-release", "Release") if job.held_at else ("job-hold", "Hold")
            found.append({"url": reverse(f"console:{view}", args=[job.pk]), "text": f"{text}…"})
        if may_cancel(user, job) and job.cancel_requested_at is None:
            found.append({"url": reverse("console:job-cancel", args=[job.pk]), "text": "Cancel…"})
        return found

    # For machines -----------------------------------------------------------------------------

    def export(self) -> Export:
        """Return each member's and hold's intervals, exact; beside them the job and its reason."""
        cost = f"cost_{settings.CURRENCY.lower()}"
        columns = ["kind", "attempt", "rank", "node", "gpus", "started_at", "ended_at", "gpu_hours"]
        return Export(
            f"job-{self.facts.job.pk}",
            [*columns, *([cost] if self.facts.money else [])],
            self.rows(),
            self.about(),
        )

    def rows(self) -> Iterator[list[Any]]:
        """Yield the intervals of members and holds; one that goes on counts up to the last look."""
        now_us = observed_until(self.facts.job.cluster)
        prices = Prices([self.facts.job.pool])
        numbers = {attempt.pk: attempt.number for attempt in self.facts.attempts}
        intervals = Interval.objects.filter(
            job=self.facts.job, kind__in=[IntervalKind.MEMBER, IntervalKind.HOLD]
        ).select_related("node", "reservation")
        for one in intervals.order_by("start_us", "rank", "id"):
            end = max(one.start_us, now_us) if one.end_us is None else one.end_us
            amount = prices.amount(one.pool_id, one.gpus, one.start_us, end)
            number = numbers.get(one.attempt_id or 0)
            if one.reservation is not None:
                number = one.reservation.attempt_number
            row = [one.kind, number, one.rank, one.node.name if one.node else None, one.gpus]
            row += [
                show.iso(from_us(one.start_us)),
                None if one.end_us is None else show.iso(from_us(one.end_us)),
            ]
            row.append(_exact(amount.gpu_hours))
            if self.facts.money:
                row.append(_exact(amount.money) if amount.has_money else None)
            yield row

    def about(self) -> dict[str, Any]:
        """Return the job itself, and why it waits, in the words of the page."""
        self.now = self.facts.at
        job = self.facts.job
        total = self.facts.cost.total
        cost: dict[str, str | None] = {
            "gpu_hours": _exact(total.gpu_hours),
            "gang_wait_gpu_hours": _exact(self.facts.cost.gang_wait.gpu_hours),
        }
        if self.facts.money:
            cost["money"] = str(scaled(round_cents(total.money), 2)) if total.has_money else None
            cost["currency"] = settings.CURRENCY
        return {
            "job": {
                "id": job.pk,
                "name": job.name,
                "tenant": job.tenant.path,
                "cluster": job.cluster.name,
                "pool": job.pool.name,
                "state": job.state,
                "outcome": job.outcome or None,
                "size": job.size,
                "gpus_per_member": job.gpus_per_member,
                "attempt": job.attempt_number,
                "submitted_at": show.iso(job.submitted_at),
                "ended_at": show.iso(job.ended_at) if job.ended_at else None,
                "answer": self.facts.answer(),
            },
            "cost": cost,
            "why": self.facts.why,
            "evictions": [
                dict(zip(eviction_export.columns(money=self.facts.money), row, strict=True))
                for row in eviction_export.rows(
                    self.facts.evictions, self.viewer, money=self.facts.money
                )
            ],
        }


def _url(view: str, query: Mapping[str, str]) -> str:
    return f"{reverse(f'console:{view}')}?{urlencode(query)}"


def _exact(value: Fraction) -> str:
    """Write an exact amount for machines, to nine decimals."""
    return str(scaled(round_half_up(value, 9), 9))


def _weight(row: Mapping[str, Any]) -> dict[str, str]:
    weight = row["weight"]
    return {"weight_words": show.whole(weight) if weight else ""}


class _Terms:
    """The terms of one priority, as the term bar reads them."""

    def __init__(self, priority: float, values: Mapping[str, float]) -> None:
        self.priority = priority
        self.term_fair_share = values.get("fair_share", 0.0)
        self.term_age = values.get("age", 0.0)
        self.term_size = values.get("size", 0.0)
        self.term_queue = values.get("queue", 0.0)
        self.term_class = values.get("class", 0.0)
        self.term_boost = values.get("boost", 0.0)
        self.term_nice = values.get("nice", 0.0)
