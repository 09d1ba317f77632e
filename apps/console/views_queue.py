"""The Queue page: in what order jobs run next, and why each waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.backends.models import Cluster
from apps.common import show
from apps.common.templatetags.rollcall import name as shown_name
from apps.common.time import from_us
from apps.console import line
from apps.console.eviction_rows import leaving_words, open_evictions_of
from apps.console.filters import Chips, Filter, chips_of
from apps.console.line import Asked, Totals
from apps.console.marks import Badge, TermBar, badge, term_bar, term_legend, term_scale
from apps.console.pages import Export, Page
from apps.console.paging import slice_of
from apps.console.people import Told
from apps.console.reasons import linked_reasons, plain_reasons
from apps.console.room import room_in
from apps.console.units import gpus_text, unit_of
from apps.jobs.models import Job
from apps.jobs.states import WAITING, JobState
from apps.scheduling.models import Verdict

NO_ESTIMATE = {
    "held": "on hold",
    "dependency": "waits for another job",
    "begin_time": "not before its begin time",
    "paused": "its team is paused",
    "never_fits": "never fits",
    "no_nodes": "no node is up",
    "weightless": "weight 0",
    "ceiling": "ceiling",
    "guarantee": "stays within a guarantee",
    "leaving": "once victims have left",
    "deferred": "may evict later",
    "watched": "only watched",
    "elsewhere": "the cluster starts it",
}
SECONDS_MATTER = frozenset({"leaving", "deferred"})
BATCH = 500


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the queue as a reader sees it."""

    anchor: str
    place: str
    told: Told
    second: str
    badge: Badge
    gpus: str
    shape: str
    unit: str
    waiting: timedelta | None
    priority: float | None
    bar: TermBar | None
    why: str
    start: str
    start_note: str


def likely_start(job: Job, verdict: Verdict | None, now: datetime) -> tuple[str, str]:
    """Return when a waiting job is likely to start, and what that supposes."""
    if verdict is None:
        return "no estimate", "not judged yet"
    expected = verdict.detail.get("forecast_us")
    if expected is not None:
        return f"by {show.instant(from_us(expected), now=now)}", "if limits are used up"
    return "no estimate", NO_ESTIMATE.get(verdict.code, "behind others")


