"""The made workload keeps the figures it names."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.backends.adapters.simulator.workload import check
from apps.jobs.arrivals import SPEC_KEYS
from apps.jobs.workload import (
    ATTENDED,
    ATTENDED_CLASS,
    ATTENDED_PART,
    BY_WEEKDAY,
    DEAF,
    ELASTIC,
    FAILS,
    GPU_POOL,
    LOAD,
    LONGEST,
    SIZES,
    SLICE_POOL,
    WHO,
    made_jobs,
    mean_seconds,
    node_changes,
)

START = datetime(2026, 3, 2, tzinfo=UTC)
WEEK = timedelta(days=7)
GPUS = 256


def make(seed=1, start=START, end=START + WEEK, live_from=START + 100 * WEEK):
    return list(made_jobs(seed, start, end, gpus=GPUS, slices=56, live_from=live_from))


@pytest.fixture(scope="module")
def weeks():
    """Twelve weeks, so that chance averages out."""
    return [job for job in make(end=START + 12 * WEEK) if job.spec["pool"] == GPU_POOL]


def gpus_of(job) -> int:
    return job.spec["size"] * job.spec["gpus_per_member"]


def test_the_same_seed_makes_the_same_jobs_and_another_others():
    day = START + timedelta(days=1)

    assert make(end=day) == make(end=day)
    assert make(end=day) != make(seed=2, end=day)


@given(st.lists(st.integers(1, 6 * 3_600 - 1), max_size=4))
def test_it_does_not_matter_in_how_many_pieces_it_is_made(cuts):
    whole = make(end=START + timedelta(hours=6))
    edges = [0, *sorted(cuts), 6 * 3_600]

    pieces = []
    for since, until in pairwise(edges):
        pieces += make(start=START + timedelta(seconds=since), end=START + timedelta(seconds=until))

    def by_instant(job):
        return job.at, job.spec["name"]

    assert sorted(pieces, key=by_instant) == sorted(whole, key=by_instant)


def test_the_jobs_ask_for_nearly_all_of_the_cluster(weeks):
    asked = sum(gpus_of(job) * job.spec["workload"]["runtime"] for job in weeks)

    assert asked / (GPUS * 12 * WEEK.total_seconds()) == pytest.approx(LOAD, abs=0.1)


def test_sizes_failures_and_weekdays_are_those_published(weeks):
    sizes = Counter(gpus_of(job) for job in weeks)
    days = Counter(job.at.weekday() for job in weeks)
    failed = sum(job.spec["workload"]["outcome"] == "failed" for job in weeks)

    for size, (share, _, _) in SIZES.items():
        assert sizes[size] / len(weeks) == pytest.approx(share, abs=0.01)
    for day, share in enumerate(BY_WEEKDAY):
        assert days[day] / len(weeks) == pytest.approx(share / 100, abs=0.01)
    assert failed / len(weeks) == pytest.approx(FAILS, abs=0.01)


def test_there_are_gangs_idlers_and_every_tenant(weeks):
    assert {job.spec["size"] for job in weeks} == {1, 2, 4, 8, 16}
    assert {job.tenant for job in weeks} == set(WHO)
    long = [job for job in weeks if job.spec["workload"]["runtime"] > 7_200]
    idle = sum("idle_after" in job.spec["workload"] for job in long)
    assert idle / len(long) == pytest.approx(1 / 12, abs=0.03)
    assert any(job.spec["workload"].get("unknown") for job in weeks)


def test_some_gangs_are_elastic_and_not_all_save_their_work_in_time(weeks):
    gangs = [job for job in weeks if job.spec["size"] > 1]
    elastic = [job.spec for job in gangs if "min_size" in job.spec]
    takes = [job.spec["workload"]["checkpoint_takes"] for job in weeks]
    late = sum(each == "never" or each > 120 for each in takes)

    assert len(elastic) / len(gangs) == pytest.approx(ELASTIC, abs=0.03)
    assert {spec["min_size"] * 2 - spec["size"] for spec in elastic} == {0}
    assert not any("min_size" in job.spec for job in weeks if job.spec["size"] == 1)
    assert takes.count("never") / len(takes) == pytest.approx(DEAF, abs=0.01)
    # Of the others those above ln(120 / 30) / 0.9 = 1.54 deviations: 6.2 %.
    assert late / len(takes) == pytest.approx(DEAF + (1 - DEAF) * 0.062, abs=0.01)


def test_somebody_sits_at_one_small_job_in_ten_of_one_team(weeks):
    small = [job for job in weeks if job.tenant == ATTENDED and gpus_of(job) == 1]
    attended = [job for job in weeks if job.spec.get("priority_class") == ATTENDED_CLASS]

    assert len(attended) / len(small) == pytest.approx(ATTENDED_PART, abs=0.03)
    assert {(job.tenant, gpus_of(job)) for job in attended} == {(ATTENDED, 1)}


def test_whatever_is_made_can_be_submitted_and_ends_by_itself():
    for job in make():
        workload = check(job.spec["workload"])
        assert set(job.spec) <= SPEC_KEYS
        assert 1 <= workload["runtime"] <= LONGEST
        assert job.spec["limit_seconds"] >= workload["runtime"]
        assert START <= job.at < START + WEEK


def test_evaluations_come_more_often_once_it_is_live():
    live = [job for job in make(live_from=START) if job.spec["pool"] == SLICE_POOL]
    past = [job for job in make() if job.spec["pool"] == SLICE_POOL]

    assert len(live) / len(past) == pytest.approx(45 / 14, rel=0.1)


def test_a_small_cluster_gets_no_job_it_could_never_hold():
    jobs = made_jobs(1, START, START + WEEK, gpus=16, slices=0, live_from=START)

    sizes = {gpus_of(job) for job in jobs}
    assert sizes
    assert max(sizes) <= 8


def test_the_mean_of_a_cut_log_normal_is_right():
    dice = random.Random(5)
    drawn = [min(dice.lognormvariate(math.log(200), 2.5), 86_400) for _ in range(200_000)]

    assert mean_seconds(200, 2.5, 86_400) == pytest.approx(sum(drawn) / len(drawn), rel=0.03)


def test_nodes_fail_are_drained_and_come_back():
    nodes = [f"gpu-{n:02}" for n in range(32)]
    changes = node_changes(1, START, START + 12 * WEEK, nodes)
    kinds = Counter(change.state for change in changes)

    assert kinds["drained"] == 84
    assert kinds["down"] == pytest.approx(6.5 / 1_000 * 32 * 84, abs=12)
    assert kinds["up"] == kinds["down"] + kinds["drained"]
    assert len({change.key for change in changes}) == len(changes)
    assert {change.node for change in changes} <= set(nodes)
