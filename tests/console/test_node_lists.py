"""Node names in short."""

from __future__ import annotations

import pytest

from apps.console.node_lists import node_list


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], ""),
        (["gpu-n17"], "gpu-n17"),
        (["gpu-n17", "gpu-n18", "gpu-n19", "gpu-n22"], "gpu-n[17-19,22]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["a1", "b2", "login"], "a1, b2, login"),
        (["n1", "n1"], "n1"),
    ],
)
def test_runs_of_numbers_are_written_as_ranges(names, short):
    assert node_list(names) == short
