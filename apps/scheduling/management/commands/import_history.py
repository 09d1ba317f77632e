"""``manage.py import_history CLUSTER --since DAY``: what a cluster remembers, into the ledger."""

from __future__ import annotations

import os
import socket
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import timezone

from apps.backends.models import Cluster
from apps.backends.services import find_cluster
from apps.common.bar import Bar
from apps.common.errors import DomainError
from apps.scheduling.history import go_on, start_history_import
from apps.scheduling.models import HistoryImport, ImportState
from apps.scheduling.selectors import percent_done


def instant(text: str) -> datetime:
    """Return an instant as 2026-01-05 or 2026-01-05T12:00:00Z; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no instant as 2026-01-05T12:00:00Z") from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def told(job: HistoryImport) -> list[str]:
    """Return what an import did as lines of text."""
    lines = [f"Runs written: {job.runs:,}; in the ledger already: {job.known:,}"]
    lines += [f"  left out: {many:,} that {why}" for why, many in sorted(job.left_out.items())]
    return lines


class Command(BaseCommand):
    help = "Import what a cluster remembers of jobs that are over, up to its first look."
    requires_system_checks = ()  # it starts faster; the server checks

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what the command takes."""
        parser.add_argument("cluster", help="The cluster's name.")
        parser.add_argument(
            "--since", type=instant, help="From when on; left out: go on with what was begun."
        )
        parser.add_argument("--until", type=instant, help="Up to when; the first look at the most.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Import to the end, and report."""
        try:
            job = self._begun(find_cluster(options["cluster"]), options["since"], options["until"])
            bar = Bar(f"the history of {job.cluster}")
            went = go_on(
                job.pk,
                holder=f"{socket.gethostname()}:{os.getpid()}",
                progress=lambda now: bar(percent_done(now), 100),
            )
        except Cluster.DoesNotExist as error:
            raise CommandError(f"There is no cluster {options['cluster']}.") from error
        except DomainError as error:
            raise CommandError(error.message) from error
        except DatabaseError as error:
            raise CommandError(
                f"The database refused ({error}). What was written stays; run it again to go on."
            ) from error
        job.refresh_from_db()
        if not went:
            raise CommandError(f"A worker is at it; {percent_done(job)} % are done.")
        if job.state != ImportState.DONE:
            raise CommandError(f"{percent_done(job)} % are done, then: {job.problem}")
        for line in told(job):
            self.stdout.write(line)

    def _begun(
        self, cluster: Cluster, since: datetime | None, until: datetime | None
    ) -> HistoryImport:
        """Return the import that runs, or a new one."""
        known = HistoryImport.objects.filter(cluster=cluster, state=ImportState.RUNNING).first()
        if known is not None and since is None:
            return known
        if since is None:
            raise CommandError("Say from when on: --since 2026-01-05.")
        return start_history_import(cluster, since=since, until=until, by=None, now=timezone.now())
