"""A cluster that is slow or does not answer is looked at less often, and says so."""

from __future__ import annotations

import pytest

from apps.backends.models import Cluster
from apps.backends.pace import looks_every, pace_words, unhurried


def cluster(took: float = 0.0, failed: int = 0, every: int = 5) -> Cluster:
    return Cluster(name="atlas", tick_seconds=every, look_seconds=took, failed_looks=failed)


@pytest.mark.parametrize(
    ("row", "seconds", "words"),
    [
        (cluster(0.3), 5, "A look every 5 s, the time from the first question to the last answer."),
        (cluster(0.99, every=2), 2, "A look every 2 s,"),
        (
            cluster(4.1),
            41,
            "Its last look took 4.1 s; Rollcall asks every 41 s until it is quicker.",
        ),
        (cluster(4.1, every=60), 60, "A look every 60 s,"),
        (cluster(90), 300, "Its last look took 90.0 s; Rollcall asks every 300 s"),
        (cluster(90, every=900), 900, "A look every 900 s,"),
        (cluster(failed=1), 5, "Its last look failed; Rollcall asks every 5 s until it answers."),
        (
            cluster(failed=4),
            40,
            "4 looks in a row failed; Rollcall asks every 40 s until it answers.",
        ),
        (cluster(4, failed=2), 80, "2 looks in a row failed; Rollcall asks every 80 s"),
        (cluster(failed=7), 300, "7 looks in a row failed; Rollcall asks every 300 s"),
        (
            cluster(failed=2_000_000),
            300,
            "2,000,000 looks in a row failed; Rollcall asks every 300 s",
        ),
        (cluster(failed=9, every=900), 900, "9 looks in a row failed; Rollcall asks every 900 s"),
    ],
)
def test_how_often_and_in_words(row: Cluster, seconds: float, words: str) -> None:
    assert looks_every(row) == seconds
    assert pace_words(row).startswith(words)


def test_failures_are_no_reason_to_call_a_look_late() -> None:
    assert (unhurried(cluster(failed=5)), unhurried(cluster(2.0))) == (5, 20)
