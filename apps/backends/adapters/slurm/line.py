"""Slurm's own line: what it counts for each waiting job, and when and where it plans to start it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from apps.backends.adapters.slurm import sprio
from apps.backends.adapters.slurm.foreign import ref_of
from apps.backends.adapters.slurm.look import clock_of
from apps.backends.adapters.slurm.own import Clock
from apps.backends.adapters.slurm.runner import Runner
from apps.backends.adapters.slurm.text import config_of, instant
from apps.backends.port import BackendError, OwnLine, OwnPlace
from apps.common.time import from_us

# Of a job that waits %S is when backfill plans to start it, %Y on which nodes.
PLANNED = "%A|%i|%V|%S|%Y"
NO_NODES = ("", "(null)", "None", "N/A")


def read(runner: Runner, *, now: datetime) -> OwnLine:
    """Return every job that waits in Slurm, in one round trip.

    :raises BackendError: if Slurm does not answer.
    """
    config, terms, waiting = runner.read(
        ["scontrol", "-o", "show", "config"],
        ["sprio", "-h", "-o", sprio.COLUMNS],
        ["squeue", "-h", "-a", "-t", "PENDING", "-o", PLANNED],
    )
    for answer in (config, waiting):
        if answer.code:
            raise BackendError(f"Slurm refused to answer: {answer.said}.", retry=True)
    settings = config_of(config.out)
    clock = clock_of(int(settings["as_of"]), now)
    places = places_in(waiting.out, settings.get("ClusterName", ""), clock)
    if terms.code:
        return OwnLine(list(places.values()), no_terms=f"sprio says: {terms.said.rstrip('.')}.")
    known = sprio.terms_in(terms.out)
    return OwnLine(
        [
            replace(place, terms=known[number]) if number in known else place
            for number, place in places.items()
        ]
    )


def places_in(text: str, slurm: str, clock: Clock) -> dict[int, OwnPlace]:
    """Return by id the jobs that ``squeue -o`` PLANNED printed, without their terms."""
    found: dict[int, OwnPlace] = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != 5 or not (cells[0].isdigit() and cells[2].isdigit()):
            raise BackendError(
                f"Slurm listed a job in a way not understood: {line[:80]}.", retry=True
            )
        number, label, submit, start, nodes = cells
        at = instant(start)
        found[int(number)] = OwnPlace(
            ref=ref_of(slurm, label, int(submit)),
            planned_at=None if at is None else from_us(clock.us(at)),
            planned_nodes="" if nodes in NO_NODES else nodes,
        )
    return found
