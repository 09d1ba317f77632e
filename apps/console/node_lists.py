"""Node names in short, as Slurm writes them: ``gpu-n[17-20,22]``."""

from __future__ import annotations

import re
from collections.abc import Iterable

ENDS_IN_NUMBER = re.compile(r"^(.*?)(\d{1,9})$")


def node_list(names: Iterable[str]) -> str:
    """Return names joined, runs of numbers with one prefix and width in brackets."""
    found = [(name, ENDS_IN_NUMBER.match(name)) for name in sorted(set(names))]
    plain = [name for name, match in found if match is None]
    numbered = [(match[1], match[2]) for _, match in found if match is not None]
    padded = {prefix for prefix, digits in numbered if digits.startswith("0")}
    groups: dict[tuple[str, int], list[int]] = {}
    for prefix, digits in numbered:
        width = len(digits) if prefix in padded else 1
        groups.setdefault((prefix, width), []).append(int(digits))
    shown = [_group(prefix, width, sorted(numbers)) for (prefix, width), numbers in groups.items()]
    return ", ".join([*shown, *plain])


def _group(prefix: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [
        f"{run[0]:0{width}d}" if len(run) == 1 else f"{run[0]:0{width}d}-{run[-1]:0{width}d}"
        for run in runs
    ]
    if len(numbers) == 1:
        return f"{prefix}{parts[0]}"
    return f"{prefix}[{','.join(parts)}]"
