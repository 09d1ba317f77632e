"""One job for its page: what is read of it, and the sentences and tiles that say it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any

from django.db.models import Exists, OuterRef, Q
from django.http import Http404
from django.urls import reverse

from apps.common import show
from apps.console.eviction_rows import Line, clock, filled, known_side, lines_of, tells_money
from apps.console.marks import Tile
from apps.console.money_seen import sees_money
from apps.console.people import Viewer
from apps.console.story import Evicted, Wait
from apps.jobs.eviction_facts import loss_of, tenants_in, with_sides
from apps.jobs.eviction_words import asked, happened, what_it_cost
from apps.jobs.models import Attempt, Eviction, Job, Move
from apps.jobs.states import TERMINAL, WAITING, JobState, Outcome
from apps.ledger.selectors import JobCost, Prices, job_cost
from apps.scheduling.advised import nice_of
from apps.scheduling.models import Nice, NiceState
from apps.scheduling.own_lines import OnCluster, on_cluster
from apps.scheduling.selectors import explain

NO_START = {
    "held": "on hold",
    "ceiling": "at its ceiling",
    "weightless": "weight 0",
    "never_fits": "it never fits",
    "paused": "its tenant is paused",
    "no_nodes": "the pool has no usable node",
    "guarantee": "it stays within a guarantee",
    "leaving": "once those it waits for have left",
    "deferred": "it may evict, but later",
    "watched": "Rollcall only watches",
    "elsewhere": "the cluster starts it",
}
STUCK = frozenset({"held", "paused", "never_fits", "dependency"})
MOST_EVICTIONS = 50
STARTS_ITSELF = "Nothing about it is broken: it starts by itself."


def job_or_404(viewer: Viewer, pk: int) -> Job:
    """Return a job the reader sees in full; one of another tenant is the same 404 as none."""
    rows = Job.objects.filter(viewer.own()).select_related(
        "tenant", "cluster__policy", "pool", "priority_class", "submitted_by", "held_by"
    )
    part = Eviction.objects.filter(Q(job=OuterRef("pk")) | Q(beneficiary=OuterRef("pk")))
    rows = rows.annotate(has_evictions=Exists(part))
    job = rows.filter(pk=pk).first()
    if job is None:
        raise Http404
    return job


def foreign_words(job: Job, advised: str = "") -> str:
    """Say who submitted a job to the cluster itself, and what the cluster says of its wait.

    ``advised``: what Rollcall had the cluster do with it; else it only looks on.
    """
    told = job.workload
    who = f" by {told['user']}" if told.get("user") else ""
    account = f", account {told['account']}" if told.get("account") else ""
    qos = f", QOS {told['qos']}" if told.get("qos") else ""
    words = f"Submitted to {job.cluster} itself{who}{account}{qos}{'.' if advised else ': Rollcall only looks on.'}"
    if job.state in WAITING and told.get("reason"):
        words += f" The cluster says: {told['reason']}."
    if job.state in WAITING and told.get("tasks", 1) > 1:
        words += f" {show.whole(told['tasks'])} tasks of it wait alike."
    return f"{words} {advised}".strip()


def advised_words(nice: Nice, viewer: Viewer) -> str:
    """Say which nice a job was given and why, or that somebody changed it after that."""
    asked = f"Rollcall asked {nice.job.cluster.get_kind_display()} for nice {nice.asked:,}"
    if nice.state == NiceState.BY_HAND:
        return f"{asked}; somebody changed its nice or priority, and it is left alone since."
    if nice.other is None:
        return f"{asked}, so that it starts in its turn."
    side = "before" if nice.sooner else "after"
    return f"{asked}, so that it starts {side} {show.cut(viewer.told(nice.other).text)}."


class JobFacts:
    """A job and all that its page says of it; each thing is read once."""

    def __init__(self, job: Job, viewer: Viewer, *, machine: bool = False) -> None:
        self.job = job
        self.viewer = viewer
        self.machine = machine  # read by one: instants in sentences are ISO

    @cached_property
    def at(self) -> datetime:
        return self.job.cluster.now()

    @cached_property
    def moves(self) -> list[Move]:
        return list(self.job.moves.select_related("by").order_by("id"))

    @cached_property
    def attempts(self) -> list[Attempt]:
        return list(self.job.attempts.order_by("number"))

    @property
    def last(self) -> Attempt | None:
        """Return the newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @cached_property
    def prices(self) -> Prices:
        return Prices([self.job.pool])

    @cached_property
    def cost(self) -> JobCost:
        return job_cost(self.job, prices=self.prices)

    @cached_property
    def why(self) -> dict[str, Any] | None:
        if self.job.state not in WAITING:
            return None
        why = explain(self.job, self.viewer.user, show.iso if self.machine else self.when)
        return None if why is None or self.is_outdated(why) else why

    @cached_property
    def on_cluster(self) -> OnCluster | None:
        """Return what its cluster's own scheduler has of it; None: nothing is told of that."""
        why = self.why
        if why is None:
            return on_cluster(self.job, (), None)
        return on_cluster(self.job, why["terms"], float(why["priority"]))

    def is_outdated(self, why: Mapping[str, Any]) -> bool:
        """Return whether it was held or released after the tick whose word this is."""
        held = self.job.held_at
        if held is None:
            return bool(why["code"] == "held")
        return why["code"] != "held" and (why["at"] is None or held > why["at"])

    def when(self, at: datetime) -> str:
        """Write an instant as the page does."""
        return show.instant(at, now=self.at)

    @cached_property
    def money(self) -> bool:
        return sees_money(self.viewer)

    def waits_told(self) -> Mapping[datetime, Wait]:
        """Return what the job held while it gathered, in words, by the start of each reservation."""
        url = reverse("console:job-waterfall", args=[self.job.pk])
        found: dict[datetime, Wait] = {}
        for (reservation, since), amount in self.cost.waits.items():
            if amount.gpu_hours:
                cost = show.money(amount.money) if self.money and amount.has_money else ""
                link = f"{url}?reservation={reservation}"
                found[since] = Wait(show.gpu_hours(amount.gpu_hours), cost, link)
        return found

    # Evictions ----------------------------------------------------------------------------------

    @cached_property
    def evictions(self) -> list[Eviction]:
        """Return the newest evictions it was part of, on either side."""
        if not getattr(self.job, "has_evictions", True):
            return []
        rows = Eviction.objects.filter(Q(job=self.job) | Q(beneficiary=self.job))
        return list(with_sides(rows).defer("considered").order_by("-id")[:MOST_EVICTIONS])

    @cached_property
    def eviction_paths(self) -> dict[int, str]:
        return tenants_in(self.evictions)

    @property
    def leaving(self) -> Eviction | None:
        """Return the eviction by which it is leaving now."""
        return next(
            (e for e in self.evictions if e.job_id == self.job.pk and e.ended_at is None), None
        )

    def eviction_lines(self, side: str) -> list[Line]:
        """Return the evictions in which it was on one side, newest first."""
        mine = [one for one in self.evictions if getattr(one, f"{side}_id") == self.job.pk]
        return lines_of(mine, self.viewer, money=self.money, paths=self.eviction_paths)

    def happened(self, eviction: Eviction) -> str:
        """Say what an eviction did, to whom and for whom."""
        template = happened(eviction, known_side(eviction, self.eviction_paths))
        return filled(template, eviction, self.viewer, self.eviction_paths, html=False)

    def asked(self, eviction: Eviction) -> str:
        """Say what a victim was asked, for whom and why, with links."""
        template = asked(eviction, known_side(eviction, self.eviction_paths))
        return filled(template, eviction, self.viewer, self.eviction_paths, html=True)

    def cost_of(self, eviction: Eviction, *, html: bool = False) -> str:
        """Say how a victim left, and what was lost."""
        money = self.money and tells_money(self.viewer, eviction.job)
        template = what_it_cost(eviction, loss_of(eviction), clock(eviction), money=money)
        return filled(template, eviction, self.viewer, self.eviction_paths, html=html)

    def evicted_told(self) -> Mapping[int, Evicted]:
        """Return what the story says of each eviction of it, by id."""
        return {
            one.pk: Evicted(
                self.asked(one),
                self.cost_of(one, html=True),
                reverse("console:eviction", args=[one.pk]),
            )
            for one in self.evictions
        }

    # Sentences ----------------------------------------------------------------------------------

    def answer(self) -> str:
        """Return the sentence with why it waits, that it runs, or how it ended."""
        job = self.job
        name = show.cut(show.spoken(job.name))
        if job.state in WAITING:
            if self.why is None:
                if job.held_at is not None:
                    by = f" by {job.held_by}" if job.held_by else ""
                    return f"{name} is on hold{by} since {self.when(job.held_at)}. Release it and it can run."
                released = self.moves and self.moves[-1].what == "released"
                what = "released" if released else "submitted"
                return f"{name} was {what} after the newest tick; the next decides."
            return f"{name} waits. {self.why['sentence']}"
        last = self.last
        if job.state == JobState.ADMITTED:
            return f"{name} is admitted: all of its {show.counted(job.gpus, job.pool.unit)} start together."
        if self.leaving is not None:
            return self.happened(self.leaving)
        if job.state not in TERMINAL:
            since = last.started_at if last is not None and last.started_at else job.state_since
            held = f"{show.counted(job.gpus, job.pool.unit)} of {job.pool.name}"
            if job.state == JobState.SUSPENDED:
                return f"{name} is suspended on {held}."
            return f"{name} runs on {held} for {show.duration(self.at - since)} now."
        return f"{name} {self.ending(last)}"

    def ending(self, last: Attempt | None) -> str:
        """Return how an ended job ended."""
        job = self.job
        ran = None
        if last is not None and last.started_at is not None and last.ended_at is not None:
            ran = show.duration(last.ended_at - last.started_at)
        if job.state == JobState.SUCCEEDED:
            return f"succeeded after {ran}." if ran else "succeeded."
        if job.outcome == Outcome.TIMED_OUT:
            return (
                f"reached its limit after {ran} and was stopped." if ran else "reached its limit."
            )
        if job.state == JobState.CANCELLED:
            who = next((m.by for m in reversed(self.moves) if m.what.startswith("cancel")), None)
            by = f" by {who}" if who else ""
            waited = show.duration((job.ended_at or self.at) - job.submitted_at)
            return (
                f"was cancelled{by} after running {ran}."
                if ran
                else f"was cancelled{by} after waiting {waited}."
            )
        return f"failed after {ran}." if ran else "failed."

    def context_words(self) -> str:
        """Return one or two sentences below the answer."""
        job = self.job
        if job.foreign_ref:
            nice = nice_of(job) if job.state in WAITING else None
            return foreign_words(job, "" if nice is None else advised_words(nice, self.viewer))
        if job.state in WAITING:
            stuck = self.why is None or self.why["code"] in STUCK
            itself = "" if stuck else STARTS_ITSELF
            standing = next((s for s in (self.why or {}).get("standings", ()) if s["mine"]), None)
            if standing is None or standing["ratio"] is None:
                return itself
            used = (
                f"{standing['tenant']} has used {show.ratio(standing['ratio'])} its share. {itself}"
            )
            return used.strip()
        if job.cancel_requested_at and job.state not in TERMINAL:
            return "It was asked to end; the cluster has not said yet that it left."
        if self.leaving is not None:
            return self.cost_of(self.leaving)
        if job.state not in TERMINAL and self.last is not None and self.last.demoted_at:
            since = show.instant(self.last.demoted_at, now=self.at)
            return (
                f"Demoted since {since}: it is outside its team’s guarantee and leaves first next"
                " time."
            )
        if job.state == JobState.FAILED and self.attempts and self.attempts[-1].detail:
            return f"The cluster says: {self.attempts[-1].detail}."
        return ""

    def tiles(self, likely: datetime | None) -> list[Tile]:
        """Return what it asks for, how long it waits, when it starts, what it cost."""
        return [self.asks_tile(), self.time_tile(), self.start_tile(likely), self.cost_tile()]

    def asks_tile(self) -> Tile:
        job = self.job
        limit = f"limit {show.duration(job.limit_seconds)}" if job.limit_seconds else "no limit"
        parts = [self.units(), limit]
        if job.topology != "none":
            parts.insert(1, f"all in one {'rack' if job.topology == 'rack' else 'NVLink domain'}")
        value = f"{show.whole(job.size)} × {show.whole(job.gpus_per_member)}"
        return Tile("Asks for", value, job.pool.name, ", ".join(parts))

    def units(self) -> str:
        """Return what it asks for: of slices, what part of physical GPUs they are too."""
        pool, count = self.job.pool, show.counted(self.job.gpus, self.job.pool.unit)
        if pool.unit == "GPU":
            return count
        part = Fraction(pool.fraction_numerator, pool.fraction_denominator) * self.job.gpus
        return f"{count} ({show.decimals(part, 2)} GPU)"

    def time_tile(self) -> Tile:
        job = self.job
        started = [a for a in self.attempts if a.started_at]
        if job.state in WAITING:
            why = ""
            if self.attempts and self.attempts[-1].ended_at:
                since = show.duration(self.at - self.attempts[-1].ended_at)
                why = f"{since} since attempt {self.attempts[-1].number} ended"
            elif job.begin_at and job.begin_at > self.at:
                why = f"not before {show.instant(job.begin_at, now=self.at)}"
            return Tile("Waiting", show.duration(self.at - job.submitted_at), "", why)
        if not started:
            return Tile(
                "Waited",
                show.duration((job.ended_at or self.at) - job.submitted_at),
                "",
                "it never ran",
            )
        first, last = started[0], started[-1]
        assert first.started_at is not None and last.started_at is not None  # noqa: S101, PT018  chosen above
        waited = show.duration(first.started_at - job.submitted_at)
        label = "Runs" if last.ended_at is None else "Ran"
        ran = show.duration((last.ended_at or self.at) - last.started_at)
        return Tile(label, ran, "", f"waited {waited} to start")

    def start_tile(self, likely: datetime | None) -> Tile:
        job = self.job
        if job.state in WAITING:
            if likely is not None:
                text = show.instant(likely, now=self.at)
                return Tile("Likely start", text, "", "if what runs uses all of its limit")
            code = (self.why or {}).get("code", "")
            why = NO_START.get(code, "what runs has no limit, or others are ahead")
            return Tile(
                "Likely start", "no estimate", "", why if self.why else "decided at the next tick"
            )
        last = self.last
        if self.leaving is not None:
            leaves = clock(self.leaving)(self.leaving.leave_by)
            return Tile("Leaves by", leaves, "", "as it was asked; its room is promised")
        if job.state in TERMINAL:
            ended = show.instant(job.ended_at or self.at, now=self.at)
            return Tile(
                "Ended", ended, "", f"submitted {show.instant(job.submitted_at, now=self.at)}"
            )
        if last is None or last.started_at is None or not job.limit_seconds:
            return Tile("Ends by", "no limit", "", "it runs until it ends by itself")
        by = last.started_at + timedelta(seconds=job.limit_seconds)
        return Tile("Ends by", show.instant(by, now=self.at), "", "by its limit; it may end sooner")

    def cost_tile(self) -> Tile:
        run, held = self.cost.run, self.cost.gang_wait
        total = self.cost.total
        hours = show.gpu_hours(total.gpu_hours)
        parts = f"{show.gpu_hours(run.gpu_hours)} run, {show.gpu_hours(held.gpu_hours)} gang wait"
        if not total.gpu_hours:
            parts = "it has held no GPU yet" if self.job.state not in TERMINAL else "it held no GPU"
            hours = "0.00 GPUh"
        label = "Cost" if self.job.state in TERMINAL else "Cost so far"
        if not self.money:
            return Tile("GPU time", hours, "", parts)
        if not total.has_money:
            return Tile(label, "no price", "", f"{hours}: {parts}")
        why = f"{hours}: {parts}" if total.gpu_hours else parts
        return Tile(label, show.money(total.money), "", why)
