"""What the pages say of a cluster: how far it is controlled, what it can, what looking at it costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import mean, median

from django.db import models

from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, Grade, Node, NodeState
from apps.backends.pace import unhurried
from apps.backends.port import Finding
from apps.common import show
from apps.common.errors import DomainError
from apps.console.marks import Alert
from apps.console.people import Told, Viewer
from apps.ledger.models import Interval, IntervalKind
from apps.scheduling.advised import given_to
from apps.scheduling.models import HistoryImport, HistoryReading, ImportState, Tick
from apps.scheduling.selectors import imports_of, percent_done

LOOKS = 60
JOBS_SHOWN = 3
IMPORTS_SHOWN = 3
GRADES: dict[str, str] = {
    Grade.OBSERVE: "Rollcall only watches: nothing on it is changed, and the plan shows what would be done.",
    Grade.ADVISE: "Rollcall plans and, where it can, puts the cluster’s own line in that order; it starts and stops nothing.",
    Grade.DRIVE: "Rollcall starts, stops and evicts the jobs that are submitted here.",
}
ABLE = {
    "observe": "see its nodes and jobs",
    "launch": "start a gang whole, on the planned nodes",
    "stop": "stop jobs",
    "utilisation": "follow how busy GPUs are",
    "ask_to_leave": "ask a job to save its work and go",
    "stay": "take such a request back",
    "demote": "let a job run on below all others",
    "shrink": "take members from a running gang",
    "history": "fetch finished jobs from its accounting",
    "line": "tell its own priorities and planned starts",
    "accounts": "read accounts, shares and limits, and write them",
    "run_as_user": "run each job as the user who submitted it",
    "rank": "give the jobs that wait in its own line our order, in grade advise",
}
TONES = {"ok": ("check", "ok"), "warning": ("warn", "warn"), "missing": ("cross", "bad")}
NODE_MARKS = {
    NodeState.UP: ("check", "ok"),
    NodeState.DRAINED: ("bars", "warn"),
    NodeState.DOWN: ("cross", "bad"),
}


@dataclass(frozen=True, slots=True)
class Ability:
    """What a cluster can, or why it cannot."""

    glyph: str
    tone: str
    text: str


def abilities_of(cluster: Cluster) -> list[Ability]:
    """Return what can be done with a cluster and what cannot, in words; nothing is asked of it."""
    try:
        told = backend_of(cluster).capabilities()
    except DomainError as refusal:
        return [Ability("cross", "bad", refusal.message)]
    can = [Ability("check", "ok", ABLE[name]) for name in ABLE if name in told.can]
    return can + [Ability("slash", "ink3", words) for words in told.cannot.values()]


def runs_as(cluster: Cluster) -> str:
    """Return as whom jobs run on a cluster; empty: it knows no users."""
    try:
        told = backend_of(cluster).capabilities()
    except DomainError:
        return ""
    if "run_as_user" in told.can:
        return f"On {cluster} a job runs as the user who submitted it."
    return told.cannot.get("run_as_user", "")


def able_to(cluster: Cluster) -> frozenset[str]:
    """Return what can be done with a cluster, by the port's names; nothing is asked of it."""
    try:
        return backend_of(cluster).capabilities().can
    except DomainError:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """How long the last looks and decisions took, and what that makes of each minute."""

    count: int
    observe_ms: float
    decide_ms: float
    minute_ms: float | None  # None: a virtual clock has no such minutes

    @property
    def words(self) -> str:
        """Return what looking costs."""
        said = f"A look takes {milliseconds(self.observe_ms)}, the middle of the last {self.count}"
        if self.minute_ms is None:
            return f"{said}."
        return f"{said}; together they take {milliseconds(self.minute_ms)} of each minute."


def milliseconds(value: float) -> str:
    """Write milliseconds: ``75 ms``, ``1.2 s``."""
    return f"{show.whole(round(value))} ms" if value < 1_000 else f"{value / 1_000:.1f} s"


def look_of(cluster: Cluster) -> Look | None:
    """Return what the newest ticks took; None: there was none."""
    rows = Tick.objects.filter(cluster=cluster).order_by("-id")
    ticks = list(rows.values_list("observe_ms", "decide_ms")[:LOOKS])
    if not ticks:
        return None
    observe = [row[0] for row in ticks]
    # Rarer than asked for where a tick takes longer than its interval.
    each = max(unhurried(cluster), mean(sum(row) for row in ticks) / 1_000)
    minute = mean(observe) * 60 / each if cluster.clock_now is None else None
    return Look(len(ticks), median(observe), median(row[1] for row in ticks), minute)


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding of a preflight as a line."""

    glyph: str
    tone: str
    text: str
    command: str


def finding_rows(found: Iterable[Finding]) -> list[FindingRow]:
    """Return findings as lines, what is missing first."""
    order = ("missing", "warning", "ok")
    ranked = sorted(found, key=lambda one: order.index(one.state))
    return [FindingRow(*TONES[one.state], one.sentence, one.command) for one in ranked]


def findings_words(found: Sequence[Finding]) -> str:
    """Return what a preflight comes to."""
    missing = sum(one.state == "missing" for one in found)
    warned = sum(one.state == "warning" for one in found)
    works = show.counted(len(found) - missing - warned, "thing works", "things work")
    if missing:
        lacks = show.counted(missing, "thing is missing", "things are missing")
        return f"{lacks}; {works}."
    notes = f"; {show.counted(warned, 'thing', 'things')} to know" if warned else ""
    return f"Nothing is missing: {works}{notes}."


@dataclass(frozen=True, slots=True)
class Sum:
    """What the nodes of a cluster add up to; one with GPUs of two pools is one node."""

    nodes: int = 0
    gpus: int = 0
    up: int = 0


def sums_of(clusters: Iterable[Cluster]) -> dict[int, Sum]:
    """Return what the nodes of clusters add up to, by cluster; one query."""
    chosen = [cluster.pk for cluster in clusters]
    rows = Node.objects.filter(cluster__in=chosen, gone_at__isnull=True).order_by()
    up = models.Sum("gpus", filter=models.Q(state=NodeState.UP), default=0)
    nodes = models.Count("name", distinct=True)
    sums = rows.values("cluster_id").annotate(nodes=nodes, up=up, whole=models.Sum("gpus"))
    found = {row["cluster_id"]: Sum(row["nodes"], row["whole"], row["up"]) for row in sums}
    return {pk: found.get(pk, Sum()) for pk in chosen}


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with what holds its GPUs, as the reader may see it."""

    node: Node
    glyph: str
    tone: str
    used: int
    held: int
    free: int
    jobs: tuple[Told, ...]
    more: int