class QueuePage(Page):
    """The line, a page of it, and the same rows as CSV and JSON."""

    key = "queue"
    heading = "Queue"
    template = "console/queue.html"
    parameters: ClassVar[frozenset[str]] = frozenset(
        {"tenant", "state", "reason", "size", "waiting_longer", "sort", "after", "before"}
    )

    def build(self) -> dict[str, Any]:
        """Return a page of the line, the answer over all of it, and what narrows it."""
        tenants = line.tenants_offered(self.viewer)
        asked = line.read_asked(self.query, tenants)
        matching = self._matching(asked)
        page = slice_of(matching, line.keys_of(asked), self.query)
        rows = self.rows(page.rows, asked)
        verdicts = [v for v in map(line.verdict_on, page.rows) if v is not None]
        chips = self._chips(tenants, asked)
        totals = line.totals_of(matching)
        words = pager_words(len(rows), totals, asked)
        return {
            "asked": asked,
            "rows": rows,
            "totals": totals,
            "chips": chips,
            "pager": page.pager(self.query, words, names=("ahead", "behind")),
            "terms": term_legend([v for v in verdicts if self._told_verdict(v, page.rows)]),
            "sorts": {
                sort: self.query.url({"sort": None if sort == "priority" else sort})
                for sort in line.SORTS
            },
            "zone": show.zone_name(self.now),
            "page": self.info(foot=self.foot(of=f"of these {show.counted(totals.jobs, 'row')}")),
            **self._answer(page.rows),
        }

    def export(self) -> Export:
        """Return all rows of these filters, as this reader may see them."""
        asked = line.read_asked(self.query, line.tenants_offered(self.viewer))
        matching = self._matching(asked)
        keys = line.keys_of(asked)
        ordered = matching.order_by(*(f"{'-' if key.descending else ''}{key.name}" for key in keys))
        return Export("queue", COLUMNS, self._export_rows(ordered.iterator(BATCH)))

    # Rows -----------------------------------------------------------------------------------------

    def _matching(self, asked: Asked) -> Any:
        jobs = line.rows_of(self.scope, self.viewer, asked)
        # When another team's job was submitted is not told: that order is of one's own rows alone.
        if asked.waits and asked.sort == "waiting" and not line.tells_all(self.viewer):
            jobs = jobs.filter(self.viewer.own())
        return jobs

    def _clocks(self) -> dict[int, Cluster]:
        return {cluster.pk: cluster for cluster in self.scope.clusters}

    def _told_verdict(self, verdict: Verdict, jobs: Sequence[Job]) -> bool:
        return any(job.pk == verdict.job_id and line.is_told(self.viewer, job) for job in jobs)

    def rows(self, jobs: Sequence[Job], asked: Asked) -> list[Row]:
        """Return jobs as rows; what another team's row may not say is not in it."""
        told = [job for job in jobs if line.is_told(self.viewer, job)]
        judged = [v for v in map(line.verdict_on, told) if v is not None]
        scale = term_scale(judged)
        clocks = self._clocks()

        def when(job: Job) -> Callable[[datetime], str]:
            now, verdict = clocks[job.cluster_id].now(), line.verdict_on(job)
            style = "seconds" if verdict is not None and verdict.code in SECONDS_MATTER else ""
            return lambda at: show.instant(at, now=now, style=style)

        reasons = linked_reasons(told, self.viewer, when) if asked.waits else {}
        if not asked.waits:
            leaving = [job.pk for job in told if job.state == JobState.PREEMPTING]
            reasons = {
                pk: leaving_words(one, self.viewer)
                for pk, one in open_evictions_of(leaving).items()
            }
        many = len(self.scope.clusters) > 1
        return [
            self._row(job, clocks[job.cluster_id], scale, reasons.get(job.pk, ""), many=many)
            for job in jobs
        ]

    def _row(self, job: Job, cluster: Cluster, scale: float, why: str, *, many: bool) -> Row:
        verdict = line.verdict_on(job)
        now = cluster.now()
        told = self.viewer.told(job)
        open_ = line.is_told(self.viewer, job)
        waits = job.state in WAITING
        where = f"{cluster.name} · " if many else ""
        start, note = likely_start(job, verdict, now) if open_ and waits else ("", "")
        if not waits:
            why = why or self._over_or_running(job, now)
        return Row(
            anchor=f"job-{job.pk}" if open_ else f"line-{cluster.pk}-{job.place}",  # type: ignore[attr-defined]  # annotated
            place=show.whole(verdict.position + 1) if verdict is not None and waits else "",
            told=told,
            second=f"{where}{job.tenant.path} · {job.pk}" if open_ else where.rstrip(" ·"),
            badge=badge(job),
            gpus=show.whole(job.gpus),
            shape=f"{show.whole(job.size)} × {show.whole(job.gpus_per_member)}",
            unit=f"{job.pool.unit}s",
            waiting=line.waited(job, job.ended_at or now) if open_ else None,
            priority=verdict.priority if verdict is not None and open_ and waits else None,
            bar=term_bar(verdict, scale) if verdict is not None and open_ and waits else None,
            why=why,
            start=start,
            start_note=note,
        )

    def _over_or_running(self, job: Job, now: datetime) -> str:
        since = show.duration(max(timedelta(), now - job.state_since))
        if job.ended_at is None:
            return f"{badge(job).label} for {since}."
        return f"Ended {show.instant(job.ended_at, now=now)}."

    # The answer -----------------------------------------------------------------------------------

    def _answer(self, shown: Sequence[Job]) -> dict[str, Any]:
        """Return the sentence with the number that matters, and what stands around it."""
        waiting = line.own_totals(self.scope, self.viewer)
        first = None
        if waiting.first is not None:
            on_page = (job for job in shown if is_at(job, waiting.first))
            first = next(on_page, None) or line.job_at(self.scope, self.viewer, waiting.first)
        room, unit = room_in(self.scope.pools), unit_of(self.scope.pools)
        answer = format_html(
            "{}{}",
            waiting_words(
                waiting, unit.counted(waiting.gpus, self.scope.pool or ""), self._whose()
            ),
            self._first(first, alone=waiting.jobs == 1),
        )
        verb = "is" if room.free == unit.fraction else "are"
        held = ""
        if room.held:
            many = gpus_text(room.held / unit.fraction)
            held = f" {many} {'is' if many == '1' else 'are'} held for gangs that gather."
        return {
            "answer": answer,
            "free": f"{unit.counted(room.free)} {verb}",
            "context": f"{unit.counted(room.free)} {verb} free.{held}{self._order_words(first)}",
        }

    def _whose(self) -> str:
        """Return whose jobs the answer counts: a lead's and a member's are those of their teams."""
        if self.viewer.is_admin:
            return ""
        tops = self.viewer.sight.outermost()
        return f" of {show.cut(tops[0])}" if len(tops) == 1 else " of your teams"

    def _first(self, first: Job | None, *, alone: bool) -> str | SafeString:
        if first is None:
            return ""
        verdict = line.verdict_on(first)
        assert verdict is not None  # noqa: S101  first_in_line returns judged jobs only
        start, _ = likely_start(first, verdict, self.now)
        when = f", likely {start}" if start != "no estimate" else ""
        place = "" if verdict.position == 0 else f", {ordinal(verdict.position + 1)} in line"
        link = format_html(
            '<a href="{}">{}</a>', reverse("console:job", args=[first.pk]), shown_name(first.name)
        )
        if alone:
            return format_html(" It is {}{}{}.", link, place, when)
        return format_html(" The first{} is {}{}.", place and f" of them{place},", link, when)

    def _order_words(self, first: Job | None) -> str:
        verdict = None if first is None else line.verdict_on(first)
        return "" if verdict is None else f" Order as sorted by tick {show.whole(verdict.tick_id)}."

    def _chips(self, tenants: Sequence[str], asked: Asked) -> Chips:
        return chips_of(
            self.query,
            (
                Filter("state", "state", line.STATES, default=("waiting", "waiting")),
                Filter("tenant", "tenant", tuple((path, path) for path in tenants)),
                Filter("reason", "reason", tuple((c, c.replace("_", " ")) for c in line.REASONS)),
                Filter("size", "size", placeholder="members, at least"),
                Filter("waiting_longer", "waiting longer than", placeholder="such as 4h"),
            ),
        )

    # For machines ---------------------------------------------------------------------------------

    def _export_rows(self, jobs: Iterable[Job]) -> Iterator[list[Any]]:
        batch: list[Job] = []
        for job in jobs:
            batch.append(job)
            if len(batch) == BATCH:
                yield from self._export_batch(batch)
                batch = []
        yield from self._export_batch(batch)

    def _export_batch(self, jobs: Sequence[Job]) -> Iterator[list[Any]]:
        told = [job for job in jobs if line.is_told(self.viewer, job)]
        reasons = plain_reasons([job for job in told if job.state in WAITING], self.viewer)
        clocks = self._clocks()
        for job in jobs:
            verdict = line.verdict_on(job)
            cluster = clocks[job.cluster_id]
            open_ = line.is_told(self.viewer, job)
            seen = verdict if open_ else None
            expected = None if seen is None else seen.detail.get("forecast_us")
            yield [
                None if verdict is None else verdict.position + 1,
                job.pk if open_ else None,
                self.viewer.told(job).text,
                job.tenant.path if open_ else None,
                cluster.name,
                job.pool.name,
                job.state,
                job.size,
                job.gpus_per_member,
                job.gpus,
                job.submitted_at if open_ else None,
                int(line.waited(job, job.ended_at or cluster.now()).total_seconds())
                if open_
                else None,
                None if seen is None else seen.priority,
                *(None if seen is None else getattr(seen, column) for column in TERM_COLUMNS),
                None if seen is None else seen.code,
                None if seen is None else seen.needed,
                None if seen is None else seen.available,
                reasons.get(job.pk),
                None if expected is None else from_us(expected),
                None if verdict is None else verdict.tick_id,
            ]


