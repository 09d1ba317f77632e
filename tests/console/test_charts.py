"""Figures are plain dicts that Plotly accepts, in the palette of the pages."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import plotly.io
import pytest

from apps.console import charts
from apps.console.charts import Column
from apps.console.palette import STATES, TOKENS


def columns(count: int = 24) -> list[Column]:
    return [
        Column(
            f"Sun 8 Mar {hour}",
            f"{hour}:00" if hour % 4 == 1 else "",
            {state: 10.0 + hour for state in STATES},
            {state: f"{10 + hour} GPUs" for state in STATES},
            "99 GPUs",
        )
        for hour in range(count)
    ]


def drawn(figure: dict) -> go.Figure:
    return go.Figure({"data": figure["data"], "layout": figure["layout"]})


def test_plotly_accepts_the_figure_and_stacks_the_states_in_their_order():
    figure = charts.stacked(columns(), STATES, axis_title="GPUs")

    accepted = drawn(figure)

    assert [trace.meta for trace in accepted.data] == [*STATES, "total"]
    assert accepted.layout.barmode == "stack"
    assert accepted.layout.yaxis.title.text == "GPUs"
    json.dumps(figure, allow_nan=False)


def test_the_fixed_order_holds_whatever_is_asked_for():
    figure = charts.stacked(columns(), ["unavailable", "held_idle"], axis_title="GPUs")

    assert [trace["meta"] for trace in figure["data"]] == ["held_idle", "unavailable", "total"]


def test_the_total_line_adds_up_and_is_the_last_line_under_the_pointer():
    figure = charts.stacked(columns(3), ["free", "stranded"], axis_title="GPUs")

    *parts, total = figure["data"]
    assert total["y"] == [sum(heights) for heights in zip(*(p["y"] for p in parts), strict=True)]
    assert total["customdata"] == ["99 GPUs"] * 3


def test_a_part_of_no_height_draws_no_edge_over_the_one_below():
    column = Column("Sun 8 Mar 8", "", {"free": 4.0, "stranded": 0.0}, {}, "4 GPUs")

    free, stranded, _ = charts.stacked([column], ["free", "stranded"], axis_title="")["data"]

    assert free["marker"]["line"]["width"] == [1]
    assert stranded["marker"]["line"]["width"] == [0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_templates_are_accepted_and_every_state_has_its_colour_and_pattern(theme):
    theme_of = charts.THEMES[theme]

    go.layout.Template(theme_of["template"])

    assert theme_of["name"] == f"rollcall_{theme}"
    for key, state in STATES.items():
        marker = theme_of["markers"][key]
        go.bar.Marker(marker)
        assert marker["color"] == getattr(TOKENS[state.token], theme)
        assert marker["pattern"]["shape"] == state.pattern
        assert marker["pattern"]["size"] >= 6


def test_a_figure_without_bars_and_one_without_height_are_accepted():
    drawn(charts.stacked([], ["free"], axis_title="GPUs"))
    drawn(charts.stacked([Column("now", "", {}, {}, "0 GPUs")], ["free"], axis_title="GPUs"))


def test_a_figure_of_too_many_points_is_refused():
    with pytest.raises(ValueError, match="2000"):
        charts.stacked(columns(300), STATES, axis_title="GPUs")


def test_no_bar_can_be_dragged_zoomed_or_hidden():
    figure = charts.stacked(columns(), STATES, axis_title="GPUs")

    layout = figure["layout"]["template"]["layout"]
    assert layout["dragmode"] is False
    assert layout["showlegend"] is False
    assert all(layout[axis]["fixedrange"] for axis in ("xaxis", "yaxis"))
    assert figure["config"]["displayModeBar"] is False
    assert plotly.io.to_json(drawn(figure), validate=True)
