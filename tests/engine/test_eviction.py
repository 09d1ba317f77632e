"""Who is evicted for whom: DOMAIN §5's order and §7's numbers, and what becomes of a promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apps.engine.cycle import schedule
from apps.engine.errors import Refused
from apps.engine.types import MICROSECOND, Passed, Plan, Policy, Reason, Snapshot
from tests.engine.build import snapshot_of, spell
from tests.engine.clock import apply, pass_time

MINUTE = 60 * MICROSECOND


def scene(
    jobs: list[dict[str, Any]],
    *,
    nodes: int = 1,
    gpus: int = 8,
    tenants: list[dict[str, Any]] | None = None,
    **policy: Any,
) -> dict[str, Any]:
    """Write a scenario of one pool down; jobs are of tenant t unless they say so."""
    return {
        "policy": {"preemption": "priority", **policy},
        "pools": [{"name": "gpu"}],
        "nodes": [{"name": f"n[1-{nodes}]", "pool": "gpu", "gpus": gpus}],
        "tenants": tenants or [{"name": "t"}],
        "jobs": [{"tenant": "t", "pool": "gpu", **job} for job in jobs],
    }


def runs(name: str, on: list[int], started: str = "-1h", **more: Any) -> dict[str, Any]:
    nodes = [f"n{n}" for n in on]
    return {
        "name": name,
        "state": "running",
        "started": started,
        "on": nodes,
        "size": len(on),
        **more,
    }


def decide(scenario: dict[str, Any]) -> dict[str, Any]:
    snapshot, policy = snapshot_of(scenario)
    return spell(scenario, snapshot, schedule(snapshot, policy))


def code(answer: dict[str, Any], job: str) -> str:
    found: str = answer["jobs"][job]["reason"]["code"]
    return found


class Play:
    """A scenario that goes on: decided, carried out, and time passed, by the engine alone."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        self.snapshot, self.policy = snapshot_of(scenario)
        self.plan: Plan = schedule(self.snapshot, self.policy)

    def tick(self, minutes: float = 0.5, *, all_leave: bool = False) -> dict[str, Any]:
        """Carry the last plan out, let time pass and decide again."""
        after = apply(self.snapshot, self.policy, self.plan)
        pause = 0 if all_leave else round(minutes * MINUTE)
        return self.see(pass_time(after, pause, all_leave=all_leave))

    def see(self, snapshot: Snapshot) -> dict[str, Any]:
        self.snapshot = snapshot
        self.plan = schedule(self.snapshot, self.policy)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        return spell(self.scenario, self.snapshot, self.plan)

    def running(self) -> set[str]:
        names = {k + 1: job["name"] for k, job in enumerate(self.scenario["jobs"])}
        return {names[i] for i in self.snapshot.running.id.tolist()}


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


# --- later


def test_a_set_goes_whole_within_the_limit_or_waits() -> None:
    jobs = [
        *(runs(f"low{k}", [1], gpus_per_member=2) for k in range(4)),
        runs("other", [2], priority=-1, gpus_per_member=2),
        {"name": "wide", "gpus_per_member": 8, "priority": 2},
        {"name": "slim", "gpus_per_member": 2, "priority": 1},
    ]
    scenario = scene(jobs, max_evictions_per_tick=3)
    scenario["nodes"].append({"name": "n2", "pool": "gpu", "gpus": 2})

    answer = decide(scenario)

    assert code(answer, "wide") == "deferred"
    assert "until" not in answer["jobs"]["wide"]["reason"]
    assert set(answer["evicts"]) == {"other"}
    assert code(answer, "slim") == "leaving"


@pytest.mark.parametrize("key", ["min_runtime", "cooldown"])
def test_who_may_go_only_later_defers(key: str) -> None:
    scenario = scene(
        [
            runs("low", [1], started="-10m", gpus_per_member=8),
            {"name": "need", "gpus_per_member": 8, "priority": 1},
        ],
        **{key: "25m"},
    )
    snapshot, policy = snapshot_of(scenario)
    running = replace(snapshot.running, restarted=snapshot.running.started)

    plan = schedule(replace(snapshot, running=running), policy)

    assert plan.verdicts.reason.tolist() == [Reason.DEFERRED]
    assert plan.verdicts.until.tolist() == [snapshot.now + 15 * MINUTE]
    assert len(plan.evictions.victim) == 0


def test_a_job_that_thrashes_is_left_alone() -> None:
    scenario = scene(
        [runs("low", [1], gpus_per_member=8), {"name": "need", "gpus_per_member": 8, "priority": 1}]
    )
    snapshot, policy = snapshot_of(scenario)
    often = replace(snapshot, running=replace(snapshot.running, evictions=np.array([3])))

    alone = schedule(often, policy)

    assert len(alone.evictions.victim) == 0
    assert alone.verdicts.reason.tolist() == [Reason.CAPACITY]
    assert len(schedule(often, replace(policy, thrash_after=4)).evictions.victim) == 1


