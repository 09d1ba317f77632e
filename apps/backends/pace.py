"""How often a cluster is looked at: less where a look takes long, ever less where looks fail."""

from __future__ import annotations

from apps.backends.models import Cluster

SLOW_SECONDS = 1.0
"""A look that is quicker is no burden."""

PAUSES = 10
"""A slow look is a tenth of the time at most."""

LONGEST_SECONDS = 300.0


def unhurried(cluster: Cluster) -> float:
    """Return the seconds between two looks that the last one allows, failures apart."""
    usual = float(cluster.tick_seconds)
    if cluster.look_seconds < SLOW_SECONDS:
        return usual
    return max(usual, min(PAUSES * cluster.look_seconds, LONGEST_SECONDS))


def looks_every(cluster: Cluster) -> float:
    """Return the seconds between two looks as things stand: each failure but the first doubles them."""
    calm = unhurried(cluster)
    # No further than needed: a cluster may be away for weeks.
    doubled = calm * (1 << min(max(cluster.failed_looks - 1, 0), 20))
    return max(calm, min(doubled, LONGEST_SECONDS))


def pace_words(cluster: Cluster) -> str:
    """Return in a sentence how often it is looked at, and why not as often as was asked for."""
    every = round(looks_every(cluster))
    if cluster.failed_looks:
        looks = "Its last look" if cluster.failed_looks == 1 else f"{cluster.failed_looks:,} looks"
        row = "" if cluster.failed_looks == 1 else " in a row"
        return f"{looks}{row} failed; Rollcall asks every {every} s until it answers."
    if every > cluster.tick_seconds:
        took = f"{cluster.look_seconds:.1f} s"
        return f"Its last look took {took}; Rollcall asks every {every} s until it is quicker."
    return f"A look every {every} s, the time from the first question to the last answer."
