"""What the ledger's tests share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ledger.build import World, make_world


@pytest.fixture
def world(db: Any) -> World:
    """One cluster with a pool of GPUs, no node yet."""
    return make_world()
