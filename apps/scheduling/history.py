"""Bring what a cluster remembers of runs that are over into the ledger: once, window by window.

A window is one transaction, which also moves ``done_until``: an import that was cut off goes on
where it stood, and a run that the ledger has already, seen or imported, is never written again.
The cluster's row is locked meanwhile, so that no tick writes between. The ledger knows the cluster
from ``since`` on once the windows meet what it knew before.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import cast

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.backends.port import BackendError, History, Remembers
from apps.common.errors import Conflict, DomainError, Invalid
from apps.common.time import to_us
from apps.ledger.past import add_capacity, begin_earlier, uses_of
from apps.ledger.rollup import roll_up
from apps.scheduling import steps
from apps.scheduling.models import HistoryImport, ImportState
from apps.scheduling.past import Past

logger = logging.getLogger(__name__)

WINDOW, SHORTEST = timedelta(days=1), timedelta(minutes=10)
MOST_RUNS = 2_000
"""More runs than these make a window shorter: they are in memory at once, and one transaction."""

HOLD = timedelta(seconds=150)
"""Longer than a cluster may take to answer twice: who does not write for so long is dead."""

PAUSE, MOST_FAILURES = timedelta(seconds=30), 20

Progress = Callable[[HistoryImport], None]


class Overtaken(DomainError):
    """Somebody else goes on with this import by now; what was about to be written is void."""

    code = "overtaken"


def no_progress(_: HistoryImport) -> None:
    """Show nothing."""


@transaction.atomic
def start_history_import(
    cluster: Cluster,
    *,
    since: datetime,
    until: datetime | None = None,
    by: User | None,
    now: datetime,
    reason: str = "",
) -> HistoryImport:
    """Begin to import what ended from ``since`` on, at most up to the first look.

    From there on the ledger has what was seen. Nothing is asked of the cluster yet.

    :raises Invalid: naming the field: no such history, or a range that cannot be.
    :raises Conflict: if the cluster was never looked at, or an import of it runs.
    """
    able = backend_of(cluster).capabilities()
    if "history" not in able.can:
        why = able.cannot.get("history", f"{cluster} does not tell of what is over.")
        raise Invalid(why, field="cluster")
    cluster = Cluster.objects.select_for_update().get(pk=cluster.pk)
    look = cluster.first_look_at
    if look is None:
        raise Conflict(f"{cluster} was not looked at yet; its history ends where that begins.")
    end = look if until is None else min(until, look)
    since = since.replace(microsecond=0)
    if since >= end:
        raise Invalid(
            f"since must be before {end:%Y-%m-%d %H:%M:%S} UTC, where the history ends.",
            field="since",
        )
    if HistoryImport.objects.filter(cluster=cluster, state=ImportState.RUNNING).exists():
        raise Conflict(f"The history of {cluster} is being imported already.")
    made = HistoryImport.objects.create(
        cluster=cluster, since=since, until=end, done_until=since, started_at=now, started_by=by
    )
    span = {"since": (None, since.isoformat()), "until": (None, end.isoformat())}
    audit.record("history imported", cluster, by=by, now=now, changes=span, reason=reason)
    return made


def go_on(
    pk: int,
    *,
    holder: str,
    seconds: float | None = None,
    progress: Progress = no_progress,
) -> bool:
    """Go on with an import, for so many seconds or to its end; return whether this call did.

    A cluster that does not answer is asked again later; what it refuses ends the import, and its
    row says why.
    """
    job = _claim(pk, holder)
    if job is None:
        return False
    end = None if seconds is None else monotonic() + seconds
    work = _Import(job, progress)
    try:
        work.run(end)
    except Overtaken:
        logger.warning("somebody else goes on with the %s", job)
    except DomainError as error:
        retry = isinstance(error, BackendError) and error.retry
        _fail(work.job, error.message, retry=retry)
    except Exception:
        _fail(work.job, "It failed by a mistake of ours; the worker's log has it.", retry=False)
        raise
    else:
        HistoryImport.objects.filter(pk=pk, holder=job.holder).update(holder="", held_until=None)
    return True


def _claim(pk: int, holder: str) -> HistoryImport | None:
    now = timezone.now()
    # A name of its own for each claim: no two claims can take each other for themselves.
    name = f"{holder[:40]}/{uuid.uuid4().hex}"
    free = Q(held_until__isnull=True) | Q(held_until__lt=now)
    rows = HistoryImport.objects.filter(free, pk=pk, state=ImportState.RUNNING)
    if not rows.update(holder=name, held_until=now + HOLD):
        return None
    return HistoryImport.objects.select_related("cluster").filter(pk=pk, holder=name).first()


def _fail(job: HistoryImport, problem: str, *, retry: bool) -> None:
    """Write down why it does not go on: for now, or at all."""
    logger.warning("%s: %s", job, problem)
    now, failures = timezone.now(), job.failures + 1
    rows = HistoryImport.objects.filter(pk=job.pk, holder=job.holder, state=ImportState.RUNNING)
    if retry and failures < MOST_FAILURES:
        rows.update(problem=problem[:300], failures=failures, holder="", held_until=now + PAUSE)
    else:
        rows.update(
            problem=problem[:300], failures=failures, holder="", held_until=None,
            state=ImportState.FAILED, ended_at=now,
        )  # fmt: skip


@dataclass
class _Import:
    """One holder's work on an import."""

    job: HistoryImport
    progress: Progress

    def run(self, end: float | None) -> None:
        """Work window by window until all is done, or after one of them the time is over."""
        self.cluster = self.job.cluster
        self.backend = cast(Remembers, backend_of(self.cluster))
        window = WINDOW
        self.progress(self.job)
        while True:
            since = self.job.done_until
            if since >= self.job.until:
                self._finish()
                break
            until = min(since + window, self.job.until)
            found = self._read(since, until)
            if len(found.works) > MOST_RUNS and until - since > SHORTEST:
                window = (until - since) / 2
                continue
            window = min(2 * window, WINDOW)
            self._write(found, since, until)
            self.progress(self.job)
            if end is not None and monotonic() > end:
                return
        self.progress(self.job)

    def _read(self, since: datetime, until: datetime) -> History:
        """Ask for the runs that ended within a window; the claim is prolonged first."""
        with self._mine():
            pass
        found = self.backend.history(since, until, now=timezone.now())
        works = [one for one in found.works if one.ended_at and since <= one.ended_at < until]
        return History(works, found.own, found.left_out)

    def _write(self, found: History, since: datetime, until: datetime) -> None:
        with self._mine() as job:
            self._add(job, found)
            job.left_out = dict(Counter(job.left_out) + Counter(found.left_out))
            job.done_until = until
            job.problem, job.failures = "", 0
            steps.reached("history")
            job.save()
        self.job = job

    def _add(self, job: HistoryImport, found: History) -> None:
        # What ran on past the first look was seen from there on: as itself, or by its nodes.
        look = self.cluster.first_look_at or job.until
        past = Past(self.cluster, found.works, now=timezone.now())
        runs, known = past.write(found.own, until=look)
        job.runs += runs
        job.known += known

    def _finish(self) -> None:
        """Join the windows to what the ledger knew before, and roll up."""
        self._meet_the_look()
        known_from = self.cluster.known_from
        meets = known_from is not None and self.job.since < known_from <= self.job.until
        span = {"since_us": to_us(self.job.since), "until_us": to_us(known_from or self.job.until)}
        # Read without the lock: nobody but this import writes what was before.
        uses = list(uses_of(self.cluster, **span)) if meets else []
        with self._mine() as job:
            if meets:
                add_capacity(self.cluster, uses, **span)
                self.cluster.history_from = job.since
                self.cluster.save(update_fields=["history_from"])
            job.state, job.ended_at = ImportState.DONE, timezone.now()
            job.held_until, job.problem = None, ""
            steps.reached("history-end")
            job.save()
        self.job = job
        self._roll_up()

    def _meet_the_look(self) -> None:
        """Write what was on at the first look, up to there: as itself, if it was seen then."""
        look = self.job.until
        if look != self.cluster.first_look_at:
            return
        found = self._over_the_look(look)
        with self._mine() as job:
            self._add(job, found)
            begin_earlier(self.cluster, first_look_us=to_us(look))
            job.save()
        self.job = job

    def _over_the_look(self, look: datetime) -> History:
        """Ask for the runs that were on at the first look and are over by now."""
        found = self.backend.history(look, look + timedelta(seconds=1), now=timezone.now())
        works = [
            one
            for one in found.works
            if one.started_at and one.ended_at and one.started_at < look <= one.ended_at
        ]
        return History(works, found.own)

    def _roll_up(self) -> None:
        """Roll up what is new in the past; ticks would too, a little at a time."""
        rolled = 1
        while rolled:
            with transaction.atomic():
                cluster = Cluster.objects.select_for_update().get(pk=self.cluster.pk)
                until = cluster.observed_at or self.job.until
                rolled = roll_up(cluster, until_us=to_us(until))

    @contextmanager
    def _mine(self) -> Iterator[HistoryImport]:
        """Open a transaction that only the holder can commit; it keeps ticks from writing.

        :raises Overtaken: if somebody else is at it by now.
        """
        with transaction.atomic():
            self.cluster = Cluster.objects.select_for_update().get(pk=self.cluster.pk)
            rows = HistoryImport.objects.select_for_update().filter(
                pk=self.job.pk, holder=self.job.holder, state=ImportState.RUNNING
            )
            job = rows.first()
            if job is None:
                raise Overtaken("Somebody else goes on with this import.")
            job.cluster = self.cluster
            job.held_until = timezone.now() + HOLD
            job.save(update_fields=["held_until"])
            yield job
