"""Snapshots and plans survive their bytes."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from apps.engine import codec
from apps.engine.cycle import schedule
from apps.engine.types import Policy, Weights
from benchmarks.engine import snapshot

POLICY = Policy(weights=Weights(size=1.5), max_class=3, gang_timeout=60_000_000)


def test_a_snapshot_and_its_policy_come_back_as_they_were() -> None:
    shot = snapshot(20, 12, 50, load=0.5)

    again, policy = codec.decode_snapshot(codec.encode_snapshot(shot, POLICY))

    assert policy == POLICY
    assert codec.difference(shot, again) == []
    assert again.tenants.name == shot.tenants.name
    for name, column in codec.to_columns(shot).items():
        if isinstance(column, np.ndarray):
            assert codec.to_columns(again)[name].dtype == column.dtype, name


def test_a_replayed_snapshot_gives_the_stored_plan() -> None:
    shot = snapshot(20, 12, 200, load=0.5)
    stored = codec.encode_plan(schedule(shot, POLICY))

    replayed = schedule(*codec.decode_snapshot(codec.encode_snapshot(shot, POLICY)))

    assert codec.difference(codec.decode_plan(stored), replayed) == []


def test_a_difference_is_named_with_both_values() -> None:
    plan = schedule(snapshot(5, 3, 10), POLICY)
    reason = plan.verdicts.reason.copy()
    reason[3] = 13
    changed = replace(plan, verdicts=replace(plan.verdicts, reason=reason), order=plan.order[1:])

    lines = codec.difference(plan, changed)

    assert lines[0] == "order: 10 values are 9 values"
    assert lines[1] == f"verdicts.reason[3]: {plan.verdicts.reason[3]} is 13"


def test_an_empty_plan_comes_back() -> None:
    plan = schedule(snapshot(1, 1, 0), POLICY)

    assert codec.difference(plan, codec.decode_plan(codec.encode_plan(plan))) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        zlib.compress(b"\0\0\0\2{}"),
        codec.dump("plan", {}),
        codec.encode_snapshot(snapshot(2, 2, 3), POLICY)[:-20],
    ],
)
def test_what_is_not_a_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(codec.Undecodable):
        codec.decode_snapshot(data)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "VERSION", 3)
    data = codec.encode_snapshot(snapshot(2, 2, 3), POLICY)

    with pytest.raises(codec.Undecodable, match="version 3"):
        codec.decode_snapshot(data)


SINCE_TWO = [
    "snapshot.pending.preemptible",
    "snapshot.pending.promise",
    "snapshot.running.attempt",
    "snapshot.running.submitted",
    "snapshot.running.preemptible",
    "snapshot.running.min_size",
    "snapshot.running.last_checkpoint",
    "snapshot.running.restarted",
    "snapshot.running.evictions",
    "snapshot.running.demoted",
    "snapshot.running.leaving",
    "snapshot.running.shrinking",
    "policy.mode",
    "policy.grace",
    "policy.min_runtime",
    "policy.max_evictions",
    "policy.cooldown",
    "policy.thrash_after",
    "evictions",
    "promises",
    "leaving",
    "stays",
    "considered",
]


def test_a_tick_stored_before_preemption_still_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    shot = snapshot(20, 12, 200, load=0.5)
    plan = schedule(shot, POLICY)
    seen = codec.to_columns(shot, "snapshot.") | codec.to_columns(POLICY, "policy.")
    answered = codec.to_columns(plan)
    monkeypatch.setattr(codec, "VERSION", 1)
    old = [
        codec.dump(kind, {n: c for n, c in columns.items() if not n.startswith(tuple(SINCE_TWO))})
        for kind, columns in (("snapshot", seen), ("plan", answered))
    ]

    again, policy = codec.decode_snapshot(old[0])

    assert codec.difference(shot, again) == []
    assert codec.difference(codec.decode_plan(old[1]), schedule(again, policy)) == []


def test_a_column_that_has_no_default_must_be_there() -> None:
    columns = codec.to_columns(snapshot(2, 2, 3), "snapshot.") | codec.to_columns(POLICY, "policy.")
    del columns["snapshot.running.started"]

    with pytest.raises(codec.Undecodable, match=r"no column snapshot\.running\.started"):
        codec.decode_snapshot(codec.dump("snapshot", columns))


def test_ten_thousand_pending_stay_near_a_megabyte() -> None:
    shot = snapshot(1000, 100, 10_000, load=0.9)

    size = len(codec.encode_snapshot(shot, POLICY)) + len(codec.encode_plan(schedule(shot, POLICY)))

    assert size < 1_200_000
