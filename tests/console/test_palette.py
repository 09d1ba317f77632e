"""The Python palette and tokens.css say the same colours, and they can be told apart."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from apps.console.palette import HEAT_DARK, HEAT_LIGHT, MODES, STATES, TERMS, TOKENS
from apps.jobs.states import EvictionMode

CSS = Path(__file__).resolve().parents[2] / "static" / "css" / "tokens.css"
PAIR = re.compile(r"--([a-z0-9-]+):\s*light-dark\((#[0-9A-Fa-f]{6}),\s*(#[0-9A-Fa-f]{6})\)")


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_python_and_css_say_the_same_colours() -> None:
    in_css = {name: (light, dark) for name, light, dark in PAIR.findall(CSS.read_text())}

    assert in_css == {name: (c.light, c.dark) for name, c in TOKENS.items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_on_every_ground_it_stands_on(theme: str) -> None:
    of = {name: getattr(colour, theme) for name, colour in TOKENS.items()}

    for text in ("ink", "ink2", "ink3", "link", "ok", "bad", "warn"):
        for ground in ("surface", "bg", "raised", "sel"):
            assert contrast(of[text], of[ground]) >= 4.5, (text, ground)
    assert contrast(of["on-primary"], of["primary"]) >= 4.5
    assert contrast(of["control"], of["surface"]) >= 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_mark_stands_out_from_the_page_by_itself_or_by_its_outline(theme: str) -> None:
    surface = getattr(TOKENS["surface"], theme)

    for state in (*STATES.values(), *MODES.values()):
        token = TOKENS["control"] if state.outlined else state.colour
        assert contrast(getattr(token, theme), surface) >= 3, state.key


def test_no_two_states_share_both_colour_and_pattern() -> None:
    for one, other in combinations(STATES.values(), 2):
        assert (one.token, one.pattern) != (other.token, other.pattern)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_modes_of_eviction_are_told_apart_by_lightness_and_named_as_the_record_spells_them(
    theme: str,
) -> None:
    assert set(MODES) == set(EvictionMode.values)
    for one, other in combinations(MODES.values(), 2):
        colours = getattr(one.colour, theme), getattr(other.colour, theme)
        assert contrast(*colours) >= 1.25, (one.key, other.key)


def test_terms_have_their_tokens_and_the_heat_scale_is_turned_for_the_dark() -> None:
    assert [token for _, _, token in TERMS] == ["t1", "t2", "t3", "t4"]
    assert HEAT_DARK[0] == "#14202E"
    assert HEAT_DARK[1:] == tuple(reversed(HEAT_LIGHT[:-1]))
