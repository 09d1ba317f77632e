"""The golden numbers of DOMAIN §7 that the engine owns; tolerance 1e-6."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from apps.engine import decay, fairshare
from apps.engine.ordering import terms_of
from apps.engine.quotas import water_fill
from apps.engine.tree import plant, siblings_of
from apps.engine.types import HOUR, Policy, Tenants, Weights
from benchmarks.engine import snapshot

DAY = 24 * HOUR
WEEK = 7 * DAY


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-6, abs=1e-6)


# --- decay


@pytest.mark.parametrize(("days", "hours"), [(1, 182.8001), (7, 969.4911), (28, 1817.7958)])
def test_eight_gpus_that_run_on(days: int, hours: float) -> None:
    assert decay.charge(8, 0, days * DAY, days * DAY, WEEK) == pytest.approx(hours, abs=5e-5)


def test_eight_gpus_forever_approach_a_limit() -> None:
    assert decay.limit(8, WEEK) == pytest.approx(1938.9821, abs=5e-5)
    assert decay.limit(8, None) == math.inf


def test_old_usage_fades_by_the_half_life_in_force() -> None:
    assert decay.decay(100, 14 * DAY, WEEK) == close(25)
    assert decay.decay(100, 14 * DAY, 2 * WEEK) == close(50)
    assert decay.decay(100, 10 * DAY, WEEK) == pytest.approx(37.1499, abs=5e-5)
    assert decay.decay(100, 10 * DAY, None) == 100


def test_decay_does_not_depend_on_when_it_is_reckoned() -> None:
    whole = decay.charge(8, 0, 3 * DAY, 5 * DAY, WEEK)

    parts = sum(decay.charge(8, n * DAY, (n + 1) * DAY, 5 * DAY, WEEK) for n in range(3))
    later = decay.decay(decay.charge(8, 0, 3 * DAY, 3 * DAY, WEEK), 2 * DAY, WEEK)

    assert parts == close(whole)
    assert later == close(whole)


def test_a_half_life_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="half-life"):
        decay.decay(1, 1, 0)
    with pytest.raises(ValueError, match="half-life"):
        decay.charge(1, 0, 1, 1, 0)


def test_a_window_cuts_older_usage_off() -> None:
    start = decay.windowed(0, 10 * DAY, WEEK)

    assert decay.charge(1, start, 10 * DAY, 10 * DAY, None) == close(7 * 24)
    assert decay.windowed(5, 10 * DAY, None) == 5


# --- fair share


def tree(rows: dict[str, tuple[str, float, float]]) -> Tenants:
    """Build tenants from name: (parent, weight, usage)."""
    names = list(rows)
    return Tenants(
        id=np.arange(1, len(names) + 1),
        name=tuple(names),
        parent=np.array([names.index(p) if p else -1 for p, _, _ in rows.values()]),
        weight=np.array([w for _, w, _ in rows.values()], dtype=np.float64),
        usage=np.array([u for _, _, u in rows.values()], dtype=np.float64),
        archived=np.array([n.startswith("gone") for n in names], dtype=np.bool_),
    )


def factors(tenants: Tenants, policy: Policy, busy: tuple[str, ...] = ()) -> dict[str, float]:
    has_jobs = np.array([n in busy for n in tenants.name], dtype=np.bool_)
    siblings = siblings_of(tenants, plant(tenants), has_jobs)
    factor, _ = fairshare.factors(siblings, policy)
    return dict(zip(tenants.name, factor.tolist(), strict=True))


CLASSIC = {
    "A": ("", 40.0, 0.0),
    "B": ("A", 30.0, 0.0),
    "C": ("A", 10.0, 0.0),
    "D": ("", 60.0, 0.0),
    "E": ("D", 25.0, 0.0),
    "F": ("D", 35.0, 0.0),
    "user1": ("B", 1.0, 0.20),
    "user2": ("C", 1.0, 0.25),
    "user3": ("C", 1.0, 0.0),
    "user4": ("E", 1.0, 0.25),
    "user5": ("F", 1.0, 0.0),
    "gone": ("", 1.0, 0.30),
}


def test_classic() -> None:
    got = factors(tree(CLASSIC), Policy(fair_share="classic"))

    assert got["user1"] == pytest.approx(0.408479, abs=1e-6)
    assert got["user2"] == pytest.approx(0.022097, abs=1e-6)
    assert got["user3"] == close(0.125)
    assert got["user4"] == close(0.5)
    assert got["user5"] == pytest.approx(0.749154, abs=1e-6)
    assert math.isnan(got["A"])
    assert math.isnan(got["gone"])


def test_classic_dampened() -> None:
    got = factors(tree(CLASSIC), Policy(fair_share="classic", dampening=2.0))

    assert got["user1"] == pytest.approx(0.639124, abs=1e-6)


FAIR = {
    "vision": ("", 50.0, 0.0),
    "nlp": ("", 30.0, 0.0),
    "ops": ("", 20.0, 0.0),
    "ana": ("vision", 1.0, 100.0),
    "bo": ("vision", 1.0, 0.0),
    "cy": ("nlp", 1.0, 100.0),
    "di": ("nlp", 3.0, 100.0),
    "ed": ("ops", 1.0, 0.0),
}


def test_fair_tree() -> None:
    tenants = tree(FAIR)
    siblings = siblings_of(tenants, plant(tenants), np.zeros(8, dtype=np.bool_))

    got = factors(tenants, Policy())

    assert siblings.level[:3].tolist() == [close(1.5), close(0.45), math.inf]
    assert {k: got[k] for k in ("ed", "bo", "ana", "di", "cy")} == {
        "ed": close(1.0),
        "bo": close(0.8),
        "ana": close(0.6),
        "di": close(0.4),
        "cy": close(0.2),
    }


def test_tied_leaves_share_a_rank_and_tied_parents_are_not_merged() -> None:
    # q is tied with p, so what comes first in it shares the rank before it, as in real Slurm.
    rows = {
        "p": ("", 1.0, 0.0),
        "q": ("", 1.0, 0.0),
        "p1": ("p", 1.0, 10.0),
        "p2": ("p", 1.0, 30.0),
        "q1": ("q", 1.0, 10.0),
        "q2": ("q", 1.0, 10.0),
        "q3": ("q", 1.0, 20.0),
    }

    got = factors(tree(rows), Policy())

    assert [got[n] for n in ("p1", "p2", "q1", "q2", "q3")] == [1.0, 0.8, 0.8, 0.8, 0.2]


def test_a_tie_reaches_through_parents_of_one_child_and_from_a_leaf_to_a_parent() -> None:
    rows = {
        "a": ("", 1.0, 10.0),
        "p": ("", 1.0, 0.0),
        "q": ("p", 1.0, 0.0),
        "q1": ("q", 2.0, 5.0),
        "q2": ("q", 1.0, 5.0),
        "z": ("", 1.0, 80.0),
    }

    got = factors(tree(rows), Policy())

    assert [got[n] for n in ("a", "q1", "q2", "z")] == [1.0, 1.0, 0.5, 0.25]


def test_an_inner_tenant_with_jobs_competes_below_itself() -> None:
    rows = {"p": ("", 1.0, 30.0), "c": ("p", 2.0, 10.0)}
    alone = factors(tree(rows), Policy())
    busy = factors(tree(rows), Policy(), busy=("p",))

    assert math.isnan(alone["p"])
    assert alone["c"] == 1.0
    assert (busy["c"], busy["p"]) == (1.0, 0.5)


def test_weight_zero_and_no_usage_make_no_nan() -> None:
    rows = {"a": ("", 0.0, 0.0), "b": ("", 0.0, 5.0), "c": ("a", 0.0, 0.0)}

    for name in fairshare.POLICIES:
        got = factors(tree(rows), Policy(fair_share=name))
        assert not math.isnan(got["b"])
        assert not math.isnan(got["c"])


# --- multifactor


def test_multifactor() -> None:
    policy = Policy(
        weights=Weights(age=1000, fair_share=10000, size=1000, queue=1000, class_=0), max_age=WEEK
    )
    shot = snapshot(1, 1, 3)
    pending = shot.pending
    columns = {
        "submitted": np.full(3, shot.now - WEEK // 2),
        "size": np.full(3, 1),
        "queue_factor": np.ones(3),
        "nice": np.array([0, 100, 1_000_000]),
        "tenant": np.zeros(3, dtype=np.int64),
    }
    pending = type(pending)(
        **{name: columns.get(name, getattr(pending, name)) for name in pending.__slots__}
    )

    terms, priority = terms_of(pending, policy, shot.now, np.array([0.25]), np.array([10]))

    assert priority.tolist() == [close(4100), close(4000), close(1)]
    assert terms[0].tolist() == [close(2500), close(500), close(100), close(1000), 0, 0, 0]


# --- water-filling


@pytest.mark.parametrize(
    ("total", "guarantee", "weight", "demand", "share"),
    [
        (16, [0, 0], [1, 1], [99, 99], [8, 8]),
        (12, [0, 0, 0], [1, 2, 3], [2, 10, 3], [2, 7, 3]),
        (100, [10, 10], [3, 1], [100, 100], [70, 30]),
        (11, [2, 2], [1, 1], [6, 6], [6, 5]),
        (8, [4, 4], [1, 1], [6, 4], [4, 4]),
        (8, [4, 4], [1, 1], [6, 2], [6, 2]),
        (8, [0, 0], [0, 1], [8, 3], [5, 3]),
        (4, [6, 6], [1, 1], [6, 6], [2, 2]),
        (7, [0, 0, 0], [1, 1, 1], [9, 9, 9], [3, 2, 2]),
        (0, [0], [1], [5], [0]),
    ],
)
def test_water_filling(
    total: int, guarantee: list[int], weight: list[float], demand: list[int], share: list[int]
) -> None:
    assert water_fill(total, guarantee, weight, demand) == share


def test_an_idle_guarantee_is_kept_where_it_is_not_lent() -> None:
    assert water_fill(8, [4, 4], [1, 1], [8, 0], lend=False) == [4, 0]
