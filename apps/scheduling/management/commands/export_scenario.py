"""Print a stored tick as a scenario file."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.engine.codec import Undecodable
from apps.scheduling.models import Tick
from apps.scheduling.scenario.export import export
from apps.scheduling.stored import NothingStored


class Command(BaseCommand):
    help = "Print a stored tick as a scenario: what it saw, and as expected what it answered."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tick", type=int, help="the tick's id")
        parser.add_argument(
            "--names", action="store_true", help="keep the names of pools, nodes, tenants and jobs"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        tick = Tick.objects.filter(pk=options["tick"]).select_related("cluster").first()
        if tick is None:
            raise CommandError(f"There is no tick {options['tick']}; it may have been thinned out.")
        try:
            found = export(tick, keep_names=options["names"])
        except NothingStored as error:
            raise CommandError(str(error)) from error
        except Undecodable as error:
            raise CommandError(f"Tick {tick.pk} cannot be read: {error}") from error
        self.stdout.write(found.text, ending="")
        if found.left_out:
            told = "".join(f"\n  {one}" for one in found.left_out)
            self.stderr.write(f"The plan may differ when it is played:{told}")
