"""Starts Rollcall with a simulated cluster: web, worker, beat and a private Redis, until Ctrl-C."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from apps.config.demo import Demo, Trouble


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []  # noqa: RUF012  Django declares it so

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", default="8000", help="where the web server listens")
        parser.add_argument("--trace", default="", help="a trace to replay, instead of our own")
        parser.add_argument("--reset", default="", help="anything but 0: start over")

    def handle(self, *args: Any, port: str, trace: str, reset: str, **options: Any) -> None:
        demo = Demo(
            folder=Path(settings.DATA_DIR).resolve(),
            port=port or "8000",
            trace=trace,
            reset=reset not in ("", "0", "no"),
            own_redis=not os.environ.get("REDIS_URL"),
            say=self._say,
        )
        # Ctrl-C too: what a shell starts in the background ignores it otherwise.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupted)
        try:
            demo.run()
        except Trouble as trouble:
            self.stderr.write(f"Rollcall: {trouble}")
            raise SystemExit(1) from trouble

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        # At once, where it goes to a file too.
        self.stdout.flush()
