"""Playing a scenario: the production tick at each decision, events between, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from apps.backends import worlds
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.common.errors import DomainError
from apps.jobs.models import Attempt, Job
from apps.jobs.services import cancel_job, hold_job, release_job
from apps.quotas.models import Quota
from apps.quotas.services import set_quota
from apps.scheduling.leases import Lease, claim, renew
from apps.scheduling.models import Tick
from apps.scheduling.scenario.answer import Answer, answer_of
from apps.scheduling.scenario.fields import ScenarioError
from apps.scheduling.scenario.setup import Stage, add_jobs, set_up
from apps.scheduling.scenario.shape import KEEP, NODE_EVENTS, Event, Scenario, end_of
from apps.scheduling.services import pass_once
from apps.tenants.services import archive_tenant, pause_tenant, resume_tenant

States = dict[str, str]


@dataclass(slots=True)
class Outcome:
    """What a scenario did: the answer after the first decision and at the end; states between."""

    first: Answer
    last: Answer
    states: list[tuple[datetime, States]] = field(default_factory=list)

    def states_at(self, at: datetime) -> States:
        """Return each job's state after the last decision at or before an instant."""
        found: States = {}
        for when, states in self.states:
            if when <= at:
                found = states
        return found


def _uid_of(job: Job) -> str | None:
    row = Attempt.objects.filter(job=job, ended_at__isnull=True).order_by("-number").first()
    return None if row is None else str(row.uid)


JOB_EVENTS: dict[str, Callable[..., Any]] = {
    "cancel": cancel_job,
    "hold": hold_job,
    "release": release_job,
}
TENANT_EVENTS: dict[str, Callable[..., Any]] = {"pause": pause_tenant, "resume": resume_tenant}


def _set_quota(stage: Stage, value: dict[str, Any], at: datetime) -> None:
    """Change what is named, keep the rest."""
    tenant, pool = stage.tenants[value["tenant"]], stage.pools[value["pool"]]
    now = Quota.objects.filter(tenant=tenant, pool=pool).first() or Quota(tenant=tenant, pool=pool)
    wanted = {
        key: getattr(now, key) if value[key] is KEEP else value[key]
        for key in ("guarantee", "ceiling", "weight")
    }
    set_quota(tenant, pool, **wanted, by=None, now=at, reason="event of a scenario")


def _happen(stage: Stage, event: Event) -> None:
    """Let one event happen at its instant."""
    world, at = worlds.world_of(stage.cluster), event.at
    if event.what in NODE_EVENTS:
        world.set_node_state(event.value, NODE_EVENTS[event.what], at=at)
    elif event.what == "submit":
        add_jobs(stage, event.value)
    elif event.what == "set_quota":
        _set_quota(stage, event.value, at)
    elif event.what == "archive":
        archive_tenant(_fresh(stage.tenants[event.value]), by=None, now=at, reason="event")
    elif event.what in TENANT_EVENTS:
        TENANT_EVENTS[event.what](_fresh(stage.tenants[event.value]), by=None, now=at)
    elif event.what in JOB_EVENTS:
        job = Job.objects.get(pk=stage.jobs[event.value].pk)
        JOB_EVENTS[event.what](job, by=None, now=at)
    else:
        name = event.value["job"] if event.what == "finish" else event.value
        uid = _uid_of(stage.jobs[name])
        if uid is not None and event.what == "finish":
            world.finish(uid, event.value["outcome"], at=at)
        elif uid is not None:
            world.checkpoint(uid, at=at)


def _fresh(row: Any) -> Any:
    row.refresh_from_db()
    return row


def _states(stage: Stage) -> States:
    return dict(Job.objects.filter(cluster=stage.cluster).values_list("name", "state"))


def _instants(scenario: Scenario) -> list[datetime]:
    """Return when decisions fall: at now, every ``every``, and at the end."""
    end, step = end_of(scenario), timedelta(seconds=scenario.every)
    found, at = [], scenario.now
    while at < end:
        found.append(at)
        at += step
    return [*found, end]


def _claim(cluster: Cluster) -> Lease:
    lease = claim(cluster, holder="scenario")
    if lease is None:
        raise RuntimeError("a cluster of a scenario is ticked by somebody else")
    return lease


def _decide(stage: Stage, lease: Lease, at: datetime) -> Tick:
    renew(lease, clock_now=at)
    stage.cluster.clock_now = at
    tick = pass_once(stage.cluster, backend_of(stage.cluster), lease, now=at)
    if tick is None:
        raise RuntimeError("a tick that shows is written")
    return tick


def _play(scenario: Scenario) -> Outcome:
    stage = set_up(scenario)
    lease = _claim(stage.cluster)
    events = list(scenario.events)
    outcome: Outcome | None = None
    tick = None
    for at in _instants(scenario):
        while events and events[0].at <= at:
            event = events.pop(0)
            try:
                _happen(stage, event)
            except DomainError as error:
                raise ScenarioError(
                    f"{scenario.file}: [events.{event.number}] {event.what}: {error.message}"
                ) from error
        tick = _decide(stage, lease, at)
        if outcome is None:
            first = answer_of(stage, tick)
            outcome = Outcome(first, first)
        outcome.states.append((at, _states(stage)))
    if outcome is None or tick is None:
        raise RuntimeError("a scenario has one decision at least")
    outcome.last = answer_of(stage, tick)
    worlds.forget_world(stage.cluster)
    return outcome


def play(scenario: Scenario) -> Outcome:
    """Play a scenario on the present database and leave nothing behind.

    :raises ScenarioError: if an event cannot happen.
    """
    with transaction.atomic():
        point = transaction.savepoint()
        try:
            return _play(scenario)
        finally:
            transaction.savepoint_rollback(point)
