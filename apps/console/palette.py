"""The colours of static/css/tokens.css for what is drawn in Python; a test asserts they agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Colour:
    """One token in both themes."""

    light: str
    dark: str


TOKENS: Final[dict[str, Colour]] = {
    "bg": Colour("#F7F8F9", "#0D1015"),
    "surface": Colour("#FFFFFF", "#14181F"),
    "raised": Colour("#F7F8F9", "#191E27"),
    "line": Colour("#E4E7EC", "#262D38"),
    "line2": Colour("#CDD3DB", "#39424F"),
    "control": Colour("#7F8A9A", "#758294"),
    "ink": Colour("#161B24", "#E8ECF2"),
    "ink2": Colour("#4B5565", "#AEB7C4"),
    "ink3": Colour("#5F6A7C", "#8C97A7"),
    "link": Colour("#3448A8", "#A5B4FC"),
    "ok": Colour("#1E7A4C", "#5CC28D"),
    "bad": Colour("#A3182F", "#F2808E"),
    "warn": Colour("#8F6000", "#EBC255"),
    "sel": Colour("#EEF0FA", "#1E2440"),
    "warnbg": Colour("#FDF6E7", "#231E12"),
    "badbg": Colour("#FCF0F1", "#27161A"),
    "primary": Colour("#161B24", "#E8ECF2"),
    "on-primary": Colour("#FFFFFF", "#14181F"),
    "t1": Colour("#3A479E", "#8E9BF0"),
    "t2": Colour("#7480C9", "#6271CE"),
    "t3": Colour("#A9B1E0", "#4A56A3"),
    "t4": Colour("#D3D8F1", "#353E75"),
    "busy": Colour("#2368A8", "#4F9BDB"),
    "held-idle": Colour("#BF8400", "#EBC255"),
    "gang-wait": Colour("#B5341A", "#DB5A30"),
    "free": Colour("#E6EAF0", "#2A323D"),
    "unavailable": Colour("#4A5361", "#A3ADBB"),
}


@dataclass(frozen=True, slots=True)
class State:
    """How one part of a whole looks and is called: token, word, pattern of Plotly, outlined or not."""

    key: str
    label: str
    token: str
    pattern: str
    outlined: bool = False

    @property
    def colour(self) -> Colour:
        return TOKENS[self.token]


# Always in this order: left to right, bottom to top.
STATES: Final[dict[str, State]] = {
    state.key: state
    for state in (
        State("busy", "Busy", "busy", ""),
        State("unknown", "Busy, utilisation unknown", "busy", "-"),
        State("held_idle", "Held idle", "held-idle", "."),
        State("gang_wait", "Gang wait", "gang-wait", "/"),
        State("free", "Free", "free", "", outlined=True),
        State("stranded", "Stranded", "free", "|", outlined=True),
        State("unavailable", "Unavailable", "unavailable", "x"),
    )
}

# How a victim is made to give way, in this order; told apart by lightness, outlined where too pale.
MODES: Final[dict[str, State]] = {
    state.key: state
    for state in (
        State("kill", "Kill", "t1", ""),
        State("checkpoint", "Checkpoint", "t3", "", outlined=True),
        State("shrink", "Shrink", "t2", ""),
        State("demote", "Demote", "t4", "", outlined=True),
    )
}

TERMS: Final[tuple[tuple[str, str, str], ...]] = (
    ("fair_share", "fair share", "t1"),
    ("age", "age", "t2"),
    ("size", "size", "t3"),
    ("queue", "queue", "t4"),
)
"""Terms with a colour of their own: field, word, token; class and boost are drawn in ink3."""

HEAT_LIGHT: Final = ("#EEF3F8", "#D3E1EE", "#AFC9E1", "#84ABD0", "#568ABB", "#2368A8", "#174B7D")
HEAT_DARK: Final = ("#14202E", *reversed(HEAT_LIGHT[:-1]))
