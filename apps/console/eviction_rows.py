"""Evictions as lines of a table, as one reader may see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.common import show
from apps.common.templatetags.rollcall import name as shown_name
from apps.console.people import Told, Viewer
from apps.jobs.eviction_facts import Stood, loss_of, stood, team_told, tenants_in
from apps.jobs.eviction_words import how_it_left
from apps.jobs.models import Eviction, Job
from apps.jobs.states import ASKED, EvictionMode, EvictionOutcome

NOT_KNOWN = "known once it has left"
NOT_TOLD = "what another team lost is told in GPU-hours"


@dataclass(frozen=True, slots=True)
class Countdown:
    """What is left of a grace; ``live``: the page may count on, as the cluster's clock is ours."""

    seconds: int
    live: bool

    @property
    def words(self) -> str:
        """Return what is left, in words."""
        return f"{show.duration(self.seconds)} left" if self.seconds else "any moment now"

    @property
    def html(self) -> SafeString:
        """Return the words as what static/js/countdown.js counts down, where the clock is ours."""
        if not self.live:
            return format_html('<span class="countdown">{}</span>', self.words)
        return format_html(
            '<span class="countdown" data-countdown="{}">{}</span>', self.seconds, self.words
        )


@dataclass(frozen=True, slots=True)
class Line:
    """One eviction; ``gpu_hours`` and ``cost`` are empty where ``lost_why`` or ``cost_why`` says why."""

    id: int
    url: str
    clock: str
    day: str
    iso: str
    victim: Told
    victim_note: str
    beneficiary: Told
    beneficiary_note: str
    rule: str
    mode: str
    how: str
    tone: str
    countdown: Countdown | None
    thrashes: bool
    within_hour: int
    before: int | None
    after: int | None
    team: str
    gpu_hours: str
    lost_why: str
    cost: str
    cost_why: str


def clock(eviction: Eviction) -> Callable[[datetime], str]:
    """Return how instants are written beside an eviction: to the second, by its cluster's day."""
    now = eviction.cluster.now()
    return lambda at: show.instant(at, now=now, style="seconds")


def countdown_of(eviction: Eviction) -> Countdown | None:
    """Return what is left of the grace of a victim that still has to go; ``cluster`` is loaded."""
    if eviction.ended_at is not None or eviction.mode not in ASKED:
        return None
    left = max(timedelta(), eviction.leave_by - eviction.cluster.now())
    return Countdown(int(left.total_seconds()), live=eviction.cluster.clock_now is None)


def tells_money(viewer: Viewer, victim: Job) -> bool:
    """Return whether the price of what a victim lost is told: to its own side, or where all is."""
    return settings.OTHER_TENANTS == "named" or viewer.sees(victim.tenant)


def side_note(viewer: Viewer, job: Job, gpus: int) -> str:
    """Return the second line of a side: its tenant where it is seen, and its size."""
    size = show.counted(gpus, "GPU")
    seen = settings.OTHER_TENANTS == "named" or viewer.sees(job.tenant)
    return f"{show.cut(job.tenant.path)} · {size}" if seen else size


def team_words(viewer: Viewer, side: Stood | None, paths: Mapping[int, str]) -> str:
    """Return whose figures a standing has, and what they were entitled to."""
    if side is None or side.tenant_id not in paths:
        return ""
    team = show.cut(team_told(viewer.sight, paths[side.tenant_id]))
    if side.entitlement is None:
        return team
    return f"{team}, entitled to {show.whole(side.entitlement)}"


def lines_of(
    evictions: Sequence[Eviction],
    viewer: Viewer,
    *,
    money: bool,
    paths: Mapping[int, str] | None = None,
) -> list[Line]:
    """Return evictions as lines; ``with_sides`` has loaded all but ``paths``, which are one query."""
    known = tenants_in(evictions) if paths is None else paths
    return [line_of(one, viewer, known, money=money) for one in evictions]


