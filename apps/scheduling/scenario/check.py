"""What a scenario file refers to is looked up; what cannot be is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from apps.scheduling.scenario.fields import Place
from apps.scheduling.scenario.shape import Job, Scenario


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


def _check(scenario: Scenario) -> None:
    """Look up every reference."""
    file = scenario.file
    pools = _unique((p["name"] for p in scenario.pools), "pools", file)
    nodes = _unique((n for row in scenario.nodes for n in row["name"]), "nodes", file)
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
        for node_name in job.on or ():
            _refer(place, "on", node_name, nodes)
        for other in job.depends_on:
            _refer(place, "depends_on", other, jobs)
    _check_events(scenario, nodes, tenants, pools, jobs)
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


def _check_events(
    scenario: Scenario, nodes: set[str], tenants: set[str], pools: set[str], jobs: set[str]
) -> None:
    for k, event in enumerate(scenario.events):
        place = Place(scenario.file, f"events.{k + 1}")
        if event.at < scenario.now:
            raise place.wrong("at", "is before now")
        if event.what in ("node_down", "node_up", "drain", "undrain"):
            _refer(place, event.what, event.value, nodes)
        elif event.what in ("cancel", "checkpoint", "hold", "release"):
            _refer(place, event.what, event.value, jobs)
        elif event.what in ("pause", "resume", "archive"):
            _refer(place, event.what, event.value, tenants)
        elif event.what == "finish":
            _refer(place, "finish.job", event.value["job"], jobs)
        elif event.what == "set_quota":
            _refer(place, "set_quota.tenant", event.value["tenant"], tenants)
            _refer(place, "set_quota.pool", event.value["pool"], pools)
        elif any(j.state == "running" for j in event.value):
            raise place.wrong("submit", "a submitted job is pending")


def _check_expected(scenario: Scenario, jobs: set[str]) -> None:
    place = Place(scenario.file, "expect")
    for key in ("starts", "evicts", "reserves", "order"):
        for name in scenario.expect[key] or ():
            _refer(place, key, name, jobs)
    for name in scenario.expect["waits"]:
        _refer(place, "waits", name, jobs)
    for k, later in enumerate(scenario.expect["later"]):
        for state in ("running", "pending", "reserving", "suspended"):
            for name in later[state] or ():
                _refer(Place(scenario.file, f"expect.later.{k + 1}"), state, name, jobs)
