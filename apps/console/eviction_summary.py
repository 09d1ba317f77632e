"""Evictions summed up: how many there were, whose work was lost, and the sentences that say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from apps.common import show
from apps.console.eviction_alarms import Thrash
from apps.console.eviction_figure import Group
from apps.console.eviction_rows import job_link
from apps.console.people import Viewer
from apps.jobs.states import EvictionMode, EvictionOutcome
from apps.ledger.reports import Amount, total_of

KINDS = {
    EvictionMode.KILL: "kill",
    EvictionMode.CHECKPOINT: "checkpoint",
    EvictionMode.SHRINK: "shrink",
    EvictionMode.DEMOTE: "demotion",
}
MOST_NAMED = 2


@dataclass(frozen=True)
class Summary:
    """All the evictions a page lists; ``span`` is how long it looks back, in words."""

    groups: Sequence[Group]
    viewer: Viewer
    span: str
    money: bool
    filtered: bool

    @cached_property
    def own(self) -> list[Group]:
        """Return those whose victim was the reader's; an admin's are all."""
        return [group for group in self.groups if group.own]

    @cached_property
    def others(self) -> list[Group]:
        """Return those by which others made way for the reader's jobs."""
        return [group for group in self.groups if not group.own]

    @property
    def count(self) -> int:
        """Return how many there were."""
        return _count(self.groups)

    @cached_property
    def lost(self) -> Amount:
        """Return what the reader's own jobs lost: what a page tells the money of."""
        return total_of(group.amount for group in self.own)

    @cached_property
    def others_lost(self) -> Amount:
        """Return what others' jobs lost for the reader's."""
        return total_of(group.amount for group in self.others)

    def answer(self) -> str:
        """Return the sentence with what was lost."""
        if not self.count:
            if self.filtered:
                return f"No eviction of these {self.span} matches."
            return f"Nobody was evicted in these {self.span}."
        if self.viewer.is_admin:
            evictions = show.counted(self.count, "eviction")
            return f"{evictions} in {self.span} lost {self._lost_words()}."
        whose, times = self._whose(), _count(self.own)
        if not times:
            return f"No job of {whose} was evicted in these {self.span}."
        verb = show.counted(times, "eviction")
        return f"{whose[:1].upper()}{whose[1:]} lost {self._lost_words(verb)}."

    def _lost_words(self, by: str = "") -> str:
        hours = self.lost.gpu_hours
        how = f" by {by} in {self.span}" if by else ""
        if not hours:
            return f"no work{how}"
        cost = f": {show.money(self.lost.money)}" if self.money and self.lost.has_money else ""
        places = 0 if hours >= 10_000 else 2
        return f"{show.decimals(hours, places)} GPU-hours of work{how}{cost}"

    def _whose(self) -> str:
        tops = self.viewer.sight.outermost()
        return show.cut(tops[0]) if len(tops) == 1 else "your teams"

    def context(self, thrashes: Sequence[Thrash]) -> SafeString:
        """Return what stands below the answer: whence the loss, who still leaves, who is left alone."""
        said = [self._whence(), self._exceeded(), self._leaving(), self._gained()]
        texts = [format_html("{}", text) for text in said if text]
        texts += [
            format_html("{} {}", job_link(self.viewer.told(one.job)), one.words)
            for one in thrashes[:MOST_NAMED]
        ]
        if len(thrashes) > MOST_NAMED:
            more = len(thrashes) - MOST_NAMED
            texts.append(
                format_html("{} left alone too.", show.counted(more, "more is", "more are"))
            )
        return format_html_join(" ", "{}", ((text,) for text in texts))

    def _whence(self) -> str:
        """Say which mode most of the loss came from."""
        total = self.lost.gpu_hours
        if not total:
            return ""
        by_mode = {
            mode: (
                total_of(group.amount for group in self.own if group.mode == mode).gpu_hours,
                _count(group for group in self.own if group.mode == mode),
            )
            for mode in KINDS
        }
        mode, (hours, count) = max(by_mode.items(), key=lambda item: item[1][0])
        if count == _count(self.own):
            return ""
        these = f"one {KINDS[mode]}" if count == 1 else show.counted(count, KINDS[mode])
        return f"{show.percent(hours / total, places=0)} of the loss came from {these}."

    def _exceeded(self) -> str:
        count = self._of_outcome(EvictionOutcome.GRACE_EXCEEDED)
        if not count:
            return ""
        who = "One checkpoint" if count == 1 else show.counted(count, "checkpoint")
        return f"{who} ran out of grace."

    def _leaving(self) -> str:
        count = self._of_outcome("")
        return f"{show.counted(count, 'job is', 'jobs are')} leaving now." if count else ""

    def _of_outcome(self, outcome: str) -> int:
        return _count(group for group in self.own if group.outcome == outcome)

    def _gained(self) -> str:
        count = _count(self.others)
        if not count:
            return ""
        lost = self.others_lost.gpu_hours
        cost = f"; they lost {show.gpu_hours(lost)}" if lost else ""
        jobs = show.counted(count, "job of another team", "jobs of other teams")
        return f"{jobs} made way for {self._whose()}{cost}."


def _count(groups: Iterable[Group]) -> int:
    return sum(group.count for group in groups)
