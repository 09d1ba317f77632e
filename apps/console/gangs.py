"""Gangs that waited to be whole: a reservation and its holds as a drawing and its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from apps.common import show
from apps.common.money import MICROS
from apps.common.time import HOUR_US, MICROSECOND, from_us, to_us
from apps.console import drawings
from apps.console.causes import Cause
from apps.console.drawings import Gang, Held, Waterfall
from apps.jobs.models import Attempt, Job, Member
from apps.jobs.states import ReservationOutcome
from apps.ledger.selectors import Prices
from apps.ledger.waits import WAITING, GangWait

HEAD, FOOT = 46, 44
OUTCOMES = (WAITING, *(outcome.value for outcome in ReservationOutcome))
MOST_IN_TABLE = 600


@dataclass(frozen=True, slots=True)
class Ending:
    """How a wait ended: a glyph, its tone, a word, and what the last column of times is called."""

    glyph: str
    tone: str
    label: str
    column: str


ENDINGS = {
    WAITING: Ending("reserving", "gang_wait", "Waiting", "now"),
    ReservationOutcome.STARTED: Ending("running", "busy", "Started", "started"),
    ReservationOutcome.TIMED_OUT: Ending("cross", "bad", "Timed out", "released"),
    ReservationOutcome.RELEASED: Ending("pending", "ink3", "Gave back", "released"),
    ReservationOutcome.CANCELLED: Ending("slash", "ink3", "Cancelled", "released"),
}


@dataclass(frozen=True, slots=True)
class Edge:
    """An instant under the axis: the word is left out where there is no room."""

    x: float
    anchor: str
    word: str
    text: str
    wide: bool = False  # only where the page is wide


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table beside the drawing."""

    name: str
    node: str
    reserved_at: datetime | None
    ended_at: datetime | None
    gpu_seconds: int


@dataclass(frozen=True, slots=True)
class GangView:
    """One gang drawn large, and every word around it; ``cost`` is empty where none is shown."""

    name: str
    size: int
    gpus: int
    unit: str
    drawing: Waterfall
    words: str
    sentence: str
    waited: str
    waiting_words: str
    waiting_short: str
    running_words: str
    running_short: str
    pending_why: str
    gpu_seconds: int
    cost: str
    rows_rounded: bool
    zone: str
    end_word: str
    height: int
    axis_y: int
    needed_y: float
    needed_height: float
    run_width: float
    edges: tuple[Edge, ...]
    table: tuple[TableRow, ...]
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Money:
    """What a wait cost: the exact sum, what it costs an hour now, and the prices in force."""

    cost: Fraction
    per_hour: Fraction | None
    prices: tuple[Fraction, ...]  # of a GPU-hour, in the order they were in force


def gang_of(
    wait: GangWait, run: Attempt | None = None, places: Mapping[int, str] | None = None
) -> Gang:
    """Return one reservation as what is drawn; ``run`` and ``places`` are where it started."""
    job, ran = wait.job, None
    if run is not None and run.ended_at is not None:
        ran = to_us(run.ended_at)
    held = tuple(
        Held(
            hold.rank,
            hold.node,
            job.gpus_per_member,
            hold.start_us,
            max(hold.start_us, wait.until_us if hold.end_us is None else hold.end_us),
        )
        for hold in wait.holds
    )
    timeout = wait.reservation.timeout_seconds
    return Gang(
        size=job.size,
        gpus_per_member=job.gpus_per_member,
        since_us=wait.since_us,
        until_us=max(wait.since_us, wait.until_us),
        outcome=wait.outcome,
        held=held,
        timeout_us=None if timeout is None else timeout * MICROSECOND,
        nodes=places or {},
        ran_until_us=ran,
        unit=job.pool.unit,
        fraction=Fraction(job.pool.fraction_numerator, job.pool.fraction_denominator),
    )


def run_of(wait: GangWait) -> tuple[Attempt | None, dict[int, str]]:
    """Return the attempt a reservation that started became, and the node of each rank."""
    if wait.outcome != ReservationOutcome.STARTED:
        return None, {}
    members = Member.objects.filter(
        attempt__job=wait.job,
        attempt__number=wait.reservation.attempt_number,
        attempt__started_at__isnull=False,
    ).select_related("attempt", "node")
    rows = list(members)
    return (rows[0].attempt if rows else None), {row.rank: row.node.name for row in rows}


