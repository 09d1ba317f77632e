"""What a scenario file refers to is looked up; what cannot be is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apps.scheduling.scenario.fields import Place
from apps.scheduling.scenario.shape import NODE_EVENTS, Event, Job, Scenario

JOB_EVENTS = ("cancel", "checkpoint", "hold", "release")
TENANT_EVENTS = ("pause", "resume", "archive")
STATES = ("running", "pending", "reserving", "suspended")


def _unique(names: Iterable[str], what: str, file: str) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Place(file, what).wrong("name", f"there are two called {name!r}")
        seen.add(name)
    return seen


def _refer(place: Place, key: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise place.wrong(key, f"there is none called {name!r}")


def check(scenario: Scenario) -> None:
    """Look up every reference.

    :raises ScenarioError: naming the file, the table and the key.
    """
    file = scenario.file
    pools = _unique((p["name"] for p in scenario.pools), "pools", file)
    _unique((n for row in scenario.nodes for n in row["name"]), "nodes", file)
    tenants = _unique((t["name"] for t in scenario.tenants), "tenants", file)
    submitted = [j for e in scenario.events if e.what == "submit" for j in e.value]
    jobs = _unique((j.name for j in [*scenario.jobs, *submitted]), "jobs", file)
    for k, node in enumerate(scenario.nodes):
        _refer(Place(file, f"nodes.{k + 1}"), "pool", node["pool"], pools)
    for k, tenant in enumerate(scenario.tenants):
        place = Place(file, f"tenants.{k + 1}")
        if tenant["name"] == "root":
            raise place.wrong("name", "root is the name of the root")
        _refer(place, "parent", tenant["parent"], tenants | {"root"})
        for pool in tenant["quota"]:
            _refer(place, "quota", pool, pools)
    _check_tree(scenario)
    for job in [*scenario.jobs, *submitted]:
        place = Place(file, f"jobs.{job.name}")
        _refer(place, "tenant", job.tenant, tenants)
        _refer(place, "pool", job.pool, pools)
        for other in job.depends_on:
            _refer(place, "depends_on", other, jobs)
    _check_running(scenario)
    _check_events(scenario, tenants, pools)
    _check_expected(scenario, jobs)


def _check_tree(scenario: Scenario) -> None:
    parent = {t["name"]: t["parent"] for t in scenario.tenants}
    for k, name in enumerate(parent):
        seen, at = {name}, parent[name]
        while at != "root":
            if at in seen:
                raise Place(scenario.file, f"tenants.{k + 1}").wrong(
                    "parent", f"{name!r} is above itself"
                )
            seen.add(at)
            at = parent[at]


def _check_running(scenario: Scenario) -> None:
    """Refuse a start to come, nodes of another pool, and more GPUs in use than a node has."""
    nodes = {name: row for row in scenario.nodes for name in row["name"]}
    used: defaultdict[str, int] = defaultdict(int)
    for job in scenario.jobs:
        place = Place(scenario.file, f"jobs.{job.name}")
        if job.state == "running" and job.started > scenario.now:
            raise place.wrong("started", "is after now")
        if job.submitted > scenario.now:
            raise place.wrong("submitted", "is after now: write an event")
        if job.state != "running":
            continue
        for name in job.on:
            _refer(place, "on", name, nodes)
            if nodes[name]["pool"] != job.pool:
                raise place.wrong("on", f"{name} is in the pool {nodes[name]['pool']}")
            used[name] += job.gpus_per_member
            if used[name] > nodes[name]["gpus"]:
                raise place.wrong("on", f"{name} has {nodes[name]['gpus']} GPUs, not {used[name]}")


def _check_events(scenario: Scenario, tenants: set[str], pools: set[str]) -> None:
    nodes = {name for row in scenario.nodes for name in row["name"]}
    jobs = {job.name for job in scenario.jobs}
    _check_depends(scenario, scenario.jobs, jobs)
    for event in scenario.events:
        place = Place(scenario.file, f"events.{event.number}")
        if event.at < scenario.now:
            raise place.wrong("at", "is before now")
        if event.what in NODE_EVENTS:
            _refer(place, event.what, event.value, nodes)
        elif event.what in JOB_EVENTS:
            _refer_job(place, event.what, event.value, jobs)
        elif event.what in TENANT_EVENTS:
            _refer(place, event.what, event.value, tenants)
        elif event.what == "finish":
            _refer_job(place, "finish.job", event.value["job"], jobs)
        elif event.what == "set_quota":
            _refer(place, "set_quota.tenant", event.value["tenant"], tenants)
            _refer(place, "set_quota.pool", event.value["pool"], pools)
        else:
            _check_submit(place, event, scenario, jobs)


def _refer_job(place: Place, key: str, name: str, known: set[str]) -> None:
    if name not in known:
        raise place.wrong(key, f"there is none called {name!r} by then")


def _check_submit(place: Place, event: Event, scenario: Scenario, known: set[str]) -> None:
    """Refuse what runs already, and add the jobs to those known."""
    for job in event.value:
        if job.state == "running":
            raise place.wrong("submit.state", "a submitted job is pending")
        if job.submitted > event.at:
            raise place.wrong("submit.submitted", "is after the event")
    known.update(job.name for job in event.value)
    _check_depends(scenario, event.value, known)


def _check_depends(scenario: Scenario, jobs: Sequence[Job], known: set[str]) -> None:
    """Refuse a dependency on a job that comes later, or on itself."""
    waits_for: Mapping[str, Any] = {job.name: job.depends_on for job in jobs}
    for job in jobs:
        place = Place(scenario.file, f"jobs.{job.name}")
        for other in job.depends_on:
            if other not in known:
                raise place.wrong("depends_on", f"{other!r} is submitted later")
        seen: set[str] = set()
        front = list(job.depends_on)
        while front:
            other = front.pop()
            if other == job.name:
                raise place.wrong("depends_on", f"{job.name!r} waits for itself")
            if other not in seen:
                seen.add(other)
                front += waits_for.get(other, ())


def _check_expected(scenario: Scenario, jobs: set[str]) -> None:
    place = Place(scenario.file, "expect")
    for key in ("starts", "evicts", "reserves", "order"):
        for name in scenario.expect[key] or ():
            _refer(place, key, name, jobs)
    for name in scenario.expect["waits"]:
        _refer(place, "waits", name, jobs)
    for k, later in enumerate(scenario.expect["later"]):
        for state in STATES:
            for name in later[state] or ():
                _refer(Place(scenario.file, f"expect.later.{k + 1}"), state, name, jobs)
