"""``manage.py import_trace KIND PATH``: a real cluster's history becomes arrivals to replay."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import timezone

from apps.common.bar import Bar
from apps.common.errors import DomainError
from apps.jobs.trace_import import import_trace
from apps.jobs.traces import FORMATS, Report


def told(report: Report) -> list[str]:
    """Return a report as lines of text."""
    counts = report.as_json()
    lines = [
        f"Rows read: {counts['rows']:,}; used: {counts['used']:,};"
        f" left out: {counts['left_out']:,}; refused: {counts['refused']:,}"
    ]
    for kind, found in (("left out", report.left_out), ("refused", report.refused)):
        for reason, seen in sorted(found.items()):
            where = ", ".join(str(line) for line in seen.lines)
            more = ", …" if seen.rows > len(seen.lines) else ""
            word = "line" if seen.rows == 1 else "lines"
            lines.append(f"  {kind}: {seen.rows:,} × {reason} ({word} {where}{more})")
    lines.append(f"Jobs: {report.used:,}, {report.gpu_hours:,.0f} GPU-hours")
    return lines


class Command(BaseCommand):
    help = "Import a trace of a real cluster; all of it, or nothing."
    requires_system_checks = ()  # it starts faster; the server checks

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what the command takes."""
        parser.add_argument("kind", choices=sorted(FORMATS), help="The kind of trace.")
        parser.add_argument("path", type=Path, help="The file; it may be packed with gzip.")
        parser.add_argument("--cluster", default="", help="Its name; made if there is none.")
        parser.add_argument("--nodes", type=int, default=100, help="Nodes of 8 GPUs, if it is new.")
        parser.add_argument("--json", action="store_true", help="Report as JSON.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Import, and report."""
        path: Path = options["path"]
        try:
            report, cluster = import_trace(
                options["kind"],
                path,
                now=timezone.now(),
                cluster_name=options["cluster"],
                nodes=options["nodes"],
                progress=Bar(path.name),
            )
        except DomainError as error:
            raise CommandError(error.message) from error
        except DatabaseError as error:
            raise CommandError(
                f"The database refused ({error}). Nothing was imported; was `manage.py migrate` run?"
            ) from error
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json()))
            return
        for line in told(report):
            self.stdout.write(line)
        if cluster is None:
            self.stdout.write("No row is a job; nothing was imported.")
        else:
            self.stdout.write(
                f"Cluster {cluster.name} replays them from {report.first:%Y-%m-%d %H:%M} UTC on."
            )
