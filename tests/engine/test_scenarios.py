"""The first decision of every shared scenario, by the engine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.build import answer, load

SHARED = Path(__file__).parents[3] / "shared" / "scenarios"
OWN = Path(__file__).parent / "scenarios"
FIRST = ("quota-is-kept", "lent-and-borrowed", "weightless-waits")
"""Of our own, which all run through the whole tick, those that are about one decision alone."""
FILES = [
    path for path in sorted([*SHARED.glob("*.toml"), *(OWN / f"{name}.toml" for name in FIRST)])
]


def look_up(tree: Any, path: str) -> Any:
    """Follow a path in the answer; a key with dots in it is matched whole."""
    while path:
        for key in sorted(tree, key=len, reverse=True):
            if path == key or path.startswith(key + "."):
                tree, path = tree[key], path[len(key) + 1 :]
                break
        else:
            raise KeyError(path)
    return tree


def has_numbers_of_the_engine(path: str) -> bool:
    return path.startswith(("jobs.", "tenants.")) and not path.endswith(("gpu_hours", ".state"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_first_decision_is_as_the_scenario_expects(path: Path) -> None:
    scenario = load(path)
    expect = scenario.get("expect", {})

    got = answer(scenario)

    if "starts" in expect:
        assert sorted(got["starts"]) == sorted(expect["starts"])
    if "evicts" in expect:
        assert sorted(got["evicts"]) == sorted(expect["evicts"])
    if "reserves" in expect:
        assert sorted(got["reserves"]) == sorted(expect["reserves"])
    if "order" in expect:
        assert got["order"] == expect["order"]
    for job, code in expect.get("waits", {}).items():
        assert got["jobs"][job]["reason"]["code"] == code, job
    for where, value in expect.get("numbers", {}).items():
        if has_numbers_of_the_engine(where):
            found = look_up(got, where)
            assert found == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6))
