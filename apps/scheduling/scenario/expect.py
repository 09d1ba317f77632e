"""What a scenario expects, held against what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apps.jobs.states import JobState
from apps.scheduling.scenario.answer import Answer
from apps.scheduling.scenario.run import Outcome, States
from apps.scheduling.scenario.shape import Scenario

TOLERANCE = 1e-6
MISSING = object()
STATES = {
    # An admitted gang was told to start and holds its GPUs: to a reader it runs.
    "running": {JobState.RUNNING, JobState.ADMITTED},
    "pending": {JobState.PENDING},
    "reserving": {JobState.RESERVING},
    "suspended": {JobState.SUSPENDED},
}


def look_up(answer: Any, path: str) -> Any:
    """Return what stands at a dotted path; a list at its end is its length; MISSING if nothing.

    A key with dots in it is matched whole, the longest first.
    """
    if not path:
        return len(answer) if isinstance(answer, list) else answer
    parts = path.split(".")
    if isinstance(answer, list):
        index = int(parts[0]) if parts[0].isdecimal() else -1
        if not 0 <= index < len(answer):
            return MISSING
        return look_up(answer[index], ".".join(parts[1:]))
    if isinstance(answer, Mapping):
        for k in range(len(parts), 0, -1):
            key = ".".join(parts[:k])
            if key in answer:
                found = look_up(answer[key], ".".join(parts[k:]))
                if found is not MISSING:
                    return found
    return MISSING


def equals(found: Any, wanted: Any) -> bool:
    """Return whether a value is the one wanted: numbers to 1e-6 relative, absolute at 0."""
    if wanted == "null":
        return found is None
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, str) or isinstance(found, str):
        return bool(found == wanted)
    if found is None or found is MISSING or isinstance(found, list | Mapping):
        return False
    return bool(abs(found - wanted) <= TOLERANCE * (abs(wanted) or 1))


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(row["job"] for row in rows)


def _first(scenario: Scenario, answer: Answer) -> Iterator[str]:
    expect = scenario.expect
    for key, rows in (("starts", "starts"), ("evicts", "evictions"), ("reserves", "reserves")):
        if expect[key] is not None and sorted(expect[key]) != _names(answer[rows]):
            yield f"{key}: expected {sorted(expect[key])}, found {_names(answer[rows])}"
    if expect["order"] is not None and expect["order"] != answer["order"]:
        yield f"order: expected {expect['order']}, found {answer['order']}"
    for job, code in expect["waits"].items():
        reason = answer["jobs"].get(job, {}).get("reason")
        found = reason["code"] if reason else None
        if found != code:
            yield f"waits.{job}: expected {code}, found {found or 'it does not wait'}"


def _paths(answer: Answer, wanted: Mapping[str, Any], table: str) -> Iterator[str]:
    for path, value in wanted.items():
        found = look_up(answer, path)
        if not equals(found, value):
            said = "nothing" if found is MISSING else repr(found)
            yield f'{table}."{path}": expected {value!r}, found {said}'


def _later(later: Mapping[str, Any], states: States) -> Iterator[str]:
    for word, meant in STATES.items():
        if later[word] is None:
            continue
        found = sorted(job for job, state in states.items() if state in meant)
        if found != sorted(later[word]):
            at = f"{later['at']:%Y-%m-%dT%H:%M:%SZ}"
            yield f"later at {at}: {word}: expected {sorted(later[word])}, found {found}"


def failures(scenario: Scenario, outcome: Outcome) -> list[str]:
    """Return a sentence for each expectation that does not hold."""
    found = [*_first(scenario, outcome.first)]
    found += _paths(outcome.first, scenario.expect["numbers"], "numbers")
    for later in scenario.expect["later"]:
        found += _later(later, outcome.states_at(later["at"]))
    found += _paths(outcome.last, scenario.expect["totals"], "totals")
    return found
