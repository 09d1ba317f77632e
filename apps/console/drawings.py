"""The geometry of what is drawn as inline SVG: waterfalls, their small twins, the life of a job.

Everything across is a percentage of the figure's width, so a drawing is as wide as its column;
everything down is in pixels. Instants are microseconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from apps.common.time import MICROSECOND

ROW = 24
BAR = 15
ROWS_BY_MEMBER = 64
ROWS_BY_NODE = 512
MINI_ROWS = 16
STEP_HEIGHT = 160
NEEDED_Y = 8.0  # percent from the top: where a gang is whole
STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Held:
    """A stretch in which one member held its GPUs without having started."""

    rank: int
    node: str
    gpus: int
    start_us: int
    end_us: int

    @property
    def gpu_us(self) -> int:
        """Return the GPU time it held."""
        return (self.end_us - self.start_us) * self.gpus


@dataclass(frozen=True, slots=True)
class Gang:
    """A reservation from its first held GPU to its start, its release, or now."""

    size: int
    gpus_per_member: int
    since_us: int
    until_us: int  # the start, the release, or now while it waits
    outcome: str  # "waiting", or one of jobs.states.ReservationOutcome
    held: tuple[Held, ...]
    timeout_us: int | None = None  # how long it may wait, None: for ever
    nodes: Mapping[int, str] = field(default_factory=dict)  # rank → node it started on
    ran_until_us: int | None = None  # None: it runs on, or never started
    unit: str = "GPU"  # what a member holds: GPUs or slices
    fraction: Fraction = Fraction(1)  # the part of a physical GPU that is

    @property
    def started(self) -> bool:
        """Return whether all members went on to run."""
        return self.outcome == "started"

    @property
    def gpu_us(self) -> int:
        """Return the idle GPU time of all members."""
        return sum(held.gpu_us for held in self.held)

    @property
    def held_most(self) -> int:
        """Return the most GPUs it held at once."""
        return max((gpus for _, gpus in steps(self.held)), default=0)


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle; ``kind`` is hold, pending, run or on (a run that goes on)."""

    kind: str
    x: float
    width: float
    end: float  # x + width


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a waterfall: a member, or a node with several."""

    name: str
    node: str
    y: float
    middle: float
    bars: tuple[Bar, ...]
    gpu_seconds: int  # rounded; the total beside it is exact
    held_from_us: int | None
    members: int
    cross: bool = False  # timed out: a cross at the end


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on the axis, or a line across the figure."""

    x: float
    text: str
    anchor: str = "middle"
    wide: bool = False  # only where the page is wide


@dataclass(frozen=True, slots=True)
class Waterfall:
    """All of a large waterfall; ``shape`` is members, nodes or steps."""

    shape: str
    rows: tuple[Row, ...]
    height: int
    ticks: tuple[Mark, ...]
    start: float  # where waiting ends, in percent
    timeout: float | None  # None: not within the figure
    waits_until_now: bool
    started: bool
    path: str = ""  # of the step line, in a box of 100 × 100
    needed_y: float = 0.0


@dataclass(frozen=True, slots=True)
class Mini:
    """A waterfall for a table's cell, in a box of 100 × ``height``."""

    height: float
    bars: tuple[tuple[str, float, float, float, float], ...]  # kind, x, y, width, height


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a job's life; ``kind`` is wait, hold, run, suspended or likely."""

    kind: str
    label: str
    x: float
    width: float
    middle: float
    fits: bool  # the label has room


@dataclass(frozen=True, slots=True)
class Strip:
    """The life of a job from its submission to its end, or beyond now to its likely start."""

    pieces: tuple[Piece, ...]
    ticks: tuple[Mark, ...]
    now: float | None


def waterfall(gang: Gang) -> Waterfall:
    """Lay out one gang large: a row a member, a row a node, or one line of steps."""
    scale = _Scale.of(gang)
    start = scale.at(gang.until_us)
    timeout = None
    if gang.timeout_us is not None and gang.since_us + gang.timeout_us <= scale.end_us:
        timeout = scale.at(gang.since_us + gang.timeout_us)
    plain = Waterfall(
        "steps",
        (),
        STEP_HEIGHT,
        ticks=_seconds_axis(scale),
        start=start,
        timeout=timeout,
        waits_until_now=gang.outcome == "waiting",
        started=gang.started,
    )
    if gang.size > ROWS_BY_NODE:
        return replace(plain, path=_step_path(gang, scale), needed_y=NEEDED_Y)
    by_node = gang.size > ROWS_BY_MEMBER
    groups = _by_node(gang) if by_node else [(f"r{r}", [r]) for r in range(gang.size)]
    held_of: dict[int, list[Held]] = {}
    for held in gang.held:
        held_of.setdefault(held.rank, []).append(held)
    rows = tuple(
        _row(gang, scale, index, name, ranks, held_of, by_node)
        for index, (name, ranks) in enumerate(groups)
    )
    shape = "nodes" if by_node else "members"
    return replace(plain, shape=shape, rows=rows, height=ROW * len(rows))


