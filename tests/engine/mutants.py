"""Finding a world in which a broken engine is seen."""

from __future__ import annotations

from hypothesis import find, settings
from hypothesis import strategies as st

from apps.engine.cycle import schedule
from apps.engine.types import Policy, Snapshot
from tests.engine import always
from tests.engine.worlds import snapshots


def caught(complaint: str, drawn: st.SearchStrategy[Policy], *, most: int) -> bool:
    """Tell whether the properties complain so of a plan within ``most`` worlds; else find raises."""

    def breaks(world: tuple[Snapshot, Policy]) -> bool:
        try:
            always.check(*world, schedule(*world))
        except AssertionError as error:
            return complaint in str(error)
        return False

    find(
        st.tuples(snapshots(), drawn),
        breaks,
        settings=settings(max_examples=most, deadline=None, derandomize=True, database=None),
    )
    return True