def line_of(eviction: Eviction, viewer: Viewer, paths: Mapping[int, str], *, money: bool) -> Line:
    """Return one eviction as a line; ``paths`` are of the tenants in its standings."""
    side = stood(eviction, "victim")
    loss = loss_of(eviction)
    why = NOT_KNOWN if eviction.ended_at is None else "not written down"
    cost, cost_why = "", why
    if loss is not None:
        cost_why = NOT_TOLD
        if money and tells_money(viewer, eviction.job):
            cost, cost_why = (
                ("", "no price") if loss.money is None else (show.money(loss.money), "")
            )
    now = eviction.cluster.now()
    local, today = eviction.at.astimezone(show.zone()), now.astimezone(show.zone()).date()
    exceeded = eviction.outcome == EvictionOutcome.GRACE_EXCEEDED
    return Line(
        id=eviction.pk,
        url=reverse("console:eviction", args=[eviction.pk]),
        clock=f"{local:%H:%M:%S}",
        day="Today" if local.date() == today else show.instant(eviction.at, now=now, style="date"),
        iso=show.iso(eviction.at),
        victim=viewer.told(eviction.job),
        victim_note=side_note(viewer, eviction.job, eviction.gpus),
        beneficiary=viewer.told(eviction.beneficiary),
        beneficiary_note=side_note(viewer, eviction.beneficiary, eviction.beneficiary.gpus),
        rule=eviction.rule,
        mode=eviction.mode,
        how=how_it_left(eviction, clock(eviction)),
        tone="bad" if exceeded else "",
        countdown=countdown_of(eviction),
        thrashes=eviction.thrashes,
        within_hour=eviction.within_hour,
        before=None if side is None else side.before,
        after=None if side is None else side.after,
        team=team_words(viewer, side, paths),
        gpu_hours="" if loss is None else show.gpu_hours(loss.gpu_hours, unit=False),
        lost_why="" if loss is not None else why,
        cost=cost,
        cost_why=cost_why,
    )


def job_link(told: Told) -> SafeString:
    """Return a job in a sentence: a link where the reader may follow one."""
    if not told.url:
        return shown_name(told.text)
    return format_html('<a href="{}">{}</a>', told.url, shown_name(told.text))


def known_side(eviction: Eviction, paths: Mapping[int, str]) -> Stood | None:
    """Return where the victim's team stood, if that team is still known."""
    side = stood(eviction, "victim")
    return side if side is not None and side.tenant_id in paths else None


def filled(
    template: str, eviction: Eviction, viewer: Viewer, paths: Mapping[int, str], *, html: bool
) -> str:
    """Put the names a reader may know into a sentence of eviction_words; ``html``: as links."""
    side = stood(eviction, "victim")
    path = eviction.job.tenant.path
    if side is not None:
        path = paths.get(side.tenant_id, path)
    victim, taker = viewer.told(eviction.job), viewer.told(eviction.beneficiary)
    team = show.cut(team_told(viewer.sight, path))
    if html:
        return format_html(
            template, victim=job_link(victim), beneficiary=job_link(taker), team=team
        )
    return template.format(victim=victim.text, beneficiary=taker.text, team=team)


def leaving_words(eviction: Eviction, viewer: Viewer) -> SafeString:
    """Say for whom a victim leaves and by when, as a row of the line does."""
    taker = job_link(viewer.told(eviction.beneficiary))
    left = countdown_of(eviction)
    if left is None:
        verb = "Being demoted" if eviction.mode == EvictionMode.DEMOTE else "Being stopped"
        return format_html("{} for {}.", verb, taker)
    by = clock(eviction)(eviction.leave_by)
    return format_html("Asked to leave for {}; leaves by {}: {}.", taker, by, left.html)


def open_evictions_of(jobs: Iterable[int]) -> dict[int, Eviction]:
    """Return the eviction of each job that leaves, by job id; one query, none for none."""
    wanted = list(jobs)
    if not wanted:
        return {}
    rows = Eviction.objects.filter(job__in=wanted, ended_at__isnull=True)
    return {one.job_id: one for one in rows.select_related("cluster", "beneficiary__tenant")}
