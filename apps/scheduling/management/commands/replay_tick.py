"""Run a stored tick again and show any difference."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.scheduling.models import Tick
from apps.scheduling.stored import NothingStored, replay


class Command(BaseCommand):
    help = "Run the engine on the snapshot of a stored tick, and show any difference."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tick", type=int, help="the tick's id")

    def handle(self, *args: Any, **options: Any) -> None:
        tick = Tick.objects.filter(pk=options["tick"]).first()
        if tick is None:
            raise CommandError(f"There is no tick {options['tick']}; it may have been thinned out.")
        try:
            differences = replay(tick)
        except NothingStored as error:
            raise CommandError(str(error)) from error
        head = f"Tick {tick.pk} of {tick.cluster} at {tick.at:%Y-%m-%d %H:%M:%S} UTC"
        counts = f"{tick.pending} pending, {tick.running} running, {tick.starts} started"
        self.stdout.write(f"{head}: {counts}.")
        if differences:
            raise CommandError("The plan differs now:\n  " + "\n  ".join(differences))
        self.stdout.write("The engine answers the same again: no difference.")