def test_a_demoted_job_leaves_by_checkpoint_once_its_grace_is_over() -> None:
    jobs = [
        runs("low", [1], gpus_per_member=8),
        {"name": "high", "gpus_per_member": 8, "priority": 1},
    ]
    play = Play(scene(jobs, mode="demote", grace="60s"))

    first = play.answer()
    between = play.tick(0.5)
    over = play.tick(0.5)
    leaves = play.tick(0.5)

    assert first["evicts"]["low"]["mode"] == "demote"
    assert code(first, "high") == "deferred"
    assert first["jobs"]["high"]["reason"]["until"] == snapshot_of(play.scenario)[0].now + MINUTE
    assert between["evicts"] == {}
    assert code(between, "high") == "deferred"
    assert over["evicts"]["low"]["mode"] == "checkpoint"
    assert code(over, "high") == "leaving"
    assert leaves["evicts"] == {}
    assert set(play.tick(0.5)["starts"]) == {"high"}


def test_who_was_demoted_for_one_gang_is_not_taken_by_another() -> None:
    jobs = [
        runs("one", [1], gpus_per_member=8, started="-2h"),
        runs("two", [2], gpus_per_member=8, started="-1h"),
        {"name": "first", "gpus_per_member": 8, "priority": 1, "submitted": "-9m"},
        {"name": "urgent", "gpus_per_member": 8, "priority": 2, "held": True},
    ]
    play = Play(scene(jobs, nodes=2, mode="demote"))
    assert set(play.answer()["evicts"]) == {"two"}

    held = apply(play.snapshot, play.policy, play.plan)
    answer = play.see(
        replace(held, pending=replace(held.pending, gate=np.zeros(2, dtype=np.int64)))
    )

    assert {name: e["for"] for name, e in answer["evicts"].items()} == {"one": "urgent"}


# --- promises


def test_a_promise_outlasts_a_change_of_order() -> None:
    jobs = [
        runs("low", [1], gpus_per_member=8),
        {"name": "high", "gpus_per_member": 8, "priority": 1},
        {"name": "higher", "gpus_per_member": 8, "priority": 2, "held": True},
    ]
    play = Play(scene(jobs, mode="checkpoint"))
    asked = apply(play.snapshot, play.policy, play.plan)
    free = replace(asked.pending, gate=np.zeros(2, dtype=np.int64))

    leaving = play.see(replace(asked, pending=free))
    left = play.tick(1)

    assert leaving["order"] == ["higher", "high"]
    assert code(leaving, "high") == "leaving"
    assert code(leaving, "higher") == "capacity"
    assert set(left["starts"]) == {"high"}


def test_what_is_left_over_serves_the_next() -> None:
    jobs = [
        runs("low", [1], gpus_per_member=8),
        {"name": "six", "size": 6, "priority": 2},
        {"name": "two", "size": 2, "priority": 1},
        {"name": "none", "size": 1, "priority": 0},
    ]
    play = Play(scene(jobs))

    answer = play.answer()

    assert set(answer["evicts"]) == {"low"}
    assert [code(answer, name) for name in ("six", "two", "none")] == [
        "leaving", "leaving", "capacity"
    ]  # fmt: skip
    assert play.plan.room.promised.tolist() == [8]
    assert set(play.tick(all_leave=True)["starts"]) == {"six", "two"}


def test_the_idle_part_is_held_and_the_rest_is_promised() -> None:
    jobs = [
        runs("low", [2], gpus_per_member=8),
        {"name": "gang", "size": 12, "priority": 1},
        {"name": "small", "size": 1},
    ]
    play = Play(scene(jobs, nodes=2, mode="checkpoint"))

    answer = play.answer()

    assert len(answer["reserves"]["gang"]) == 8
    assert play.plan.promises.node.tolist() == [1, 1, 1, 1, 1]
    assert play.plan.promises.job.tolist() == [0, 1]  # small: of the four that are left over
    assert code(answer, "small") == "leaving"
    ranks = [*play.plan.holds.rank.tolist(), *play.plan.promises.rank[:4].tolist()]
    assert sorted(ranks) == list(range(12))


def test_a_victim_whose_beneficiary_is_gone_may_stay() -> None:
    jobs = [
        runs("low", [1], gpus_per_member=8),
        {"name": "high", "gpus_per_member": 8, "priority": 1},
    ]
    play = Play(scene(jobs, mode="checkpoint"))
    asked = apply(play.snapshot, play.policy, play.plan)
    gone = replace(asked.pending, gate=np.array([Reason.HELD]))

    play.see(replace(asked, pending=gone))

    assert play.plan.stays.tolist() == [0]
    assert play.plan.leaving.job.tolist() == []


