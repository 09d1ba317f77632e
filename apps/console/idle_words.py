"""Sentences of the idle cost page, from a report and its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from apps.common import show
from apps.common.time import from_us, to_us
from apps.console import ranges
from apps.console.ranges import RELATIVE, WORDS, Span
from apps.ledger.reports import Report, Shown

PARTS = {
    "busy": "busy",
    "held_idle": "held idle",
    "gang_wait": "gang wait",
    "unallocated": "unallocated",
    "unavailable": "unavailable",
}
REASONS = {
    "held_idle": "GPUs that a job holds but hardly uses",
    "gang_wait": "GPUs held by gangs that wait to be whole",
    "unallocated": "GPUs that nobody held",
    "unavailable": "GPUs on nodes that are down or drained",
}
TENANTS_HOLD = ("held_idle", "gang_wait")


@dataclass(frozen=True, slots=True)
class Words:
    """All that is said about one report; ``default`` is whether the range was not asked for."""

    report: Report
    span: Span
    now: datetime
    money: bool
    default: bool
    names: Mapping[int, str]  # tenant id → path

    @property
    def observed(self) -> bool:
        """Return whether there is anything to tell."""
        report = self.report
        return report.until_us > report.since_us and report.amount.gpu_hours > 0

    def text(self, shown: Shown) -> str:
        """Return a figure in the page's unit."""
        return shown.money_text if self.money else shown.gpu_hours_text

    def sized(self, shown: Shown) -> str:
        """Return a figure with its unit, for a sentence."""
        return shown.money_text if self.money else f"{shown.gpu_hours_text} GPUh"

    def answer(self) -> str:
        """Return the sentence with what bought no work."""
        report = self.report
        if not self.observed:
            return f"Nothing was observed {self.when()}."
        idle, total = report.not_working.shown, report.total
        percent = show.percent(Fraction(report.not_working.tenths, 1000), places=0)
        if self.money:
            spent = f"{idle.money_text} of {total.money_text}"
            return f"{spent} bought no work {self.when()}: {percent}."
        spent = f"{idle.gpu_hours_text} of {total.gpu_hours_text} GPU-hours"
        return f"{spent} did no work {self.when()}: {percent}."

    def when(self) -> str:
        """Return the range as a part of a sentence."""
        span = self.span
        if span.name in RELATIVE:
            return f"in the {self.dates()}"
        today = ranges.day_of(to_us(self.now), show.zone())
        if span.last >= today:
            return f"so far {'today' if span.first == today else 'in ' + self.dates()}"
        if self.default:
            names = {"day": "yesterday", "week": "in the last 7 days", "month": "last month"}
            return names[span.name]
        return f"on {self.dates()}" if span.first == span.last else f"in {self.dates()}"

    def dates(self) -> str:
        """Return the days of the range: ``5 – 11 Mar 2026``; or ``last hour``."""
        first, last = self.span.first, self.span.last
        if self.span.name in RELATIVE:
            return f"last {WORDS[self.span.name].removeprefix('1 ')}"
        if self.span.name == "month":
            return f"{first:%B} {first.year}"
        end = f"{last.day} {last:%b} {last.year}"
        if first == last:
            return f"{first:%a} {end}"
        if (first.year, first.month) == (last.year, last.month):
            return f"{first.day} – {end}"
        start = f"{first.day} {first:%b}"
        return f"{start} – {end}" if first.year == last.year else f"{start} {first.year} – {end}"

    def exactly(self) -> str:
        """Return from when to when, in which zone, and how many days."""
        zone = show.zone()
        since = from_us(self.span.since_us).astimezone(zone)
        until = from_us(self.span.until_us).astimezone(zone)
        days = (self.span.last - self.span.first).days + 1
        whole = self.span.until_us == ranges.midnight_us(self.span.last + ranges.ONE_DAY, zone)
        length = show.counted(days, "whole day") if whole else "goes on"
        told = f"{since:%a} {since:%H:%M} to {until:%a} {until:%H:%M} {until:%Z}"
        return told if self.span.name in RELATIVE else f"{told} · {length}"

    def unobserved(self) -> str:
        """Say from when on the range was observed, where that is not its start."""
        report = self.report
        if report.since_us <= self.span.since_us or not self.observed:
            return ""
        at = show.instant(from_us(report.since_us), now=self.now)
        return f"Observed since {at}; what was before is not counted."

    def context(self) -> str:
        """Say which part is the largest, whose it is, and how much is not known."""
        report = self.report
        if not self.observed:
            return ""
        name, part = max(
            ((n, p) for n, p in report.five.items() if n != "busy"),
            key=lambda item: item[1].amount.money if self.money else item[1].amount.gpu_hours,
        )
        words = []
        if part.amount.gpu_hours:
            size = self.sized(part.shown)
            words.append(f"The largest part is {PARTS[name]}, {size}: {REASONS[name]}.")
            words.append(self.whose(name))
        unknown, busy = report.parts["unknown"].amount, report.five["busy"].amount
        if unknown.gpu_hours and busy.gpu_hours:
            share = show.percent(unknown.gpu_hours / busy.gpu_hours)
            words.append(f"Utilisation is unknown for {share} of what was busy; it counts as busy.")
        return " ".join(filter(None, words))

    def whose(self, name: str) -> str:
        """Say who has most of a part that tenants hold."""
        rows = [row for row in self.report.by_tenant if row.key is not None]
        whole = self.report.five[name].amount.gpu_hours
        if name not in TENANTS_HOLD or not rows or not whole:
            return ""
        most = max(rows, key=lambda row: (row.amounts[name].gpu_hours, -(row.key or 0)))
        if not most.amounts[name].gpu_hours:
            return ""
        share = show.percent(most.amounts[name].gpu_hours / whole, places=0)
        return f"{share} of it is {show.cut(self.names.get(most.key or 0, 'one tenant'))}’s."
