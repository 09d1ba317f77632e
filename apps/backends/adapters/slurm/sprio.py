"""Reads what ``sprio`` prints: the terms of each waiting job's priority, by our names of them."""

from __future__ import annotations

from collections.abc import Iterator

from apps.backends.port import BackendError

# The weighted terms; ``size`` is of GPUs, ``job_size`` of nodes and CPUs, as docs/SLURM.md says.
TERMS = {
    "fair_share": "%F",
    "age": "%A",
    "size": "%T",
    "queue": "%P",
    "class": "%Q",
    "nice": "%N",
    "job_size": "%J",
    "association": "%B",
    "site": "%S",
}
COLUMNS = "|".join(("%i", "%Y", *TERMS.values()))


def terms_in(text: str) -> dict[int, dict[str, float]]:
    """Return by job id the terms that ``sprio -h -o`` COLUMNS printed, and their sum as ``priority``.

    Nice counts as it is added. A job in several partitions is printed once for each: it goes by the
    highest.
    """
    found: dict[int, dict[str, float]] = {}
    for number, row in _rows(text):
        if number not in found or row["priority"] > found[number]["priority"]:
            found[number] = row
    return found


def _rows(text: str) -> Iterator[tuple[int, dict[str, float]]]:
    for line in text.splitlines():
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("|")]
        try:
            number, priority, *values = cells
            row = {"priority": float(priority)}
            row |= {name: _sum(cell) for name, cell in zip(TERMS, values, strict=True)}
            job = int(number)
        except ValueError:
            raise BackendError(
                f"sprio printed a job in a way not understood: {line[:80]}.", retry=True
            ) from None
        row["nice"] = 0.0 - row["nice"]
        yield job, row


def _sum(cell: str) -> float:
    """Return a term; of TRES the sum of its parts, as ``cpu=10,gres/gpu=200``."""
    return sum(float(part.rpartition("=")[2]) for part in cell.split(",") if part)
