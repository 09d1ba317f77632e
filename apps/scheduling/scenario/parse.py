"""A scenario file read into values; nothing is guessed, and every reference is looked up."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from apps.engine.fairshare import POLICIES
from apps.engine.preemption import RULES
from apps.scheduling.scenario.check import check
from apps.scheduling.scenario.fields import (
    Field,
    Place,
    ScenarioError,
    duration,
    duration_or,
    flag,
    instant,
    moment,
    names_of_range,
    number,
    one_of,
    seconds_of,
    table,
    text,
    whole,
    whole_seconds,
    whole_seconds_or,
    words,
)
from apps.scheduling.scenario.shape import KEEP, Event, Job, Scenario

__all__ = ["ScenarioError", "read", "read_text"]

DEFAULT_NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOT_YET = "is not built yet: this version knows"
LATER_POLICIES = {
    name: f"{NOT_YET} {' and '.join(POLICIES)}"
    for name in ("dominant_share", "moving_average", "time_based")
    if name not in POLICIES
}
LATER_BACKFILLS = {"conservative": f"{NOT_YET} easy and none"}
LATER_RULES = {"fair": f"{NOT_YET} {', '.join(RULES)}"}
DAY = 86_400.0
FOREVER = 1_000_000_000.0
"""A runtime of "none", in seconds: longer than any scenario."""

WEIGHTS = {
    "fair_share": Field(number(0), 10_000.0),
    "age": Field(number(0), 1_000.0),
    "size": Field(number(0), 0.0),
    "queue": Field(number(0), 0.0),
    "class": Field(number(0), 100_000.0),
}


def _weights(place: Place, key: str, value: Any) -> dict[str, Any]:
    return table(Place(place.file, f"{place.table}.{key}"), value, WEIGHTS)


POLICY = {
    "fair_share": Field(one_of(*POLICIES, later=LATER_POLICIES), "fair_tree"),
    "half_life": Field(whole_seconds_or("none", positive=True), 7 * DAY),
    "window": Field(whole_seconds_or("none", positive=True)),
    "k": Field(number(0), 1.0),
    "weights": Field(_weights, {key: f.default for key, f in WEIGHTS.items()}),
    "max_age": Field(whole_seconds(positive=True), 7 * DAY),
    "preemption": Field(one_of(*RULES, later=LATER_RULES), "none"),
    "mode": Field(one_of("kill", "checkpoint", "demote"), "kill"),
    "grace": Field(duration(), 60.0),
    "min_runtime": Field(duration(), 0.0),
    "max_evictions_per_tick": Field(whole(0), 0),
    "cooldown": Field(duration(), 0.0),
    "thrash_after": Field(whole(1), 3),
    "placement": Field(one_of("pack", "spread", "frag"), "pack"),
    "backfill": Field(one_of("easy", "none", later=LATER_BACKFILLS), "easy"),
    "hold_late": Field(whole_seconds_or("none")),
    "gang_timeout": Field(whole_seconds_or("none", positive=True)),
    "lend_guarantee": Field(flag, True),
}


def _price(place: Place, key: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise place.wrong(key, f"must be a price, not {value!r}")
    try:
        found = Decimal(str(value))
    except InvalidOperation as error:
        raise place.wrong(key, f"must be a price, not {value!r}") from error
    if not found.is_finite() or found < 0:
        raise place.wrong(key, f"must be at least 0, not {value!r}")
    if found != round(found, 6):
        raise place.wrong(key, "has more than six decimals")
    return found


POOL = {
    "name": Field(text, required=True),
    "price": Field(_price, Decimal(0)),
    "usage_weight": Field(number(0), 1.0),
}
NODE = {
    "name": Field(names_of_range, required=True),
    "pool": Field(text, required=True),
    "gpus": Field(whole(1), required=True),
    "rack": Field(text, "none"),
    "nvlink": Field(text, "none"),
    "state": Field(one_of("up", "drained", "down"), "up"),
}


def _ceiling(place: Place, key: str, value: Any) -> int | None:
    return None if value == "none" else whole(0)(place, key, value)


QUOTA = {
    "guarantee": Field(whole(0), 0),
    "ceiling": Field(_ceiling),
    "weight": Field(number(0)),
}


def _quotas(place: Place, key: str, value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise place.wrong(key, "must be a table by pool")
    return {
        pool: table(Place(place.file, f"{place.table}.{key}.{pool}"), quota, QUOTA)
        for pool, quota in value.items()
    }


TENANT = {
    "name": Field(text, required=True),
    "parent": Field(text, "root"),
    "weight": Field(number(0), 1.0),
    "usage": Field(number(0), 0.0),
    "archived": Field(flag, False),
    "quota": Field(_quotas, {}),
}


def _runtime(place: Place, key: str, value: Any) -> float:
    return FOREVER if value == "none" else duration()(place, key, value)


def _job_fields(now: datetime) -> dict[str, Field]:
    return {
        "name": Field(text, required=True),
        "count": Field(whole(1)),
        "tenant": Field(text, required=True),
        "pool": Field(text, required=True),
        "size": Field(whole(1), 1),
        "min_size": Field(whole(1)),
        "gpus_per_member": Field(whole(1), 1),
        "submitted": Field(instant(now)),
        "limit": Field(whole_seconds_or("none", positive=True)),
        "runtime": Field(_runtime),
        "priority": Field(whole(), 0),
        "usage_factor": Field(number(0), 1.0),
        "nice": Field(whole(), 0),
        "preemptible": Field(flag, True),
        "topology": Field(one_of("none", "rack", "nvlink"), "none"),
        "held": Field(flag, False),
        "depends_on": Field(words, []),
        "state": Field(one_of("pending", "running"), "pending"),
        "started": Field(instant(now)),
        "on": Field(words),
        "last_checkpoint": Field(_or_never(now)),
        "checkpoint_takes": Field(duration_or("never"), 0.0),
    }


def _or_never(now: datetime) -> Any:
    read_instant = instant(now)

    def read(place: Place, key: str, value: Any) -> datetime | None:
        return None if value == "never" else read_instant(place, key, value)

    return read


def _rows(data: Mapping[str, Any], key: str, file: str) -> list[Any]:
    rows = data.get(key, [])
    if not isinstance(rows, list):
        raise Place(file, "").wrong(key, f"must be written as [[{key}]]")
    return rows


def _named(
    data: Mapping[str, Any], key: str, file: str, fields: Mapping[str, Field]
) -> list[dict[str, Any]]:
    return [
        table(Place(file, f"{key}.{k + 1}"), row, fields)
        for k, row in enumerate(_rows(data, key, file))
    ]


def _jobs_of(place: Place, raw: Any, now: datetime, at: datetime) -> list[Job]:
    """Return the jobs of one table, ``count`` of them; ``at`` is when they are submitted."""
    values = table(place, raw, _job_fields(now))
    running = values["state"] == "running"
    if running:
        if values["started"] is None:
            raise place.wrong("started", "is missing: the job runs")
        if values["on"] is None:
            raise place.wrong("on", "is missing: the job runs")
        if len(values["on"]) != values["size"]:
            raise place.wrong("on", f"names {len(values['on'])} nodes for {values['size']} members")
    elif values["started"] is not None or values["on"] is not None:
        raise place.wrong("started" if values["started"] else "on", "the job does not run")
    if values["min_size"] is not None and values["min_size"] > values["size"]:
        raise place.wrong("min_size", f"is above size {values['size']}")
    if values["submitted"] is None:
        values["submitted"] = values["started"] if running else at
    name, count = values.pop("name"), values.pop("count")
    if count is None:
        return [Job(name, values)]
    return [Job(f"{name}-{k + 1}", values) for k in range(count)]


EVENT_WORDS = (
    "node_down", "node_up", "drain", "undrain", "cancel", "checkpoint", "hold", "release",
    "pause", "resume", "archive",
)  # fmt: skip
FINISH = {
    "job": Field(text, required=True),
    "outcome": Field(one_of("succeeded", "failed"), "succeeded"),
}
SET_QUOTA = {
    "tenant": Field(text, required=True),
    "pool": Field(text, required=True),
    "guarantee": Field(whole(0), KEEP),
    "ceiling": Field(_ceiling, KEEP),
    "weight": Field(number(0), KEEP),
}


def _event(file: str, position: int, raw: Any, now: datetime) -> Event:
    place = Place(file, f"events.{position}")
    if not isinstance(raw, Mapping):
        raise place.wrong("events", "must be a table")
    if "at" not in raw:
        raise place.wrong("at", "is missing")
    at = instant(now)(place, "at", raw["at"])
    rest = {key: value for key, value in raw.items() if key != "at"}
    if len(rest) != 1:
        raise place.wrong("at", "an event has one thing beside it")
    what, value = next(iter(rest.items()))
    inner = Place(place.file, f"{place.table}.{what}")
    if what == "submit":
        return Event(at, what, _jobs_of(inner, value, now, at), position)
    if what == "finish":
        return Event(at, what, table(inner, value, FINISH), position)
    if what == "set_quota":
        return Event(at, what, table(inner, value, SET_QUOTA), position)
    if what not in EVENT_WORDS:
        raise place.wrong(what, "there is no such key")
    return Event(at, what, text(place, what, value), position)


def _later(now: datetime) -> dict[str, Field]:
    states = ("running", "pending", "reserving", "suspended")
    return {"at": Field(instant(now), required=True)} | {state: Field(words) for state in states}


def _paths(place: Place, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise place.wrong(key, "must be a table of paths")
    place = Place(place.file, f"{place.table}.{key}")
    for path, wanted in value.items():
        if not isinstance(wanted, str | bool | int | float):
            raise place.wrong(path, "must be a number, a string, true or false")
        if isinstance(wanted, float) and not math.isfinite(wanted):
            raise place.wrong(path, f"must be finite, not {wanted!r}")
    return dict(value)


def _expect(data: Mapping[str, Any], file: str, now: datetime) -> dict[str, Any]:
    def waits(place: Place, key: str, value: Any) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise place.wrong(key, "must be a table of reason codes")
        place = Place(place.file, f"{place.table}.{key}")
        return {job: text(place, job, code) for job, code in value.items()}

    def later(place: Place, key: str, value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list):
            raise place.wrong(key, "must be written as [[expect.later]]")
        return [
            table(Place(file, f"expect.later.{k + 1}"), row, _later(now))
            for k, row in enumerate(value)
        ]

    fields = {
        "starts": Field(words),
        "evicts": Field(words),
        "reserves": Field(words),
        "order": Field(words),
        "waits": Field(waits, {}),
        "numbers": Field(_paths, {}),
        "later": Field(later, []),
        "totals": Field(_paths, {}),
    }
    return table(Place(file, "expect"), data.get("expect", {}), fields)


TOP = (
    "title", "source", "now", "run_for", "every", "policy", "pools", "nodes", "tenants", "jobs",
    "events", "expect",
)  # fmt: skip


def read_text(content: str, file: str) -> Scenario:
    """Return a scenario; ``file`` is what errors call it.

    :raises ScenarioError: naming the file, the table and the key.
    """
    top = Place(file, "")
    try:
        data = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{file}: is no TOML: {error}") from error
    for key in data:
        if key not in TOP:
            raise top.wrong(key, "there is no such key")
    now = moment(top, "now", data["now"]) if "now" in data else DEFAULT_NOW
    every = duration(positive=True)(top, "every", data.get("every", "30s"))
    jobs = [
        job
        for k, row in enumerate(_rows(data, "jobs", file))
        for job in _jobs_of(Place(file, f"jobs.{k + 1}"), row, now, now)
    ]
    events = [_event(file, k + 1, row, now) for k, row in enumerate(_rows(data, "events", file))]
    run_for = seconds_of(top, "run_for", data.get("run_for", "0s"))
    if run_for < 0:
        raise top.wrong("run_for", "must be at least 0")
    scenario = Scenario(
        file=file,
        title=text(top, "title", data.get("title", file)),
        source=text(top, "source", data["source"]) if "source" in data else "",
        now=now,
        run_for=run_for,
        every=every,
        policy=table(Place(file, "policy"), data.get("policy", {}), POLICY),
        pools=_named(data, "pools", file, POOL),
        nodes=_named(data, "nodes", file, NODE),
        tenants=_named(data, "tenants", file, TENANT),
        jobs=jobs,
        events=sorted(events, key=lambda event: event.at),
        expect=_expect(data, file, now),
    )
    check(scenario)
    return scenario


def read(path: Path) -> Scenario:
    """Return the scenario of a file."""
    try:
        return read_text(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
