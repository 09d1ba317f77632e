"""GPU time adds up: at every instant, over any partition, from intervals and from roll-ups."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.common.time import QUARTER_US
from apps.ledger import intervals, rollup
from apps.ledger.models import Interval, RollUp, RollUpMark
from apps.ledger.rollup import Slice, lower_mark, reprice, roll_up, tally, tally_between, tally_raw
from tests.ledger.build import HOUR, SECOND, World, make_world


def by_state(slices: list[Slice]) -> Counter[str]:
    """Return GPU-seconds by state."""
    sums: Counter[str] = Counter()
    for one in slices:
        sums[one.state] += one.gpu_us
    assert all(gpu_us % SECOND == 0 for gpu_us in sums.values())
    return Counter({state: gpu_us // SECOND for state, gpu_us in sums.items()})


def test_every_state_takes_its_gpus_and_free_is_what_is_left(world: World) -> None:
    up, drained, down = world.node(8), world.node(8), world.node(4)
    job = world.job(gpus=2, size=2)
    attempt = world.run(job, [up, drained], at=0)
    gang = world.reserve(world.job("nlp", gpus=3), at=0)
    world.hold(gang, 0, up, at=0)
    world.turn(drained, "drained", at=10)
    world.turn(down, "down", at=50)
    intervals.set_marks(
        world.cluster,
        at_us=world.at(20),
        held_idle={attempt.pk: 3},
        stranded={up.pk: 1},
        unknown={attempt.pk: 1},
    )

    states = by_state(tally(world.cluster, world.at(0), world.at(100)))

    assert states == {
        "busy": 4 * 20,
        "unknown": 1 * 80,
        "held_idle": 3 * 80,
        "gang_wait": 3 * 100,
        "stranded": 1 * 80,
        "unavailable": 6 * 90 + 4 * 50,
        "free": 20 * 100 - 400 - 300 - 80 - 740,
    }
    assert states.total() == 20 * 100


def test_nothing_is_observed_before_the_first_look(world: World) -> None:
    node = world.node(8, at=100)
    world.run(world.job(gpus=8), [node], at=40, until=160, first_look=100)

    assert tally(world.cluster, world.at(0), world.at(100)) == []
    assert by_state(tally(world.cluster, world.at(0), world.at(200))) == {
        "busy": 8 * 60,
        "free": 8 * 40,
    }


def test_an_interval_is_half_open(world: World) -> None:
    node = world.node(1)
    world.run(world.job(), [node], at=10, until=20)

    edges = [world.at(second) for second in (0, 10, 20, 30)]
    before, during, after = map(by_state, tally_between(world.cluster, edges))

    assert before == {"free": 10}
    assert during == {"busy": 10}
    assert after == {"free": 10}


def test_a_price_change_splits_at_its_instant(world: World) -> None:
    node = world.node(1)
    four, five = world.price(4), world.price(5, at=2 * HOUR)
    world.run(world.job(), [node], at=0, until=4 * HOUR)

    slices = tally(world.cluster, world.at(0), world.at(4 * HOUR))

    assert {one.price_id: one.gpu_us for one in slices} == {
        four.pk: 2 * HOUR * SECOND,
        five.pk: 2 * HOUR * SECOND,
    }


def test_more_allocated_than_there_is_is_cut_and_flagged(world: World) -> None:
    node = world.node(4)
    world.run(world.job("a", gpus=3), [node], at=0)
    world.run(world.job("b", gpus=3), [node], at=0)
    gang = world.reserve(world.job("c", gpus=2), at=0)
    world.hold(gang, 0, node, at=0)

    slices = tally(world.cluster, world.at(0), world.at(10))

    assert {(one.tenant_id, one.state): one.gpu_us // SECOND for one in slices} == {
        (world.tenant("a").pk, "busy"): 30,
        (world.tenant("b").pk, "busy"): 10,
        (None, "excess"): 40,
    }


def test_gpus_used_by_foreign_work_are_allocated_but_unknown(world: World) -> None:
    node = world.node(8)
    node.foreign_gpus = 3
    intervals.node_seen([node], at_us=world.at(10))

    assert by_state(tally(world.cluster, world.at(0), world.at(20))) == {
        "unknown": 30,
        "free": 8 * 20 - 30,
    }


def test_a_node_that_is_gone_is_no_capacity(world: World) -> None:
    node = world.node(8)
    node.gone_at = world.when(30)
    intervals.node_seen([node], at_us=world.at(30))

    assert by_state(tally(world.cluster, world.at(0), world.at(100))) == {"free": 240}


def test_rolling_up_twice_changes_nothing(world: World) -> None:
    node = world.node(8)
    world.run(world.job(gpus=5), [node], at=100, until=5000)

    first = roll_up(world.cluster, until_us=world.at(2 * HOUR + 10))
    rows = list(RollUp.objects.values_list("quarter_us", "state", "gpu_us"))
    second = roll_up(world.cluster, until_us=world.at(2 * HOUR + 10))

    assert (first, second) == (8, 0)
    assert list(RollUp.objects.values_list("quarter_us", "state", "gpu_us")) == rows
    assert RollUpMark.objects.get().until_us == world.at(2 * HOUR)


def test_a_roll_up_that_fails_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node(8)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(RollUpMark, "save", fail)
    with pytest.raises(RuntimeError), transaction.atomic():
        roll_up(world.cluster, until_us=world.at(HOUR))

    assert not RollUp.objects.exists()
    assert not RollUpMark.objects.exists()


def test_a_long_backlog_is_worked_off_in_pieces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "MOST_QUARTERS", 6)
    world.node(8)

    done = [roll_up(world.cluster, until_us=world.at(4 * HOUR)) for _ in range(4)]

    assert done == [6, 6, 4, 0]


def test_a_few_quarter_hours_wait_for_more(world: World) -> None:
    world.node(8)

    done = [roll_up(world.cluster, until_us=world.at(900 * n + 1)) for n in (3, 4, 7, 9)]

    assert done == [0, 4, 0, 5]


def test_an_end_reported_late_corrects_what_was_rolled_up(world: World) -> None:
    node = world.node(8)
    attempt = world.run(world.job(gpus=8), [node], at=0)
    roll_up(world.cluster, until_us=world.at(2 * HOUR))

    world.end(attempt, at=1000)
    lowered = RollUpMark.objects.get().until_us
    roll_up(world.cluster, until_us=world.at(2 * HOUR))

    assert lowered == world.at(900)
    assert by_state(tally(world.cluster, world.at(0), world.at(2 * HOUR))) == {
        "busy": 8 * 1000,
        "free": 8 * (2 * HOUR - 1000),
    }


def test_a_late_end_also_cuts_what_was_split_and_marked_after_it(world: World) -> None:
    node = world.node(8)
    attempt = world.run(world.job(gpus=4), [node], at=0)
    world.turn(node, "drained", at=200)
    intervals.set_marks(world.cluster, at_us=world.at(300), held_idle={attempt.pk: 4}, stranded={})

    world.end(attempt, at=100)

    assert by_state(tally(world.cluster, world.at(0), world.at(400))) == {
        "busy": 400,
        "free": 8 * 200 - 400,
        "unavailable": 8 * 200,
    }


def test_a_new_price_in_the_past_reprices_roll_ups_in_place(world: World) -> None:
    node = world.node(8)
    world.price(2)
    world.run(world.job(gpus=5), [node], at=0, until=3 * HOUR)
    roll_up(world.cluster, until_us=world.at(4 * HOUR))
    rows = RollUp.objects.count()

    reprice(world.price(4, at=2 * HOUR))
    reprice(world.price(3, at=HOUR + 100))

    assert RollUpMark.objects.get().until_us == world.at(4 * HOUR)
    assert RollUp.objects.count() == rows + 2
    assert tally(world.cluster, world.at(0), world.at(4 * HOUR)) == tally_raw(
        world.cluster, world.at(0), world.at(4 * HOUR)
    )


def test_two_clusters_do_not_mix(world: World) -> None:
    other = make_world("cedar")
    world.node(8)
    other.node(4)

    assert by_state(tally(other.cluster, other.at(0), other.at(10))) == {"free": 40}
    assert by_state(tally(world.cluster, world.at(0), world.at(10))) == {"free": 80}


def test_lowering_a_mark_that_is_lower_already_does_nothing(world: World) -> None:
    world.node(8)
    roll_up(world.cluster, until_us=world.at(HOUR))

    lower_mark(world.cluster.pk, world.at(HOUR))

    assert RollUpMark.objects.get().until_us == world.at(HOUR)
    assert RollUp.objects.count() == 4


SPAN = 3 * HOUR
# A story is some hundred rows: fewer of them than of arithmetic.
EXAMPLES = settings().max_examples // 3
instants = st.integers(0, SPAN)
spans = st.tuples(instants, instants).map(sorted)


@st.composite
def stories(draw: st.DrawFn) -> dict[str, Any]:
    """A few hours of a small cluster, in any order, overlapping as it likes."""
    return {
        "nodes": draw(st.lists(st.integers(1, 8), min_size=1, max_size=4)),
        "turns": sorted(
            draw(
                st.lists(
                    st.tuples(
                        instants, st.integers(0, 3), st.sampled_from(["up", "drained", "down"])
                    ),
                    max_size=5,
                )
            )
        ),
        "runs": draw(
            st.lists(
                st.tuples(
                    spans,
                    st.integers(0, 3),
                    st.integers(1, 4),
                    st.sampled_from("abc"),
                    st.booleans(),
                ),
                max_size=6,
            )
        ),
        "holds": draw(st.lists(st.tuples(spans, st.integers(0, 3), st.integers(1, 4)), max_size=3)),
        "marks": sorted(
            draw(st.lists(st.tuples(instants, st.integers(0, 4), st.integers(0, 4)), max_size=4))
        ),
        "prices": draw(st.lists(instants, max_size=3, unique=True)),
    }


def play(story: dict[str, Any], *, looks: list[int]) -> World:
    """Write a story down in the order of time; roll up whenever ``looks`` says."""
    world = make_world(f"world-{Interval.objects.count()}-{len(looks)}")
    nodes = [world.node(gpus) for gpus in story["nodes"]]
    for number, at in enumerate(story["prices"]):
        world.price(2 + number, at=at)
    attempts: list[Any] = []
    events: list[tuple[int, int, Any]] = []

    def start(span: list[int], node: int, gpus: int, tenant: str) -> Any:
        attempts.append(
            world.run(world.job(tenant, gpus=gpus), [nodes[node % len(nodes)]], at=span[0])
        )
        return attempts[-1]

    def live(span: list[int], node: int, gpus: int, tenant: str, late: bool) -> None:
        attempt = start(span, node, gpus, tenant)
        events.append((SPAN if late else span[1], 1, lambda: world.end(attempt, at=span[1])))

    def hold(span: list[int], node: int, gpus: int) -> None:
        reservation = world.reserve(world.job("gang", gpus=gpus), at=span[0])
        world.hold(reservation, 0, nodes[node % len(nodes)], at=span[0])
        events.append((span[1], 1, lambda: world.close(reservation, at=span[1], outcome="started")))

    def mark(at: int, idle: int, stranded: int) -> None:
        intervals.set_marks(
            world.cluster,
            at_us=world.at(at),
            held_idle={attempt.pk: idle for attempt in attempts[-2:]},
            unknown={attempt.pk: 1 for attempt in attempts[:1]},
            stranded={nodes[0].pk: stranded},
        )

    for at, node, state in story["turns"]:
        events.append(
            (at, 0, lambda at=at, n=node, s=state: world.turn(nodes[n % len(nodes)], s, at=at))
        )
    for run in story["runs"]:
        events.append((run[0][0], 0, lambda run=run: live(*run)))
    for one in story["holds"]:
        events.append((one[0][0], 0, lambda one=one: hold(*one)))
    for one in story["marks"]:
        events.append((one[0], 2, lambda one=one: mark(*one)))
    for at in looks:
        events.append((at, 3, lambda at=at: roll_up(world.cluster, until_us=world.at(at))))
    while events:
        events.sort(key=lambda event: event[:2])
        events.pop(0)[2]()
    return world


@pytest.mark.django_db
@settings(max_examples=EXAMPLES)
@given(story=stories(), looks=st.lists(instants, max_size=4), cuts=st.lists(instants, max_size=5))
def test_any_partition_adds_up_to_the_whole_from_roll_ups_and_from_intervals(
    story: dict[str, Any], looks: list[int], cuts: list[int]
) -> None:
    with transaction.atomic():
        world = play(story, looks=looks)
        since, until = world.at(0), world.at(SPAN)
        whole = tally_raw(world.cluster, since, until)

        assert tally(world.cluster, since, until) == whole
        roll_up(world.cluster, until_us=until)
        assert tally(world.cluster, since, until) == whole

        parts: Counter[Any] = Counter()
        edges = sorted({since, until, *(world.at(cut) for cut in cuts)})
        for bucket in tally_between(world.cluster, edges):
            for one in bucket:
                parts[one.pool_id, one.price_id, one.tenant_id, one.state] += one.gpu_us
        assert parts == Counter(
            {(one.pool_id, one.price_id, one.tenant_id, one.state): one.gpu_us for one in whole}
        )

        quarters = list(range(since, until + 1, QUARTER_US))
        by_quarter = tally_between(world.cluster, quarters)
        assert sum(one.gpu_us for bucket in by_quarter for one in bucket) == sum(
            one.gpu_us for one in whole
        )

        capacity = sum(story["nodes"]) * SPAN * SECOND
        assert all(one.gpu_us > 0 for one in whole)
        assert sum(one.gpu_us for one in whole if one.state != "excess") == capacity
        transaction.set_rollback(True)
