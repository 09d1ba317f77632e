"""Play scenario files and hold them against what they expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from apps.scheduling.scenario import Outcome, Scenario, ScenarioError, failures, play, read


def use_database_in_memory() -> None:
    """Turn the default database into an empty one in memory, for this process."""
    connections["default"].close()
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections.settings["default"] = connections.configure_settings({"default": memory})["default"]
    settings.DATABASES["default"] = connections.settings["default"]
    del connections["default"]
    call_command("migrate", verbosity=0, interactive=False)


class Command(BaseCommand):
    help = "Play scenario files; exit 1 if an expectation does not hold."
    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own name and type
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", type=Path)
        parser.add_argument(
            "--json",
            action="store_true",
            help="print the whole answer as JSON; of several files, a list",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            scenarios = [read(path) for path in options["files"]]
        except ScenarioError as error:
            raise CommandError(str(error)) from error
        use_database_in_memory()
        broken = 0
        answers = []
        for scenario in scenarios:
            try:
                outcome = play(scenario)
            except ScenarioError as error:
                raise CommandError(str(error)) from error
            failed = failures(scenario, outcome)
            broken += bool(failed)
            if options["json"]:
                answers.append(outcome.last)
                for line in failed:
                    self.stderr.write(f"{scenario.file}: {line}")
            else:
                self._tell(scenario, outcome, failed)
        if options["json"]:
            # One file, one answer; of several files a list of them.
            shown = answers[0] if len(answers) == 1 else answers
            self.stdout.write(json.dumps(shown, indent=2, default=str, allow_nan=False))
        if broken:
            raise CommandError(f"{broken} of {len(scenarios)} scenarios do not hold.")

    def _tell(self, scenario: Scenario, outcome: Outcome, failed: list[str]) -> None:
        self.stdout.write(f"{scenario.file}: {scenario.title}")
        for row in outcome.last["timeline"]:
            self.stdout.write(f"  {row['at']}  {row['job']}: {row['event']}")
        for line in failed:
            self.stdout.write(f"  DOES NOT HOLD  {line}")
        if not failed:
            self.stdout.write("  holds")
