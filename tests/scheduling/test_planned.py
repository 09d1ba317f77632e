"""Policies that a made history tries in turn, each from its instant on."""

from __future__ import annotations

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Cluster
from apps.queues.models import ClusterPolicy
from apps.scheduling.frame import Frames
from apps.scheduling.leases import claim
from apps.scheduling.planned import PLANNED, PolicyChange, plan_policies, set_due
from tests.scheduling.playground import Playground


def changes(play: Playground, *modes: tuple[float, str]) -> list[PolicyChange]:
    return [PolicyChange(play.at(at), f"try {mode}", {"mode": mode}) for at, mode in modes]


def told() -> list[tuple[object, ...]]:
    rows = Entry.objects.filter(verb="policy changed").order_by("id")
    return [(row.at, row.reason, row.actor and row.actor.username) for row in rows]


def test_each_is_set_by_the_first_tick_from_its_instant_on(play: Playground) -> None:
    User.objects.create(username="admin")
    plan_policies(play.cluster, changes(play, (0, "kill"), (100, "demote"), (400, "checkpoint")))

    modes = []
    for second in (0, 60, 120, 180):
        play.tick(second)
        modes.append(ClusterPolicy.objects.get().mode)

    assert modes == ["kill", "kill", "demote", "demote"]
    assert told() == [
        (play.at(0), "try kill", "admin"),
        (play.at(120), "try demote", "admin"),
    ]
    left = Cluster.objects.get().options[PLANNED]
    assert [row["columns"] for row in left] == [{"mode": "checkpoint"}]


def test_those_that_came_between_two_ticks_are_set_in_order_and_of_one_instant_the_last(
    play: Playground,
) -> None:
    plan_policies(
        play.cluster, changes(play, (30, "demote"), (10, "kill"), (10, "checkpoint"), (40, "kill"))
    )

    play.tick(60)

    assert [reason for _, reason, _ in told()] == ["try checkpoint", "try demote", "try kill"]
    assert ClusterPolicy.objects.get().mode == "kill"


def test_a_tick_that_is_cut_off_sets_it_once(play: Playground) -> None:
    plan_policies(play.cluster, changes(play, (0, "demote")))

    play.tick_cut_off("decide", 0)
    play.tick(0)

    assert len(told()) == 1


def test_what_others_wrote_among_the_options_meanwhile_stays(play: Playground) -> None:
    plan_policies(play.cluster, changes(play, (10, "demote"), (20, "kill")))
    stale = Cluster.objects.get()
    Cluster.objects.update(options={**stale.options, "made": {"until": "later"}})
    lease = claim(stale)
    assert lease is not None

    set_due(stale, lease, Frames(stale), now=play.at(15))

    for options in (Cluster.objects.get().options, stale.options):
        assert options["made"] == {"until": "later"}
        assert [row["reason"] for row in options[PLANNED]] == ["try kill"]
    assert ClusterPolicy.objects.get().mode == "demote"


def test_a_decision_of_the_same_batch_is_made_by_the_new_policy(play: Playground) -> None:
    plan_policies(play.cluster, changes(play, (10, "demote")))
    frames = Frames(play.cluster)
    before = frames.get().policy.mode
    lease = claim(play.cluster)
    assert lease is not None

    set_due(play.cluster, lease, frames, now=play.at(10))

    assert (before, frames.get().policy.mode) == ("kill", "demote")
