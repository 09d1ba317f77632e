"""Figures over time, as plain Plotly dicts in light colours.

A trace's ``meta`` is the name of its GPU state, or of its mode of eviction: ``static/js/figure.js``
repaints by that name when the theme is dark. Words under the pointer are made here, so that page, table and figure say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.console.palette import MODES, STATES, TOKENS, State

FAMILY = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'
AXIS_SIZE = 11.5
POINTS_AT_MOST = 2_000
WIDE_BARS = 30  # from more bars than these on the gaps are wider

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One stacked bar: its words, and per state a height and what it says under the pointer."""

    label: str
    tick: str
    heights: Mapping[str, float]
    words: Mapping[str, str]
    total_words: str


def stacked(
    columns: Sequence[Column],
    states: Iterable[str],
    *,
    axis_title: str,
    lines: Sequence[float] = (),
    known: Mapping[str, State] = STATES,
    sums: Sequence[str] = (),
) -> Figure:
    """Draw parts that add up, over time, in the fixed order of the known states.

    ``lines`` are dotted across the figure where a price changed; the first bar is around 0.
    ``sums`` are written above the bars.
    """
    asked = set(states)
    shown = [state for key, state in known.items() if key in asked]
    if len(columns) * max(1, len(shown)) > POINTS_AT_MOST:
        raise ValueError(f"A figure has at most {POINTS_AT_MOST} points.")
    traces = [_part(state, columns) for state in shown]
    total = _total(columns, [state.key for state in shown])
    if sums:
        total |= {"mode": "text", "text": list(sums), "textposition": "top center"}
    layout = _layout(columns, axis_title, 1.2 if sums else 1.03)
    return {
        "data": [*traces, total],
        "layout": layout | {"shapes": [_line(x) for x in lines]},
        "config": CONFIG,
        "themes": THEMES,
    }


def _part(state: State, columns: Sequence[Column]) -> Figure:
    heights = [round(column.heights.get(state.key, 0.0), 6) for column in columns]
    marker = _marker(state, "light")
    # A part of no height would draw its edge over that of the part below.
    marker["line"] = marker["line"] | {"width": [1 if height else 0 for height in heights]}
    return {
        "type": "bar",
        "name": state.label,
        "meta": state.key,
        "x": [column.label for column in columns],
        "y": heights,
        "customdata": [column.words.get(state.key, "") for column in columns],
        "hovertemplate": f"{state.label} %{{customdata}}<extra></extra>",
        "marker": marker,
    }


def _total(columns: Sequence[Column], states: Sequence[str]) -> Figure:
    """Carry the sum into the words under the pointer, as the last line; it is not drawn."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Total",
        "meta": "total",
        "x": [column.label for column in columns],
        "y": [round(sum(column.heights.get(s, 0.0) for s in states), 6) for column in columns],
        "customdata": [column.total_words for column in columns],
        "hovertemplate": "Total %{customdata}<extra></extra>",
        "line": {"width": 0, "color": "rgba(0,0,0,0)"},
    }


def _marker(state: State, theme: str) -> Figure:
    colour = _colour(state.token, theme)
    edge = _colour("control" if state.outlined else "surface", theme)
    marker: Figure = {"color": colour, "line": {"color": edge, "width": 1}}
    marker["pattern"] = {
        "shape": state.pattern,
        "fillmode": "overlay",
        "size": 6,
        "solidity": 0.3,
        "fgopacity": 0.5,
        "fgcolor": _colour("control" if state.outlined else "surface", theme),
    }
    return marker


def _colour(token: str, theme: str) -> str:
    return TOKENS[token].dark if theme == "dark" else TOKENS[token].light


def _layout(columns: Sequence[Column], axis_title: str, room: float) -> Figure:
    return {
        "template": TEMPLATES["light"],
        "barmode": "stack",
        "bargap": 0.36 if len(columns) > WIDE_BARS else 0.28,
        "xaxis": {
            "type": "category",
            "tickmode": "array",
            "tickvals": [column.label for column in columns if column.tick],
            "ticktext": [column.tick for column in columns if column.tick],
            "range": [-0.5, max(0.5, len(columns) - 0.5)],
        },
        "yaxis": {
            "title": {"text": axis_title},
            # Room for the outline of the highest bar, and for what is written above it.
            "range": [0, max((sum(c.heights.values()) for c in columns), default=0) * room or 1],
        },
    }


def _line(x: float) -> Figure:
    ink = _colour("ink3", "light")
    line = {"color": ink, "width": 1.4, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1} | {
        "line": line
    }


def _template(theme: str) -> Figure:
    """Return what all figures share: ink, hairlines, no legend, nothing to drag."""
    ink, line = _colour("ink3", theme), _colour("line", theme)
    return {
        "layout": {
            "font": {"family": FAMILY, "size": AXIS_SIZE, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 46, "r": 4, "t": 8, "b": 28},
            "showlegend": False,
            "dragmode": False,
            "hovermode": "x unified",
            "hoverlabel": {
                "bgcolor": _colour("surface", theme),
                "bordercolor": _colour("line2", theme),
                "font": {"family": FAMILY, "size": 12, "color": _colour("ink", theme)},
                "align": "left",
            },
            "xaxis": {
                "automargin": True,
                "fixedrange": True,
                "showgrid": False,
                "zeroline": False,
                "showline": False,
                "ticks": "",
                "showspikes": False,
                "tickangle": 0,
            },
            "yaxis": {
                "automargin": True,
                "fixedrange": True,
                "rangemode": "tozero",
                "gridcolor": line,
                "gridwidth": 1,
                "zeroline": True,
                "zerolinecolor": line,
                "zerolinewidth": 1,
                "showline": False,
                "ticks": "",
                "tickformat": ",~r",
                "nticks": 5,
            },
        }
    }


CONFIG: Figure = {
    "displayModeBar": False,
    "scrollZoom": False,
    "doubleClick": False,
    "responsive": True,
    "showTips": False,
}
TEMPLATES: Figure = {theme: _template(theme) for theme in ("light", "dark")}
THEMES: Figure = {
    theme: {
        "name": f"rollcall_{theme}",
        "template": TEMPLATES[theme],
        "markers": {key: _marker(state, theme) for key, state in (STATES | MODES).items()},
    }
    for theme in ("light", "dark")
}
