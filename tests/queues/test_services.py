"""Queues, and the policy of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Cluster, Pool
from apps.common.errors import Conflict, Invalid
from apps.queues.models import ClusterPolicy, Queue
from apps.queues.selectors import policy_of, queues_visible_to
from apps.queues.services import add_class, default_class, queue_for, set_policy, set_queue
from apps.tenants.models import Tenant
from tests.factories import NOW, make_job

CHANGE: dict[str, Any] = {"by": None, "now": NOW, "reason": ""}


def test_a_queue_is_made_once(vision: Tenant, cluster: Cluster) -> None:
    assert queue_for(vision, cluster) == queue_for(vision, cluster)
    assert Queue.objects.count() == 1


def test_a_cluster_without_a_policy_has_the_defaults(cluster: Cluster) -> None:
    policy = policy_of(cluster)

    assert (policy.fair_share, policy.half_life_seconds) == ("fair_tree", 604_800)
    assert not ClusterPolicy.objects.exists()


def test_a_change_is_kept_and_written_down(cluster: Cluster, root: User) -> None:
    set_policy(cluster, half_life_seconds=None, by=root, now=NOW, reason="no decay")

    assert policy_of(cluster).half_life_seconds is None
    entry = Entry.objects.get(verb="policy changed")
    assert entry.changes == {"half_life_seconds": [604_800, None]}


def test_a_half_life_of_0_is_refused_in_words(cluster: Cluster) -> None:
    with pytest.raises(Invalid) as refusal:
        set_policy(cluster, half_life_seconds=0, **CHANGE)

    assert refusal.value.field == "half_life_seconds"
    assert refusal.value.message == "H = 0 is refused; choose none for no decay."
    assert policy_of(cluster).half_life_seconds == 604_800


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("half_life_seconds", -1),
        ("half_life_seconds", "week"),
        ("window_seconds", 0),
        ("gang_timeout_seconds", 0),
        ("max_age_seconds", 0),
        ("weight_age", -1.0),
        ("weight_age", float("nan")),
        ("weight_age", float("inf")),
        ("dampening", 0.0),
        ("fair_share", "lottery"),
        ("placement", "anywhere"),
        ("backfill", "conservative"),
        ("grace_seconds", 365 * 86_400),
        ("grace_seconds", -1),
        ("preemption", "fair"),
        ("mode", "beg"),
        ("thrash_after", -1),
        ("colour", "red"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any, cluster: Cluster) -> None:
    with pytest.raises(Invalid) as refusal:
        set_policy(cluster, **{field: value}, **CHANGE)

    assert refusal.value.field == field
    assert not ClusterPolicy.objects.exists()


def test_a_person_must_give_a_reason(cluster: Cluster, root: User) -> None:
    with pytest.raises(Invalid) as refusal:
        set_policy(cluster, weight_age=5.0, by=root, now=NOW, reason="")

    assert refusal.value.field == "reason"


def test_a_queue_is_closed_and_opened(vision: Tenant, cluster: Cluster, root: User) -> None:
    queue = queue_for(vision, cluster)
    change: dict[str, Any] = {"by": root, "now": NOW, "reason": "moving out"}

    set_queue(queue, factor=0.5, max_pending=10, closed=True, **change)
    assert (queue.closed_at, queue.factor, queue.max_pending) == (NOW, 0.5, 10)

    set_queue(queue, factor=0.5, max_pending=None, closed=False, **change)
    assert (queue.closed_at, queue.max_pending) == (None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("factor", 1.1), ("factor", -0.1), ("factor", float("nan")), ("max_pending", -1)],
)
def test_a_bad_queue_is_refused(field: str, value: Any, vision: Tenant, cluster: Cluster) -> None:
    queue = queue_for(vision, cluster)
    asked = {"factor": 0.0, "max_pending": None, "closed": False} | {field: value}

    with pytest.raises(Invalid) as refusal:
        set_queue(queue, by=None, now=NOW, reason="x", **asked)

    assert refusal.value.field == field
    assert (Queue.objects.get().factor, Queue.objects.get().max_pending) == (0.0, None)


def test_classes(db: None) -> None:
    assert default_class() == default_class()
    assert add_class("scavenger", now=NOW, priority=-5, usage_factor=0.0).usage_factor == 0.0
    with pytest.raises(Conflict):
        add_class("scavenger", now=NOW)
    with pytest.raises(Invalid) as refusal:
        add_class("odd", now=NOW, usage_factor=-1.0)
    assert refusal.value.field == "usage_factor"


def test_who_sees_a_queue(
    vision: Tenant, pool: Pool, alice: User, bob: User, carol: User, root: User
) -> None:
    make_job(vision, pool)

    assert [queues_visible_to(u).count() for u in (root, alice, bob, carol)] == [1, 1, 1, 0]
