"""Gang waits: the golden numbers, and what the waterfall needs of each member."""

from __future__ import annotations

from apps.ledger.rollup import tally
from apps.ledger.waits import GangWait, gang_waits, open_hold_rows
from tests.ledger.build import SECOND, World


def waits(world: World, until: float, since: float = 0, **options: object) -> list[GangWait]:
    world.cluster.observed_at = world.when(until)
    return gang_waits([world.cluster], world.at(since), world.at(until), **options)  # type: ignore[arg-type]


def gang(world: World, *, ends: float, outcome: str) -> GangWait:
    """Four members of one GPU each, reserved at 0, 40, 40 and 100 s, as far as there is time."""
    world.price(2.5)
    nodes = [world.node(8) for _ in range(4)]
    reservation = world.reserve(world.job(size=4), at=0)
    for rank, at in enumerate((0, 40, 40, 100)):
        if at <= ends:
            world.hold(reservation, rank, nodes[rank], at=at)
    world.close(reservation, at=ends, outcome=outcome)
    (wait,) = waits(world, 200)
    return wait


def test_the_golden_gang_that_started(world: World) -> None:
    wait = gang(world, ends=100, outcome="started")

    assert wait.gpu_us == 220 * SECOND
    assert f"{float(wait.amount.money):.6f}" == "0.152778"
    assert wait.outcome == "started"
    assert wait.started_us == world.at(100)
    assert wait.pending_ranks == ()


def test_the_golden_gang_that_timed_out(world: World) -> None:
    wait = gang(world, ends=90, outcome="timed_out")

    assert wait.gpu_us == 190 * SECOND
    assert f"{float(wait.amount.money):.6f}" == "0.131944"
    assert wait.outcome == "timed_out"
    assert wait.started_us is None
    assert wait.pending_ranks == (3,)


def test_nine_ranks_eight_reserved(world: World) -> None:
    world.price(2.5)
    nodes = [world.node(1) for _ in range(9)]
    job = world.job(size=9)
    reservation = world.reserve(job, at=0)
    for rank in range(8):
        world.hold(reservation, rank, nodes[rank], at=0)

    (waiting,) = waits(world, 47)

    assert waiting.outcome == "waiting"
    assert waiting.gpu_us == 376 * SECOND
    assert round(float(waiting.amount.money), 2) == 0.26
    assert len(waiting.holds) == 8
    assert waiting.pending_ranks == (8,)
    assert len(open_hold_rows(world.cluster)) == 8

    world.close(reservation, at=47, outcome="started")
    world.run(job, nodes, at=47)

    assert open_hold_rows(world.cluster) == []
    states = {
        one.state: one.gpu_us // SECOND for one in tally(world.cluster, world.at(0), world.at(57))
    }
    assert states == {"gang_wait": 376, "busy": 90, "free": 47}


def test_a_drain_does_not_cut_a_bar_in_two(world: World) -> None:
    node = world.node(8)
    reservation = world.reserve(world.job(size=2), at=0)
    world.hold(reservation, 0, node, at=0)
    world.turn(node, "drained", at=10)
    world.close(reservation, at=30, outcome="released")

    (wait,) = waits(world, 60)

    assert [(hold.rank, hold.start_us, hold.end_us) for hold in wait.holds] == [
        (0, world.at(0), world.at(30))
    ]
    assert wait.gpu_us == 30 * SECOND


def test_a_member_that_moves_holds_one_node_after_the_other(world: World) -> None:
    first, second = world.node(8), world.node(8)
    reservation = world.reserve(world.job(size=2), at=0)
    world.hold(reservation, 0, first, at=0)
    world.hold(reservation, 0, second, at=20)

    (wait,) = waits(world, 50)

    assert [(hold.node, hold.start_us, hold.end_us) for hold in wait.holds] == [
        ("n00", world.at(0), world.at(20)),
        ("n01", world.at(20), None),
    ]
    assert wait.gpu_us == 50 * SECOND


def test_holding_twice_is_holding_once(world: World) -> None:
    node = world.node(8)
    reservation = world.reserve(world.job(size=2), at=0)
    world.hold(reservation, 0, node, at=0)
    world.hold(reservation, 0, node, at=10)

    (wait,) = waits(world, 50)

    assert wait.gpu_us == 50 * SECOND


def test_the_list_is_worst_first_inside_the_range_and_filtered(world: World) -> None:
    world.price(2.5)
    node = world.node(8)
    small, large = world.job("nlp"), world.job("vision", gpus=4)
    for job in (small, large):
        reservation = world.reserve(job, at=0)
        world.hold(reservation, 0, node, at=0)
        world.close(reservation, at=100, outcome="started")
    later = world.reserve(world.job("nlp"), at=500)
    world.hold(later, 0, node, at=500)

    found = waits(world, 600, since=60)

    assert [wait.job for wait in found[1:]] == [later.job, small]
    assert found[0].job == large
    assert found[0].in_range.gpu_hours * 3600 == 160
    assert found[0].amount.gpu_hours * 3600 == 400
    assert [w.job for w in waits(world, 600, outcome="waiting")] == [later.job]
    assert [w.job for w in waits(world, 600, job=small)] == [small]
    assert len(waits(world, 600, tenants=[world.tenant("nlp")])) == 2
    assert waits(world, 600, since=500, outcome="started") == []