def money_of(wait: GangWait, prices: Prices) -> Money | None:
    """Return what a wait cost, at which prices; None where no price is in force."""
    if not wait.amount.has_money:
        return None
    pool = wait.job.pool_id
    instants = [
        wait.since_us,
        *(h.start_us for h in wait.holds),
        max(wait.since_us, wait.until_us - 1),
    ]
    found = {price.from_us: price for at in instants if (price := prices.at(pool, at))}
    holding = sum(wait.job.gpus_per_member for hold in wait.holds if hold.end_us is None)
    now = prices.amount(pool, holding, wait.until_us, wait.until_us + HOUR_US)
    return Money(
        wait.amount.money,
        now.money if now.has_money else None,
        tuple(Fraction(found[at].micros_per_gpu_hour, MICROS) for at in sorted(found)),
    )


def missing_of(gang: Gang) -> int:
    """Return the GPUs that came last: what the others waited for, or still wait for."""
    if gang.outcome == WAITING:  # it may have held more before, and lent it
        held = sum(h.gpus for h in gang.held if h.end_us >= gang.until_us)
    else:
        before = (gpus for at, gpus in drawings.steps(gang.held) if at < gang.until_us)
        held = max(before, default=0)
    return gang.size * gang.gpus_per_member - held


def held_words(gang: Gang) -> str:
    """Say what a gang held at most, or holds now; of how many, where it is not whole."""
    total = gang.size * gang.gpus_per_member
    if gang.started:
        return f"{show.whole(gang.held_most)} held"
    held = total - missing_of(gang) if gang.outcome == WAITING else gang.held_most
    return f"{show.whole(held)} of {show.whole(total)} held"


def sentence_of(gang: Gang, money: Money | None) -> str:
    """Say what one gang's wait was, what it cost, and how it ended; at most two sentences."""
    total = gang.size * gang.gpus_per_member
    had, length = total - missing_of(gang), _length(gang)
    spent, whole = _spent(gang.gpu_us * gang.fraction), show.counted(total, gang.unit)
    cost = f", {show.money(money.cost)}" if money else ""
    if gang.outcome == WAITING and not had:
        lent = "What it held is lent to jobs that will have ended when it can start"
        return f"{lent}: {spent}{cost} so far, {length} after it first held some."
    if gang.outcome == WAITING:
        rate = f", {show.money(money.per_hour)} an hour" if money and money.per_hour else ""
        start = f"Holds {had} of {whole} and has waited {length} to be whole"
        return f"{start}: {spent}{cost} so far{rate}.{_timeout_words(gang)}"
    if gang.outcome == ReservationOutcome.STARTED:
        if not gang.gpu_us:
            return "All members started at once: nothing stood idle."
        missing = total - had
        more = "one more" if missing == 1 else f"{show.whole(missing)} more"
        up_to = "" if len({h.start_us for h in gang.held if h.gpu_us}) == 1 else "up to "
        waited = f"{show.counted(had, gang.unit)} waited {up_to}{length} for {more}"
        return f"{waited}: {spent}{cost}{_price_words(money)}, not counted as usage."
    verb = {
        ReservationOutcome.TIMED_OUT: "Timed out",
        ReservationOutcome.RELEASED: "Gave back its room",
        ReservationOutcome.CANCELLED: "Was cancelled",
    }[ReservationOutcome(gang.outcome)]
    held = gang.held_most
    return f"{verb} after {length} with {held} of {whole} held; all are released. It cost {spent}{cost}."


