"""Measures: ``python -m benchmarks [engine] [tick] [philly] [api] [slurm]``; all without a name.

Prints a line per figure and writes benchmarks/results.json; ends with 1 when a limit is missed.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PARTS = ("engine", "tick", "philly", "api", "slurm")
RESULTS = Path(__file__).with_name("results.json")


def _line(row: dict[str, Any]) -> str:
    limit = "" if row["limit"] is None else f"limit {row['limit']:g}"
    word = "ok" if row["ok"] else "MISSED"
    return f"{word:<7}{row['name']:<72}{row['value']:>12,.3f} {row['unit']:<6} {limit}"


def main(parts: list[str]) -> int:
    """Measure the named parts, or all."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(
            f"There is no benchmark {unknown[0]!r}; type: make bench ONLY={PARTS[0]}",
            file=sys.stderr,
        )
        return 2
    rows: list[dict[str, Any]] = []
    for part in parts or PARTS:
        for row in import_module(f"benchmarks.{part}").run():
            print(_line(row), flush=True)
            rows.append(row)
        # After each part: what was measured stays, should a later one break.
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
