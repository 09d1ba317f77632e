"""The geometry of waterfalls and life strips: what is drawn is what was held."""

from __future__ import annotations

import pytest

from apps.common.time import MICROSECOND as S
from apps.console import drawings
from apps.console.drawings import Gang, Held, Stretch


def gang(size=9, *, pending=1, waited=47, outcome="started", timeout=120, gpus=1, **fields):
    """Return a gang whose last ``pending`` members never held anything."""
    held = tuple(
        Held(rank, f"n{rank // 8 + 1}", gpus, 0, waited * S) for rank in range(size - pending)
    )
    return Gang(size, gpus, 0, waited * S, outcome, held, timeout * S, **fields)


def test_nine_ranks_are_eight_hatched_bars_and_one_outline_and_start_together():
    drawn = drawings.waterfall(gang(nodes={rank: f"n{rank}" for rank in range(9)}))

    assert drawn.shape == "members"
    assert [row.bars[0].kind for row in drawn.rows] == ["hold"] * 8 + ["pending"]
    assert {row.bars[0].end for row in drawn.rows} == {drawn.start}
    assert {row.bars[1].x for row in drawn.rows} == {drawn.start}
    assert [row.gpu_seconds for row in drawn.rows] == [47] * 8 + [0]
    assert [row.node for row in drawn.rows] == [f"n{rank}" for rank in range(9)]
    assert sum(row.gpu_seconds for row in drawn.rows) == 376


def test_a_timeout_within_the_figure_is_a_line_and_one_far_off_is_not():
    near, far = drawings.waterfall(gang(timeout=120)), drawings.waterfall(gang(timeout=1800))

    assert near.start < near.timeout < 100
    assert far.timeout is None


def test_a_gang_that_waits_ends_at_now_and_has_no_run():
    drawn = drawings.waterfall(gang(outcome="waiting", timeout=1800))

    assert drawn.waits_until_now
    assert drawn.start == 100
    assert {bar.kind for row in drawn.rows for bar in row.bars} == {"hold", "pending"}


def test_a_gang_that_timed_out_has_a_cross_and_nothing_solid():
    drawn = drawings.waterfall(gang(4, outcome="timed_out", waited=120))

    assert [row.cross for row in drawn.rows] == [True, True, True, False]
    assert all(bar.kind != "run" for row in drawn.rows for bar in row.bars)


def test_a_late_member_is_an_outline_until_it_holds():
    held = (Held(0, "n1", 1, 0, 100 * S), Held(1, "n2", 1, 40 * S, 100 * S))

    late = drawings.waterfall(Gang(2, 1, 0, 100 * S, "started", held)).rows[1]

    assert [bar.kind for bar in late.bars] == ["pending", "hold", "on"]
    assert late.bars[0].end == late.bars[1].x
    assert late.gpu_seconds == 60


def test_a_run_that_ended_within_the_figure_does_not_go_on():
    over = drawings.waterfall(gang(1, pending=0, ran_until_us=60 * S)).rows[0]

    assert over.bars[-1].kind == "run"
    assert over.bars[-1].end < 100


@pytest.mark.parametrize(
    ("size", "shape", "rows"), [(1, "members", 1), (64, "members", 64), (70, "nodes", 9)]
)
def test_over_64_members_a_row_is_a_node(size, shape, rows):
    drawn = drawings.waterfall(gang(size, pending=0))

    assert (drawn.shape, len(drawn.rows)) == (shape, rows)
    assert sum(row.members for row in drawn.rows) == size
    assert drawn.height == rows * drawings.ROW


def test_a_node_with_members_that_hold_at_different_times_is_drawn_without_seams():
    held = tuple(Held(rank, "n1", 1, rank * S, 100 * S) for rank in range(70))

    row = drawings.waterfall(Gang(70, 1, 0, 100 * S, "started", held)).rows[0]

    assert [bar.kind for bar in row.bars] == ["hold", "on"]
    assert row.node == "70 members"
    assert row.gpu_seconds == sum(100 - rank for rank in range(70))


def test_over_512_members_it_is_one_line_of_steps():
    held = tuple(Held(rank, "n1", 1, (rank // 100) * S, 10 * S) for rank in range(600))

    drawn = drawings.waterfall(Gang(600, 1, 0, 10 * S, "started", held))

    assert drawn.shape == "steps"
    assert drawn.rows == ()
    assert drawn.path.count("L") == 2 * 7 + 2  # six rises, one fall, down to the axis
    assert drawings.steps(held)[-2:] == [(5 * S, 600), (10 * S, 0)]


def test_the_axis_starts_at_zero_and_has_few_round_labels():
    texts = [mark.text for mark in drawings.waterfall(gang()).ticks]

    assert texts[:3] == ["0 s", "20 s", "40 s"]
    assert len(texts) <= 8


@pytest.mark.parametrize("waited", [0, 1, 59, 3_600, 90_000, 9_000_000])
def test_the_axis_of_any_length_stays_readable(waited):
    marks = drawings.waterfall(gang(waited=waited, timeout=10**9)).ticks

    assert 2 <= len(marks) <= 8
    assert all(0 <= mark.x <= 100 for mark in marks)


def test_the_small_twin_has_a_staircase_sorted_by_who_held_first():
    held = (Held(0, "n1", 8, 20 * S, 100 * S), Held(1, "n2", 8, 0, 100 * S))

    drawn = drawings.mini(Gang(3, 8, 0, 100 * S, "timed_out", held))

    assert [(bar[0], bar[1]) for bar in drawn.bars] == [
        ("hold", 0.0),
        ("hold", 16.0),
        ("pending", 0.5),
    ]


def test_the_small_twin_of_a_large_gang_keeps_to_sixteen_rows():
    drawn = drawings.mini(gang(600, pending=100))

    holds = [bar for bar in drawn.bars if bar[0] == "hold"]
    assert len({bar[2] for bar in drawn.bars}) <= drawings.MINI_ROWS
    assert holds


def test_a_life_ends_where_the_strip_ends_and_short_labels_only():
    strip = drawings.life_strip(
        [
            Stretch("wait", "waits", 0, 50 * S),
            Stretch("hold", "holds", 50 * S, 51 * S),
            Stretch("run", "runs", 51 * S, None),
        ],
        [(0, "04:00"), (100 * S, "06:00"), (500 * S, "later")],
        since_us=0,
        until_us=100 * S,
        now_us=100 * S,
    )

    assert [(piece.x, piece.fits) for piece in strip.pieces] == [
        (0, True),
        (50, False),
        (51, True),
    ]
    assert strip.pieces[-1].x + strip.pieces[-1].width == 100
    assert [(mark.text, mark.anchor) for mark in strip.ticks] == [
        ("04:00", "start"),
        ("06:00", "end"),
    ]
    assert strip.now == 100
