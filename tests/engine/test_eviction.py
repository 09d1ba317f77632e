"""Who is evicted for whom: DOMAIN §5's order and §7's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from apps.engine.cycle import schedule
from apps.engine.types import Passed
from tests.engine.build import snapshot_of, spell
from tests.engine.staging import Play, code, decide, runs, scene

# --- DOMAIN §7


def test_the_one_that_is_enough_is_evicted_and_the_others_are_given_back() -> None:
    jobs = [
        runs("two", [1, 2], gpus_per_member=8),
        runs("four", [3, 4, 5, 6], gpus_per_member=8),
        runs("eight", [7, 8, 9, 10, 11, 12, 13, 14], gpus_per_member=8),
        {"name": "need", "size": 8, "gpus_per_member": 8, "priority": 1},
    ]

    assert set(decide(scene(jobs, nodes=14))["evicts"]) == {"eight"}


def test_the_least_lost_work_goes_first() -> None:
    jobs = [
        runs("fresh", [1], gpus_per_member=4, last_checkpoint="-5m"),
        runs("stale", [1], gpus_per_member=4, last_checkpoint="-50m"),
        {"name": "need", "gpus_per_member": 4, "priority": 1},
    ]

    evicts = decide(scene(jobs))["evicts"]

    assert set(evicts) == {"fresh"}
    assert evicts["fresh"]["lost_gpu_hours"] == pytest.approx(20 / 60)


def test_lost_work_is_all_gpus_since_the_last_checkpoint() -> None:
    jobs = [
        runs("big", [n for n in range(1, 9) for _ in range(8)], last_checkpoint="-40m"),
        {"name": "need", "size": 64, "priority": 1},
    ]

    evicts = decide(scene(jobs, nodes=8))["evicts"]

    assert evicts["big"]["lost_gpu_hours"] == pytest.approx(42.6666667)


@pytest.mark.parametrize(("guarantee", "evicted"), [(0, set()), (2, {"pair"})])
def test_a_gang_that_cannot_be_halved_goes_for_a_guarantee_alone(
    guarantee: int, evicted: set[str]
) -> None:
    jobs = [
        *(runs(f"fixed{k}", [1], tenant="a", preemptible=False) for k in range(4)),
        runs("pair", [1, 1], tenant="a"),
        {"name": "need", "size": 2, "tenant": "b"},
    ]
    tenants = [
        {"name": "a", "quota": {"gpu": {"guarantee": 5}}},
        {"name": "b", "quota": {"gpu": {"guarantee": guarantee}}},
    ]

    answer = decide(scene(jobs, gpus=7, tenants=tenants, preemption="reclaim"))

    assert set(answer["evicts"]) == evicted


# --- the order of the candidates


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"priority": -1, "started": "-9h"}, {"started": "-1m"}),  # the lowest class
        ({"started": "-1h"}, {"started": "-2h"}),  # the least lost
        (
            {"started": "-1h", "last_checkpoint": "-10m"},
            {"started": "-2h", "last_checkpoint": "-10m"},
        ),
        ({"submitted": "-2h"}, {"submitted": "-3h"}),  # the latest submitted
        ({}, {}),  # the larger id: the second in the file
    ],
)
def test_candidates_come_in_order(first: dict[str, Any], second: dict[str, Any]) -> None:
    jobs = [
        runs("later", [1], gpus_per_member=4, **second),
        runs("sooner", [1], gpus_per_member=4, **first),
        {"name": "need", "gpus_per_member": 4, "priority": 1},
    ]

    assert set(decide(scene(jobs))["evicts"]) == {"sooner"}


def test_an_elastic_gang_loses_its_last_members_before_anyone_goes_whole() -> None:
    jobs = [
        runs("elastic", [1, 1, 1, 1], min_size=2, last_checkpoint="-50m"),
        runs("cheap", [1, 1, 1, 1], last_checkpoint="-1m"),
        {"name": "need", "size": 1, "priority": 1},
    ]

    evicts = decide(scene(jobs))["evicts"]

    assert {name: (e["mode"], e["members"]) for name, e in evicts.items()} == {
        "elastic": ("shrink", 1)
    }
    play = Play(scene(jobs))
    assert play.tick(all_leave=True)["starts"] == {"need": ["n1"]}
    kept = play.snapshot.running.size[play.snapshot.running.id == 1]
    assert kept.tolist() == [3]


def test_a_gang_that_shrank_may_go_whole_when_that_is_needed() -> None:
    jobs = [
        runs("elastic", [1, 1, 1, 1], min_size=2),
        {"name": "need", "size": 8, "priority": 1},
    ]

    evicts = decide(scene(jobs))["evicts"]

    assert evicts["elastic"]["mode"] == "kill"
    assert evicts["elastic"]["members"] == 4


def test_who_would_free_nothing_of_use_is_not_asked() -> None:
    jobs = [
        runs("useless", [1, 1], last_checkpoint="-1m"),
        runs("stays", [1], gpus_per_member=6, preemptible=False),
        runs("useful", [2], gpus_per_member=8, last_checkpoint="-59m"),
        {"name": "need", "gpus_per_member": 4, "priority": 1},
    ]
    scenario = scene(jobs, nodes=2)
    snapshot, policy = snapshot_of(scenario)

    plan = schedule(snapshot, policy)

    assert set(spell(scenario, snapshot, plan)["evicts"]) == {"useful"}
    said = dict(zip(plan.considered.victim.tolist(), plan.considered.passed.tolist(), strict=True))
    assert said == {
        0: Passed.NO_HELP,
        1: Passed.NOT_PREEMPTIBLE,
        2: Passed.CHOSEN,
    }


def test_nobody_is_evicted_on_a_node_that_takes_no_work() -> None:
    scenario = scene([runs("low", [1]), {"name": "need", "priority": 1}], gpus=1)
    scenario["nodes"][0]["state"] = "drained"
    scenario["nodes"].append({"name": "n2", "pool": "gpu", "gpus": 1})
    scenario["jobs"].append({**runs("kept", [2]), "tenant": "t", "pool": "gpu", "priority": 5})

    answer = decide(scenario)

    assert answer["evicts"] == {}
    assert code(answer, "need") == "capacity"


# --- who may be touched


def test_priority_leaves_other_tenants_their_guarantee() -> None:
    jobs = [
        *(runs(f"a{k}", [1], tenant="a") for k in range(8)),
        {"name": "need", "size": 4, "tenant": "b", "priority": 1},
    ]
    tenants = [{"name": "a", "quota": {"gpu": {"guarantee": 5}}}, {"name": "b"}]

    few, enough = (decide(scene(jobs, tenants=tenants)), [*jobs[:8], {**jobs[8], "size": 3}])

    assert few["evicts"] == {}
    assert set(decide(scene(enough, tenants=tenants))["evicts"]) == {"a5", "a6", "a7"}


def test_the_own_tenant_gives_way_freely_and_by_class_alone() -> None:
    jobs = [
        runs("low", [1], gpus_per_member=8),
        {"name": "high", "gpus_per_member": 8, "priority": 1},
    ]
    tenants = [{"name": "t", "quota": {"gpu": {"guarantee": 8}}}]

    by_class = decide(scene(jobs, tenants=tenants, preemption="reclaim"))
    equal = decide(scene([jobs[0], {**jobs[1], "priority": 0}], preemption="reclaim"))

    assert by_class["evicts"]["low"]["rule"] == "priority"
    assert equal["evicts"] == {}


def test_a_parents_promise_is_not_void_for_its_children() -> None:
    jobs = [
        runs("gang", [1] * 8, tenant="q"),
        {"name": "need", "size": 4, "tenant": "c"},
    ]
    tenants = [
        {"name": "p", "quota": {"gpu": {"guarantee": 8}}},
        {"name": "c", "parent": "p"},
        {"name": "q"},
    ]

    evicts = decide(scene(jobs, tenants=tenants, preemption="reclaim"))["evicts"]

    assert evicts["gang"]["rule"] == "reclaim"


def test_a_ceiling_counts_without_the_victims() -> None:
    jobs = [
        runs("low", [1] * 4),
        {"name": "high", "size": 4, "priority": 1},
        {"name": "equal", "size": 4},
    ]
    tenants = [{"name": "t", "quota": {"gpu": {"ceiling": 4}}}]

    play = Play(scene(jobs, tenants=tenants))

    assert set(play.answer()["evicts"]) == {"low"}
    assert code(play.answer(), "high") == "leaving"
    assert code(play.answer(), "equal") == "ceiling"
    # Its place is idle all along: it starts when the ceiling has room.
    assert len(play.answer()["reserves"]["high"]) == 4
    assert set(play.tick(all_leave=True)["starts"]) == {"high"}


def test_work_that_cannot_be_preempted_stays_within_the_guarantee() -> None:
    jobs = [
        runs("fixed", [1, 1], preemptible=False),
        {"name": "more", "size": 3, "preemptible": False},
        {"name": "fits", "size": 2, "preemptible": False},
        {"name": "any", "size": 3},
    ]
    tenants = [{"name": "t", "quota": {"gpu": {"guarantee": 4}}}]

    answer = decide(scene(jobs, tenants=tenants, preemption="reclaim"))

    assert answer["jobs"]["more"]["reason"] == {
        "code": "guarantee",
        "tenant": "t",
        "needed": 3,
        "available": 2,
    }
    assert set(answer["starts"]) == {"fits", "any"}
    assert set(decide(scene(jobs, tenants=tenants))["starts"]) == {"more", "fits"}
