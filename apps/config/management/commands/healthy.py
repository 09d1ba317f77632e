"""Says whether the web server, the worker or beat beside this command is well."""

from __future__ import annotations

import http.client
import socket
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from kombu.exceptions import OperationalError

from apps.config.celery import app
from apps.config.health import feel_pulse

PATIENCE = 5.0


def _web(port: int) -> None:
    # From inside, by the name that the site goes by.
    host = settings.ALLOWED_HOSTS[0].removeprefix(".")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/healthz", headers={"Host": host})
        status = connection.getresponse().status
    except OSError as error:
        raise CommandError(f"The web server does not answer on port {port}: {error}.") from error
    finally:
        connection.close()
    if status != 200:
        raise CommandError(f"The web server answers {status}: see its log, and the database.")


def _worker() -> None:
    name = f"celery@{socket.gethostname()}"
    try:
        answers = app.control.ping(destination=[name], timeout=PATIENCE)
    except (OperationalError, OSError) as error:
        raise CommandError(f"Redis does not answer: {error}.") from error
    if not answers:
        raise CommandError(f"The worker {name} does not answer.")


def _beat() -> None:
    age = feel_pulse()
    if age is None or age > 5 * settings.TICK_SECONDS + PATIENCE:
        raise CommandError("Beat has sent no tick lately: see its log, and Redis.")


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []  # noqa: RUF012  Django declares it so

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("part", choices=("web", "worker", "beat"))
        parser.add_argument("--port", type=int, default=8000, help="of the web server")

    def handle(self, *args: Any, part: str, port: int, **options: Any) -> None:
        if part == "web":
            _web(port)
        elif part == "worker":
            _worker()
        else:
            _beat()
        self.stdout.write(f"{part} is well")
