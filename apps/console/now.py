"""What GPUs do now, per pool: figures and money that add up from the states to the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from django.utils import timezone

from apps.backends.models import Cluster
from apps.common import show
from apps.common.money import MICROS, apportion, round_cents, scaled
from apps.console import marks
from apps.console.marks import StateBar
from apps.console.palette import STATES
from apps.console.stamps import state_of
from apps.console.units import gpus_text
from apps.ledger.selectors import Now

WORKING = ("busy", "unknown")


@dataclass(frozen=True, slots=True)
class PoolBlock:
    """One pool's bar with its words; ``cents`` by state are as shown."""

    cluster: Cluster
    pool: str
    fraction: Fraction
    gpus: Mapping[str, int]
    cents: Mapping[str, int] | None  # None: no price
    per_gpu_hour: Fraction | None
    bar: StateBar
    about: str  # kind, pool, price
    right: str  # total, money, jobs that wait, how old
    note: str  # what is wrong with it, or nothing

    @property
    def total(self) -> Fraction:
        """Return its GPUs, physical ones."""
        return sum(self.gpus.values()) * self.fraction

    @property
    def working(self) -> Fraction:
        """Return the physical GPUs at work."""
        return sum(self.gpus[state] for state in WORKING) * self.fraction

    def money(self, states: Sequence[str]) -> int:
        """Return what some states cost an hour, in cents as shown."""
        return 0 if self.cents is None else sum(self.cents[state] for state in states)


def cents_text(cents: int) -> str:
    """Write cents as money."""
    return show.money(scaled(cents, 2))


def blocks_of(
    now_of: Sequence[tuple[Cluster, Now]],
    waiting: Mapping[int, int],
    *,
    money: bool,
    url_of: Mapping[int, str],
    wall: datetime | None = None,
) -> list[PoolBlock]:
    """Return a block per pool; money is rounded once, over all of them, and apportioned down."""
    wall = wall or timezone.now()
    rates = [now.per_hour() if money else None for _, now in now_of]
    known = [rate for rate in rates if rate is not None]
    whole = apportion([rate * 100 for rate in known], round_cents(sum(known, Fraction(0))))
    totals = iter(whole)
    blocks = []
    noted: set[int] = set()
    for (cluster, now), rate in zip(now_of, rates, strict=True):
        note = "" if cluster.pk in noted else _note(cluster, wall)
        noted.add(cluster.pk)
        cents = None
        if rate is not None:
            parts = [(now.per_hour(state) or Fraction(0)) * 100 for state in STATES]
            cents = dict(zip(STATES, apportion(parts, next(totals)), strict=True))
        blocks.append(_block(cluster, now, cents, waiting, url_of, wall, note))
    return blocks


def _block(
    cluster: Cluster,
    now: Now,
    cents: Mapping[str, int] | None,
    waiting: Mapping[int, int],
    url_of: Mapping[int, str],
    wall: datetime,
    note: str,
) -> PoolBlock:
    texts = {} if cents is None else {s: f"{cents_text(c)}/h" for s, c in cents.items()}
    price = None
    if now.price is not None:
        price = Fraction(now.price.micros_per_gpu_hour, MICROS)
    link = url_of.get(now.pool.pk, "")
    bar = marks.state_bar(
        now.gpus, money=texts, urls={s: link for s in STATES if s not in WORKING} if link else None
    )
    about = [cluster.get_kind_display(), now.pool.name]
    if cents is not None and price is not None:
        about[1] += f" at {show.money(price)}"
    wait = waiting.get(now.pool.pk, 0)
    right = [_size(now)]
    if cents is not None:
        right.append(f"{cents_text(sum(cents.values()))}/h")
    right.append(f"{show.counted(wait, 'job waits', 'jobs wait')}")
    right.append(_age(cluster, wall))
    return PoolBlock(
        cluster,
        now.pool.name,
        now.fraction,
        now.gpus,
        cents,
        price,
        bar,
        " · ".join(about),
        " · ".join(filter(None, right)),
        note,
    )


def _size(now: Now) -> str:
    if now.fraction == 1:
        return show.counted(now.total, "GPU")
    physical = gpus_text(now.total * now.fraction)
    return f"{show.counted(now.total, 'slice')} ({physical} {'GPU' if physical == '1' else 'GPUs'})"


def _age(cluster: Cluster, wall: datetime) -> str:
    """Say how old a cluster's figures are: by its own clock where that is not the wall's."""
    if cluster.observed_at is None:
        return "not observed yet"
    if cluster.clock_now is not None:
        words = "catching up, at" if cluster.clock_until is None else "its own clock, at"
        return f"{words} {show.instant(cluster.observed_at, now=wall, style='seconds')}"
    age = max(timedelta(), wall - cluster.observed_at)
    return f"seen {show.duration(age)} ago"


def _note(cluster: Cluster, wall: datetime) -> str:
    """Return the sentence of a cluster whose figures are old, or nothing."""
    state, silence = state_of(cluster, wall)
    if state not in ("late", "lost") or silence is None or cluster.observed_at is None:
        return ""
    at = show.instant(cluster.observed_at, now=wall, style="seconds")
    return (
        f"{cluster.name} has not reported for {show.duration(silence)}. Its figures are as of {at}."
    )


def jobs_words(waiting: Mapping[str, int]) -> str:
    """Say how many jobs wait where: ``33 jobs wait on atlas, 5 on cedar.``"""
    some = [(name, count) for name, count in waiting.items() if count]
    if not some:
        return "No job waits."
    (first, count), *rest = some
    words = [f"{show.counted(count, 'job waits', 'jobs wait')} on {first}"]
    words += [f"{show.whole(count)} on {name}" for name, count in rest]
    return f"{', '.join(words)}."