def _length(gang: Gang) -> str:
    return show.duration((gang.until_us - gang.since_us) // MICROSECOND)


def _spent(gpu_us: Fraction) -> str:
    """Write GPU time: GPU-seconds below a GPU-hour, GPU-hours from there on."""
    if gpu_us < HOUR_US:
        return f"{show.whole(gpu_us / MICROSECOND)} GPU-s"
    return show.gpu_hours(gpu_us / HOUR_US)


def _price_words(money: Money | None) -> str:
    if money is None or not money.prices:
        return ""
    said = " and then ".join(show.money(price) for price in money.prices)
    return f" at {said} per GPU-hour"


def _timeout_words(gang: Gang) -> str:
    if gang.timeout_us is None:
        return ""
    at = from_us(gang.since_us + gang.timeout_us)
    now = from_us(gang.until_us)
    return f" Times out at {show.instant(at, now=now, style='seconds')}."


def view_of(job: Job, gang: Gang, money: Money | None, cause: Cause | None = None) -> GangView:
    """Return one gang with its drawing and every word around it; ``cause`` says why it waited."""
    drawing = drawings.waterfall(gang)
    total = gang.size * gang.gpus_per_member
    missing = missing_of(gang)
    had = total - missing
    unit = "rank" if gang.gpus_per_member == 1 else "member"
    seconds = (gang.gpu_us + MICROSECOND // 2) // MICROSECOND
    needed_y = round(drawing.height * drawing.needed_y / 100, 1)
    short = had if gang.outcome == WAITING or missing else total
    sentence = sentence_of(gang, money)
    return GangView(
        name=show.cut(show.spoken(job.name)),
        size=gang.size,
        gpus=total,
        unit=gang.unit,
        drawing=drawing,
        words=f"{show.cut(show.spoken(job.name))}: {sentence}",
        sentence=sentence,
        waited=_length(gang),
        waiting_words=f"{show.counted(short, gang.unit)} reserved, {missing} still pending …",
        waiting_short=f"{short} + {missing} pending",
        running_words=f"all {show.counted(gang.size, unit)} start together",
        running_short=f"all {gang.size} together",
        pending_why=": no room yet",
        gpu_seconds=seconds,
        cost=show.money(money.cost) if money else "",
        rows_rounded=sum(row.gpu_seconds for row in drawing.rows) != seconds,
        zone=from_us(gang.since_us).astimezone(show.zone()).tzname() or "",
        end_word=ENDINGS[gang.outcome].column,
        height=HEAD + drawing.height + FOOT,
        axis_y=HEAD + drawing.height + 16,
        needed_y=needed_y,
        needed_height=round(drawing.height - needed_y, 1),
        run_width=round(100 - drawing.start, 3),
        edges=_edges(gang, drawing),
        table=_table(gang, drawing),
        cause=cause,
    )


def _edges(gang: Gang, drawing: Waterfall) -> tuple[Edge, ...]:
    """Name the instants below the axis: reserved, started or released or now, and the time-out."""

    def at(instant: int) -> str:
        return f"{from_us(instant).astimezone(show.zone()):%H:%M:%S}"

    end = ENDINGS[gang.outcome].column
    anchor = "end" if drawing.start > 85 else "middle"
    edges = [Edge(0, "start", "reserved", at(gang.since_us))]
    if drawing.start > 22:
        edges.append(Edge(drawing.start, anchor, end, at(gang.until_us)))
    if drawing.timeout is not None and gang.timeout_us is not None:
        length = show.duration(gang.timeout_us // MICROSECOND)
        room = drawing.timeout - drawing.start
        if room > 12:
            place = "end" if drawing.timeout > 85 else "middle"
            edges.append(Edge(drawing.timeout, place, "", f"timeout {length}", wide=room <= 26))
    return tuple(edges)


def _table(gang: Gang, drawing: Waterfall) -> tuple[TableRow, ...]:
    ended = None if gang.outcome == WAITING else from_us(gang.until_us)
    if drawing.shape != "steps":
        return tuple(
            TableRow(
                row.name,
                row.node,
                None if row.held_from_us is None else from_us(row.held_from_us),
                ended,
                row.gpu_seconds,
            )
            for row in drawing.rows
        )
    by_rank: dict[int, list[Held]] = {}
    for held in gang.held:
        by_rank.setdefault(held.rank, []).append(held)
    return tuple(
        TableRow(
            f"r{rank}",
            gang.nodes.get(rank) or (by_rank[rank][0].node if rank in by_rank else ""),
            from_us(min(h.start_us for h in by_rank[rank])) if rank in by_rank else None,
            ended,
            round(Fraction(sum(h.gpu_us for h in by_rank.get(rank, ())), MICROSECOND)),
        )
        for rank in range(min(gang.size, MOST_IN_TABLE))
    )
