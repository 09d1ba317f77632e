"""A cluster's accounting is read on from its first look: what no look showed, and what was lost.

Apart from the ticks, every few minutes, and at once after nobody looked for a while. Each window is
read with some overlap and written in one transaction, which locks the cluster's row, so that no
tick writes between; what the ledger has is never written again. What the accounting does not tell
is asked for again the next time: how far it was read moves on only with what was written.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import cast

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, Node
from apps.backends.port import BackendError, ForeignWork, History, Recalled, Remembers
from apps.common.errors import DomainError, Invalid
from apps.jobs.models import Attempt, Job
from apps.jobs.states import JobState, Outcome
from apps.scheduling import steps
from apps.scheduling.mend import asked_about, lost_since, mend
from apps.scheduling.models import HistoryReading, Tick
from apps.scheduling.past import Past

logger = logging.getLogger(__name__)

EVERY = timedelta(minutes=5)
WINDOW = timedelta(hours=6)
OVERLAP = timedelta(minutes=30)
"""A controller tells its accounting late, where that was away."""

MARGIN = timedelta(seconds=5)
"""What ended after the newest look is the next one's to see, to the second."""

SLACK = timedelta(seconds=2)
"""A cluster counts whole seconds, and so is known how far its clock is off."""

HOLD, SECONDS = timedelta(minutes=10), 20.0
"""Longer than an answer may take; and how long one task reads before others have their turn."""


class Overtaken(DomainError):
    """Somebody else reads this history by now; what was about to be written is void."""

    code = "overtaken"


def read_on(cluster: Cluster, *, now: datetime) -> bool:
    """Read on where it is due; return whether this call did. ``now`` is wall time.

    What fails stands on the cluster's reading in words, and is tried again; it never raises
    because of the cluster.
    """
    try:
        backend = backend_of(cluster)
    except Invalid:  # its page says so already
        return False
    look, seen = cluster.first_look_at, cluster.observed_at
    if "history" not in backend.capabilities().can or look is None or seen is None:
        return False
    reading, _ = HistoryReading.objects.get_or_create(cluster=cluster)
    if seen - MARGIN - (reading.read_until or look) < EVERY:
        return False
    until = now + HOLD
    free = Q(held_until__isnull=True) | Q(held_until__lt=now)
    if not HistoryReading.objects.filter(free, pk=reading.pk).update(held_until=until):
        return False
    ours = HistoryReading.objects.filter(pk=reading.pk, held_until=until)
    try:
        _Reading(cluster, cast(Remembers, backend), reading.pk, until).run(look, seen - MARGIN)
        ours.update(problem="")
    except Overtaken:
        logger.warning("somebody else reads the history of %s", cluster.name)
    except BackendError as error:
        ours.update(problem=error.message[:300])
        logger.warning("history of cluster %s: %s", cluster.name, error.message)
    except Exception:
        ours.update(problem="It failed by a mistake of ours; the worker's log has it.")
        raise
    finally:
        ours.update(held_until=None)
    return True


@dataclass
class _Reading:
    """One holder's work on what was not seen."""

    cluster: Cluster
    backend: Remembers
    pk: int
    held_until: datetime

    def run(self, look: datetime, until: datetime) -> None:
        """Read window by window, for some seconds."""
        end = monotonic() + SECONDS
        since = HistoryReading.objects.get(pk=self.pk).read_until or look
        # Asked once, before anything moves on: what fails leaves all of it for the next time.
        lost = lost_since(self.cluster, since - OVERLAP)
        theirs, own = asked_about(lost)
        now = timezone.now()
        told = self.backend.recall(theirs, own, now=now) if lost else Recalled()
        while since < until:
            to = min(since + WINDOW, until)
            found = self.backend.history(max(since - OVERLAP, look), to, now=timezone.now())
            with self._mine() as reading:
                reading.mended += mend(self.cluster, lost, told)
                reading.runs += self._add(found, look, to)
                reading.read_until = since = to
                steps.reached("history")
                reading.save()
            if monotonic() > end:
                return

    def _add(self, found: History, look: datetime, until: datetime) -> int:
        """Write the runs that no look showed; return how many."""
        # On nodes that are known: there was room for it in the ledger.
        places = set(Node.objects.filter(cluster=self.cluster).values_list("name", "pool__name"))
        works = self._unseen(
            [
                work
                for work in found.works
                if work.started_at and look <= work.started_at
                if work.ended_at and work.ended_at <= until
                if all((name, work.pool) in places for name in work.nodes)
            ]
        )
        # Ours by what the cluster called them, whoever they ran as.
        ours = set(
            Attempt.objects.filter(
                job__cluster=self.cluster, cluster_ref__in=[work.ref for work in works]
            ).values_list("cluster_ref", flat=True)
        )
        works = [work for work in works if work.ref not in ours]
        refs = [work.ref for work in works]
        # What waited when it was last seen, and was then taken for cancelled.
        Job.objects.filter(
            cluster=self.cluster, foreign_ref__in=refs, state=JobState.CANCELLED,
            outcome=Outcome.LOST, attempts=None, evictions_for_it=None,
        ).delete()  # fmt: skip
        past = Past(self.cluster, works, now=timezone.now())
        runs, _ = past.write(found.own, until=until)
        return runs

    def _unseen(self, works: list[ForeignWork]) -> list[ForeignWork]:
        """Return the runs within which nobody looked.

        Another was seen: as a job, which the ledger has, or as used GPUs of its nodes alone.
        """
        spans = [
            (work, work.started_at, work.ended_at)
            for work in works
            if work.started_at is not None and work.ended_at is not None
        ]
        if not spans:
            return []
        first, last = min(start for _, start, _ in spans), max(end for _, _, end in spans)
        rows = Tick.objects.filter(cluster=self.cluster, at__gte=first, at__lt=last)
        looks = list(rows.order_by("at").values_list("at", flat=True))
        return [
            work
            for work, start, end in spans
            if bisect_left(looks, start + SLACK) >= bisect_left(looks, end)
        ]

    @contextmanager
    def _mine(self) -> Iterator[HistoryReading]:
        """Open a transaction that only the holder can commit; it keeps ticks from writing.

        :raises Overtaken: if somebody else is at it by now.
        """
        with transaction.atomic():
            self.cluster = Cluster.objects.select_for_update().get(pk=self.cluster.pk)
            rows = HistoryReading.objects.select_for_update().filter(
                pk=self.pk, held_until=self.held_until
            )
            reading = rows.first()
            if reading is None:
                raise Overtaken("Somebody else reads this history.")
            yield reading