def test_a_gang_that_fits_meanwhile_starts_and_its_victim_may_stay() -> None:
    jobs = [
        runs("low", [1], gpus_per_member=8),
        runs("ends", [2], gpus_per_member=8, preemptible=False, limit="61m"),
        {"name": "high", "gpus_per_member": 8, "priority": 1},
    ]
    play = Play(scene(jobs, nodes=2, mode="checkpoint", grace="10m"))
    assert set(play.answer()["evicts"]) == {"low"}

    answer = play.tick(2)

    assert answer["starts"] == {"high": ["n2"]}
    assert play.plan.stays.tolist() == [0]


def test_a_promise_is_mended_when_a_node_of_it_is_lost() -> None:
    jobs = [
        runs("low", [1], gpus_per_member=8),
        runs("lower", [2], gpus_per_member=8, priority=-1),
        runs("spare", [3], gpus_per_member=8, limit="61m", preemptible=False),
        {"name": "high", "size": 2, "gpus_per_member": 8, "priority": 1},
    ]
    play = Play(scene(jobs, nodes=3, mode="checkpoint", grace="10m"))
    asked = pass_time(apply(play.snapshot, play.policy, play.plan), 2 * MINUTE)
    lost = replace(asked.nodes, state=np.array([2, 0, 0]))

    answer = play.see(replace(asked, nodes=lost))

    assert code(answer, "high") == "leaving"
    assert set(answer["reserves"]["high"].values()) == {"n3"}
    assert play.plan.promises.node.tolist() == [1]
    assert answer["evicts"] == {}


def test_a_job_behind_a_promise_says_for_whom_the_idle_gpus_are_kept() -> None:
    jobs = [
        runs("low", [2], gpus_per_member=8),
        {"name": "gang", "size": 2, "gpus_per_member": 8, "priority": 1},
        {"name": "small", "size": 1},
    ]

    reason = decide(scene(jobs, nodes=2, mode="checkpoint"))["jobs"]["small"]["reason"]

    assert reason["code"] == "reserved"
    assert reason["for"] == "gang"
    assert reason["available"] == 0


def test_a_later_eviction_does_not_delay_the_reservation() -> None:
    jobs = [
        runs("ends", [1], gpus_per_member=8, tenant="a", limit="2h", preemptible=False),
        runs("low", [2], gpus_per_member=8, tenant="b", limit="90m", started="-1h"),
        {
            "name": "wide",
            "size": 2,
            "gpus_per_member": 8,
            "tenant": "a",
            "nice": -1000,
            "limit": "1h",
        },
        {"name": "urgent", "gpus_per_member": 8, "tenant": "b", "priority": 1, "limit": "9h"},
    ]
    tenants = [{"name": "a"}, {"name": "b", "quota": {"gpu": {"guarantee": 8}}}]
    weights = {"class": 0}
    play = Play(scene(jobs, nodes=2, tenants=tenants, weights=weights))

    answer = play.answer()

    # The wide gang counts on node 2 in half an hour; a job of nine hours there would delay it.
    assert answer["order"] == ["wide", "urgent"]
    assert answer["evicts"] == {}
    short = [*jobs[:3], {**jobs[3], "limit": "9h", "nice": -2000}]
    assert set(decide(scene(short, nodes=2, tenants=tenants, weights=weights))["evicts"]) == {"low"}


def test_no_two_tenants_evict_each_other_in_turn() -> None:
    jobs = [
        *(runs(f"a{k}", [1], tenant="a", gpus_per_member=3) for k in range(2)),
        *({"name": f"b{k}", "tenant": "b", "gpus_per_member": 3} for k in range(4)),
    ]
    tenants = [{"name": "a"}, {"name": "b"}]
    play = Play(scene(jobs, tenants=tenants, preemption="reclaim"))
    evicted = len(play.plan.evictions.victim)

    for _ in range(10):
        play.tick(all_leave=True)
        evicted += len(play.plan.evictions.victim)

    assert evicted <= 1
    assert len(play.running()) == 2


def test_an_unknown_rule_or_mode_is_refused_by_name() -> None:
    snapshot, policy = snapshot_of(scene([]))

    with pytest.raises(Refused, match=r"fair.*not built yet"):
        schedule(snapshot, replace(policy, preemption="fair"))
    with pytest.raises(Refused, match="mode = 'ask'"):
        schedule(snapshot, replace(policy, mode="ask"))
    with pytest.raises(Refused, match="not a preemption rule"):
        schedule(snapshot, Policy(preemption="whim"))