def mini(gang: Gang, width: float = 100.0) -> Mini:
    """Lay out one gang small: waiting takes four fifths, what ran after it the rest."""
    wait = width * 0.8
    span = max(1, gang.until_us - gang.since_us)
    first = {held.rank: held for held in sorted(gang.held, key=lambda h: -h.start_us)}
    rows = sorted(
        ((first[rank].start_us if rank in first else gang.until_us) for rank in range(gang.size))
        if gang.size <= ROWS_BY_NODE
        else (held.start_us for held in first.values())
    )
    if len(rows) > MINI_ROWS:
        rows = [rows[index * len(rows) // MINI_ROWS] for index in range(MINI_ROWS)]
    pitch = max(3.0, min(5.0, 40 / max(1, len(rows))))
    bars: list[tuple[str, float, float, float, float]] = []
    for index, since in enumerate(rows):
        y, thick = round(index * pitch, 2), round(pitch - 0.8, 2)
        x = round(wait * (since - gang.since_us) / span, 2)
        if since < gang.until_us:
            bars.append(("hold", x, y, round(wait - x, 2), thick))
        elif not gang.started:
            bars.append(("pending", 0.5, y, round(wait - 1, 2), thick))
        if gang.started:
            bars.append(("run", round(wait + 0.5, 2), y, round(width - wait - 0.5, 2), thick))
    return Mini(round(pitch * len(rows), 2), tuple(bars))


def steps(held: Iterable[Held]) -> list[tuple[int, int]]:
    """Return how many GPUs are held from each instant on at which that changes."""
    changes: Counter[int] = Counter()
    for one in held:
        changes[one.start_us] += one.gpus
        changes[one.end_us] -= one.gpus
    line, gpus = [], 0
    for at in sorted(changes):
        if changes[at]:
            gpus += changes[at]
            line.append((at, gpus))
    return line


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch of a job's life before it is drawn; ``end_us`` None: it goes on."""

    kind: str
    label: str
    start_us: int
    end_us: int | None


def life_strip(
    stretches: Sequence[Stretch],
    ticks: Sequence[tuple[int, str]],
    *,
    since_us: int,
    until_us: int,
    now_us: int | None,
) -> Strip:
    """Lay out a job's life between two instants; a label is left out where it does not fit."""
    length = max(1, until_us - since_us)

    def at(instant: int) -> float:
        return round(100 * min(max(instant - since_us, 0), length) / length, 2)

    pieces = []
    for one in stretches:
        x, end = at(one.start_us), at(until_us if one.end_us is None else one.end_us)
        width = round(end - x, 2)
        fits = width >= 1.0 + 1.05 * len(one.label)
        pieces.append(Piece(one.kind, one.label, x, max(width, 0.3), round(x + width / 2, 2), fits))
    marks = tuple(
        Mark(at(instant), text, _anchor(at(instant)))
        for instant, text in ticks
        if since_us <= instant <= until_us
    )
    return Strip(tuple(pieces), marks, None if now_us is None else at(now_us))


def _anchor(x: float) -> str:
    if x < 4:
        return "start"
    return "end" if x > 96 else "middle"


@dataclass(frozen=True, slots=True)
class _Scale:
    since_us: int
    end_us: int

    @classmethod
    def of(cls, gang: Gang) -> _Scale:
        """Show the wait, as much again of the run, and a time-out that is not far off."""
        waited = max(MICROSECOND, gang.until_us - gang.since_us)
        end = gang.since_us + waited
        if gang.started:
            end += max(waited, MICROSECOND * 10)
        if gang.timeout_us is not None and gang.timeout_us <= 3 * waited:
            end = max(end, gang.since_us + gang.timeout_us * 11 // 10)
        return cls(gang.since_us, end)

    def at(self, instant: int) -> float:
        """Return an instant as a percentage of the width."""
        length = self.end_us - self.since_us
        return round(100 * min(max(instant - self.since_us, 0), length) / length, 3)


def _by_node(gang: Gang) -> list[tuple[str, list[int]]]:
    """Group ranks by the node they hold or started on; those without one come last."""
    node_of = dict(gang.nodes)
    for held in gang.held:
        node_of.setdefault(held.rank, held.node)
    groups: dict[str, list[int]] = {}
    for rank in range(gang.size):
        groups.setdefault(node_of.get(rank, ""), []).append(rank)
    return sorted(groups.items(), key=lambda item: (item[0] == "", item[1][0]))


def _row(
    gang: Gang,
    scale: _Scale,
    index: int,
    name: str,
    ranks: list[int],
    held_of: Mapping[int, list[Held]],
    by_node: bool,
) -> Row:
    held = sorted((h for rank in ranks for h in held_of.get(rank, ())), key=lambda h: h.start_us)
    bars = [_bar("hold", scale.at(h.start_us), scale.at(h.end_us)) for h in _merged(held)]
    bars = [bar for bar in bars if bar.width > 0]
    end = scale.at(gang.until_us)
    first = held[0].start_us if held else None
    if not by_node or first is None:
        bars = sorted([*bars, *_gaps(bars, end)], key=lambda bar: bar.x)
    if gang.started:
        goes_on = gang.ran_until_us is None or gang.ran_until_us > scale.end_us
        stop = 100.0 if gang.ran_until_us is None else scale.at(gang.ran_until_us)
        bars.append(_bar("on" if goes_on else "run", end, stop))
    node = name if by_node else next((gang.nodes[r] for r in ranks if r in gang.nodes), "")
    return Row(
        name=(name or "no node yet") if by_node else name,
        node=f"{len(ranks)} member{'' if len(ranks) == 1 else 's'}"
        if by_node
        else node or (held[0].node if held else ""),
        y=index * ROW + (ROW - BAR) / 2,
        middle=index * ROW + ROW / 2,
        bars=tuple(bars),
        gpu_seconds=(sum(h.gpu_us for h in held) + MICROSECOND // 2) // MICROSECOND,
        held_from_us=first,
        members=len(ranks),
        cross=gang.outcome == "timed_out" and bool(held),
    )


def _gaps(bars: Sequence[Bar], end: float) -> list[Bar]:
    """Return outlines for where nothing was held before the end, as far as they can be seen."""
    edges = [0.0, *(edge for bar in bars for edge in (bar.x, bar.end)), end]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [_bar("pending", start, stop) for start, stop in pairs if stop - start > 0.5]


def _merged(held: Sequence[Held]) -> list[Held]:
    """Join stretches that touch or overlap, so that a node's row is drawn without seams."""
    joined: list[Held] = []
    for one in held:
        if joined and one.start_us <= joined[-1].end_us:
            last = joined[-1]
            joined[-1] = Held(
                last.rank, last.node, last.gpus, last.start_us, max(last.end_us, one.end_us)
            )
        else:
            joined.append(one)
    return joined


def _bar(kind: str, x: float, end: float) -> Bar:
    return Bar(kind, x, round(end - x, 3), end)


def _step_path(gang: Gang, scale: _Scale) -> str:
    """Draw GPUs held over time; the gang is whole at NEEDED_Y."""
    needed = max(1, gang.size * gang.gpus_per_member)

    def y(gpus: int) -> float:
        return round(100 - (100 - NEEDED_Y) * gpus / needed, 2)

    path, level = ["M0 100"], 0
    for at, gpus in steps(gang.held):
        x = scale.at(at)
        path.append(f"L{x:g} {y(level):g}L{x:g} {y(gpus):g}")
        level = gpus
    end = scale.at(gang.until_us)
    return "".join([*path, f"L{end:g} {y(level):g}L{end:g} 100Z"])


def _seconds_axis(scale: _Scale) -> tuple[Mark, ...]:
    """Label the axis from 0 in round steps, seven at the most."""
    length = (scale.end_us - scale.since_us) / MICROSECOND
    step = STEPS[min(bisect_right(STEPS, length / 7), len(STEPS) - 1)]
    while length / step > 7:
        step *= 2
    count = int(length // step)
    return tuple(
        Mark(round(100 * index * step / length, 3), _axis_words(index * step, step), "middle")
        for index in range(count + 1)
    )


def _axis_words(seconds: int, step: int) -> str:
    if step < 60:
        return f"{seconds} s"
    if step < 3600:
        return f"{seconds // 60} min"
    return f"{seconds / 3600:g} h"