def node_rows(nodes: Sequence[Node], viewer: Viewer) -> list[NodeRow]:
    """Return nodes with the jobs on them; one query."""
    kinds = (IntervalKind.MEMBER, IntervalKind.HOLD)
    rows = Interval.objects.filter(node__in=nodes, end_us__isnull=True, kind__in=kinds)
    on: dict[int | None, list[Interval]] = defaultdict(list)
    for one in rows.select_related("job__tenant", "job__pool").order_by("id"):
        on[one.node_id].append(one)
    return [_node_row(node, on[node.pk], viewer) for node in nodes]


def _node_row(node: Node, here: Sequence[Interval], viewer: Viewer) -> NodeRow:
    used = sum(one.gpus for one in here if one.kind == IntervalKind.MEMBER)
    held = sum(one.gpus for one in here if one.kind == IntervalKind.HOLD)
    free = max(0, node.gpus - used - held - node.foreign_gpus) if node.state == NodeState.UP else 0
    jobs = {one.job.pk: one.job for one in here if one.job is not None}
    told = tuple(viewer.told(job) for job in list(jobs.values())[:JOBS_SHOWN])
    glyph, tone = NODE_MARKS[NodeState(node.state)]
    return NodeRow(node, glyph, tone, used, held, free, told, len(jobs) - len(told))


@dataclass(frozen=True, slots=True)
class ImportRow:
    """An import of a cluster's history: how far it is, and what came of it."""

    percent: int
    running: bool
    text: str
    problem: str
    job: HistoryImport


def import_rows(cluster: Cluster) -> list[ImportRow]:
    """Return the newest imports of a cluster's history; one query."""
    return [
        ImportRow(
            percent_done(job),
            job.state == ImportState.RUNNING,
            _import_words(job),
            job.problem,
            job,
        )
        for job in imports_of(cluster)[:IMPORTS_SHOWN]
    ]


def _import_words(job: HistoryImport) -> str:
    """Return what an import brought, and what it left out and why."""
    brought = f"{show.counted(job.runs, 'run')} written, {show.whole(job.known)} known already"
    left = [f"{show.whole(many)} {why}" for why, many in sorted(job.left_out.items())]
    return f"{brought}; left out: {', '.join(left)}." if left else f"{brought}."


def reading_words(cluster: Cluster) -> tuple[str, str]:
    """Return how far its accounting was read since the first look, and why not further; one query."""
    reading = HistoryReading.objects.filter(cluster=cluster).first()
    if reading is None or reading.read_until is None:
        return "", "" if reading is None else reading.problem
    brought = show.counted(reading.runs, "run")
    text = (
        f"Since the first look it was read on to {reading.read_until:%Y-%m-%d %H:%M} UTC: {brought}"
        f" that no look had shown, and {show.whole(reading.mended)} that had been taken for lost."
    )
    return text, reading.problem


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """What came of giving a cluster our order, in words; ``at``: when it last was."""

    text: str
    at: datetime | None
    trouble: str


def advice_row(cluster: Cluster, viewer: Viewer) -> AdviceRow | None:
    """Return what a cluster was told of our order; None: nothing, and nothing is left of it."""
    given = given_to(cluster)
    if given is None:
        return None
    if cluster.grade == Grade.ADVISE:
        one, many = "waiting job has", "waiting jobs have"
        text = f"{show.counted(given.jobs, one, many)} a nice that Rollcall set."
    else:
        one, many = "waiting job is", "waiting jobs are"
        text = f"{show.counted(given.jobs, one, many)} yet to have back the nice of before."
    if given.by_hand:
        counted = show.counted(given.by_hand, "job is", "jobs are")
        text += f" {counted} left alone: somebody changed the nice or the priority."
    trouble = given.trouble
    if trouble and not viewer.is_admin:
        trouble = "The last try failed; admins see why."
    return AdviceRow(text, given.given_at, trouble)


def trouble_of(cluster: Cluster, viewer: Viewer) -> list[Alert]:
    """Return that the last tick failed; why is for admins: it may name paths and hosts."""
    if not cluster.trouble:
        return []
    if viewer.is_admin:
        return [Alert("bad", cluster.trouble)]
    return [Alert("warn", f"The last look at {cluster.name} failed; its admins see why.")]
