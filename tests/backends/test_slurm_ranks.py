"""The nice that gives Slurm our order: right, of as few jobs as it takes, and within bounds."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.backends.adapters.slurm.ranks import (
    HIGHEST,
    LOWEST,
    MOST_NICE,
    Placed,
    nice_for,
    placed_in,
)
from apps.backends.adapters.slurm.text import rows_in
from apps.backends.port import SeenRank

ALL = 10**6


def placed(id: int, priority: int, nice: int = 0) -> Placed:
    return Placed(id, SeenRank(f"job {id}", priority, nice, listed=True))


def after(order: list[Placed], nice: dict[str, int]) -> list[tuple[int, int]]:
    """Return id and priority of each job as Slurm has them once these are set, its order first."""
    found = []
    for job in order:
        seen = job.seen
        value = nice.get(seen.ref, seen.nice)
        found.append((job.id, max(seen.priority + seen.nice - value, LOWEST)))
    return sorted(found, key=lambda one: (-one[1], one[0]))


@st.composite
def lines(draw: st.DrawFn, most: int = 30) -> list[Placed]:
    """Jobs in our order, whose priorities without nice are at least 1: those are known."""
    ids = draw(st.lists(st.integers(1, 60), unique=True, max_size=most))
    priorities = st.one_of(st.integers(LOWEST, 12), st.integers(LOWEST, 5_000))
    return [
        placed(id, priority, nice)
        for id, priority, nice in (
            (id, draw(priorities), draw(st.integers(-5, 0))) for id in ids
        )
    ]  # fmt: skip


def may_keep(order: list[Placed], chosen: tuple[int, ...]) -> bool:
    """Return whether these can keep their priorities and all others find whole ones."""

    def apart(low: int, high: int) -> int:
        return sum(order[k + 1].id < order[k].id for k in range(low, high))

    return all(
        order[a].seen.priority - order[b].seen.priority >= apart(a, b) for a, b in pairwise(chosen)
    ) and all(order[k].seen.priority >= LOWEST + apart(k, len(order) - 1) for k in chosen)


@given(lines())
def test_slurms_order_is_ours_afterwards(order: list[Placed]) -> None:
    nice = dict(nice_for(order, most=ALL))

    assert [id for id, _ in after(order, nice)] == [job.id for job in order]


@given(lines())
def test_what_is_in_order_is_left_alone(order: list[Placed]) -> None:
    nice = nice_for(order, most=ALL)
    settled = [
        placed(id, priority) for id, priority in after(order, dict(nice))
    ]  # fmt: skip

    assert nice_for(settled, most=ALL) == {}


@given(lines(most=7))
def test_no_fewer_would_do(order: list[Placed]) -> None:
    nice = nice_for(order, most=ALL)

    kept = next(
        count
        for count in range(len(order), -1, -1)
        if any(may_keep(order, chosen) for chosen in combinations(range(len(order)), count))
    )
    assert len(nice) == len(order) - kept


@given(lines(), st.integers(1, 4))
def test_a_few_at_a_time_lead_to_the_same_and_the_first_come_first(
    order: list[Placed], most: int
) -> None:
    whole, jobs = nice_for(order, most=ALL), order
    first = nice_for(order, most=most)
    assert list(first) == list(whole)[:most]

    rounds = 0
    while nice := nice_for(jobs, most=most):
        assert len(nice) <= most
        rounds += 1
        jobs = [
            placed(job.id, job.seen.priority + job.seen.nice - value, value)
            for job in jobs
            for value in (nice.get(job.seen.ref, job.seen.nice),)
        ]

    assert rounds == -(-len(whole) // most)
    assert [id for id, _ in after(jobs, {})] == [job.id for job in order]


@given(
    st.lists(
        st.tuples(st.integers(LOWEST, 4_294_967_295), st.integers(-MOST_NICE, MOST_NICE)),
        max_size=12,
    )
)
def test_slurm_is_asked_for_nothing_it_does_not_take(told: list[tuple[int, int]]) -> None:
    order = [placed(k, priority, nice) for k, (priority, nice) in enumerate(told)]

    nice = nice_for(order, most=ALL)

    assert all(abs(value) <= MOST_NICE for value in nice.values())
    for job in order:
        if job.seen.ref in nice and not (job.seen.priority == LOWEST and job.seen.nice > 0):
            wanted = job.seen.priority + job.seen.nice - nice[job.seen.ref]
            assert LOWEST <= wanted <= HIGHEST


@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(-50, 2_000)), min_size=2, max_size=8),
    st.randoms(use_true_random=False),
)
def test_those_whose_nice_has_them_at_the_bottom_are_put_in_order_too(
    told: list[tuple[int, int]], random: Random
) -> None:
    # What such a one has without its nice nobody sees: Slurm says 1.
    base = {k: alone for k, (alone, _) in enumerate(told)}
    nices = {k: nice for k, (_, nice) in enumerate(told)}
    ids = random.sample(sorted(base), len(base))

    for _ in range(len(ids) + 2):
        jobs = [placed(k, max(base[k] - nices[k], LOWEST), nices[k]) for k in ids]
        found = nice_for(jobs, most=ALL)
        if not found:
            break
        nices |= {k: found[f"job {k}"] for k in ids if f"job {k}" in found}

    assert found == {}
    assert [id for id, _ in after(jobs, {})] == ids


def test_equal_priorities_of_rising_ids_are_in_order() -> None:
    order = [placed(id, 1_000) for id in (3, 5, 9)]

    assert nice_for(order, most=ALL) == {}
    assert nice_for(order[::-1], most=ALL) != {}


@pytest.mark.parametrize(
    ("state", "priority", "listed"),
    [("PENDING", "754", True), ("PENDING", "0", False), ("RUNNING", "754", False)],
)
def test_what_runs_or_is_on_hold_is_not_in_the_line(
    state: str, priority: str, listed: bool
) -> None:
    line = f"12|12|{state}|main|cv|gres:gpu:8|1||N/A|1700000000|N/A|10:00|ana|None|{priority}|-340|N/A|N/A|1|low|OK||"

    (found,) = placed_in(rows_in(line), "lab").values()

    assert found == Placed(12, SeenRank("lab:12:1700000000", int(priority), -340, listed))


def test_what_is_over_has_no_place() -> None:
    line = "12|12|COMPLETED|main|cv|gres:gpu:8|1|gpu1|1|1|2|10:00|ana|None|754|0|N/A|N/A|1|low|OK||"

    assert placed_in(rows_in(line), "lab") == {}
