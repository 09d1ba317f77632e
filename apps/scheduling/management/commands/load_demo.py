"""``manage.py load_demo``: people, teams and a simulated cluster with a week of submissions."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from apps.common.bar import Bar
from apps.common.errors import DomainError
from apps.jobs.management.commands.import_trace import told
from apps.scheduling.demo import NODES, load_demo, load_trace


class Command(BaseCommand):
    help = "Load the demo; run again it changes nothing."
    requires_system_checks = ()  # it starts faster; the server checks

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what the command takes."""
        parser.add_argument("--seed", type=int, default=1, help="The same seed, the same jobs.")
        parser.add_argument("--days", type=int, default=7, help="Days of history to catch up with.")
        parser.add_argument("--trace", type=Path, help="Replay this file (philly) instead.")
        parser.add_argument("--nodes", type=int, help=f"Nodes of 8 GPUs: {NODES}, 100 for a trace.")
        parser.add_argument("--force", action="store_true", help="Even where this is no demo.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Load it, and say what was made."""
        try:
            if options["trace"] is None:
                self._own(options)
            else:
                self._trace(options["trace"], options)
        except DomainError as error:
            raise CommandError(error.message) from error

    def _own(self, options: dict[str, Any]) -> None:
        cluster, made = load_demo(
            now=timezone.now(),
            seed=options["seed"],
            days=options["days"],
            nodes=options["nodes"] or NODES,
            force=options["force"],
        )
        self.stdout.write(f"Cluster {cluster.name}: {made:,} submissions made.")

    def _trace(self, path: Path, options: dict[str, Any]) -> None:
        cluster, report = load_trace(
            "philly",
            path,
            now=timezone.now(),
            nodes=options["nodes"] or 100,
            force=options["force"],
            progress=Bar(path.name),
        )
        if report is None:
            self.stdout.write(f"Cluster {cluster.name}: {path.name} was loaded before.")
            return
        for line in told(report):
            self.stdout.write(line)