TERM_COLUMNS = (
    "term_fair_share", "term_age", "term_size", "term_queue", "term_class", "term_boost",
    "term_nice",
)  # fmt: skip
COLUMNS = (
    "position", "job_id", "job", "tenant", "cluster", "pool", "state", "members",
    "gpus_per_member", "gpus", "submitted_at", "waiting_seconds", "priority", *TERM_COLUMNS,
    "reason_code", "needed", "available", "reason", "likely_start_at", "tick_id",
)  # fmt: skip


def is_at(job: Job, place: int) -> bool:
    """Return whether a loaded job waits at a place of the line."""
    verdict = line.verdict_on(job)
    return verdict is not None and verdict.position == place and job.state in WAITING


def waiting_words(waiting: Totals, gpus: str, whose: str = "") -> str:
    """Return the first sentence of the page; ``gpus`` says for what, ``whose`` is `` of nlp``."""
    if waiting.jobs == 0:
        return f"No job{whose} waits." if whose else "Nothing waits."
    verb = "waits" if waiting.jobs == 1 else "wait"
    jobs = f"{show.counted(waiting.jobs, 'job')}{whose}"
    return f"{jobs} {verb} for {gpus}."


def pager_words(shown: int, totals: Totals, asked: Asked) -> str:
    """Return how many of the rows this page shows."""
    order = {"waiting": "longest first", "gpus": "largest first"}.get(asked.sort, "next first")
    if not asked.waits:
        order = "newest first"
    of = f"{show.whole(line.MOST_COUNTED)}+" if totals.capped else show.whole(totals.jobs)
    return f"{show.whole(shown)} of {of} {'row' if of == '1' else 'rows'}, {order}"


def ordinal(number: int) -> str:
    """Write a place: 1st, 2nd, 3rd, 11th."""
    last = number % 100
    ending = "th" if 10 <= last <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{show.whole(number)}{ending}"
