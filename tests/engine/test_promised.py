"""Who may go only later, and what becomes of a promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apps.engine.cycle import schedule
from apps.engine.errors import Refused
from apps.engine.types import Policy, Reason
from tests.engine.build import snapshot_of
from tests.engine.clock import apply, pass_time
from tests.engine.staging import MINUTE, Play, code, decide, runs, scene

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
