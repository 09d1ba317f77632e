"""A playground for each test of the tick."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.backends.worlds import forget_world
from tests.scheduling.playground import Playground, make_playground


@pytest.fixture
def play(db: None) -> Iterator[Playground]:
    """Two nodes of four GPUs, nothing on them, never looked at."""
    play = make_playground()
    yield play
    forget_world(play.cluster)
