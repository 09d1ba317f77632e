"""The steps a tick comes through, and an eviction; the tests of faults put a blow in their place."""


def reached(step: str) -> None:
    """Do nothing at a step.

    A tick's: observe, decide, write, act, launched, ranking (written down, and not asked yet), ranked (and
    not written yet), book. An eviction's: recorded (and not committed
    yet), asking, asked (and not written yet), left (and not committed yet). An import's: history,
    history-end (neither committed yet).
    """
