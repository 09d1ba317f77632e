"""Intervals for the pages' tests, written by the ledger's own services."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from apps.backends.models import Node
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job, Member, Move, Reservation
from apps.jobs.states import JobState
from apps.ledger.intervals import close_holds, close_members, open_holds, open_members
from apps.ledger.prices import set_price

MakeJob = Callable[..., Job]


def nodes_of(world: SimpleNamespace) -> list[Node]:
    """Return the cluster's nodes by name."""
    return list(Node.objects.filter(cluster=world.cluster).order_by("name"))


def price(
    world: SimpleNamespace, amount: str, *, at: datetime | None = None, now: datetime
) -> None:
    """Give the pool a price from an instant on, or from always on."""
    set_price(world.pool, per_gpu_hour=Decimal(amount), from_at=at, by=None, now=now)


def run(
    world: SimpleNamespace,
    job: Job,
    nodes: list[Node],
    *,
    at: datetime,
    until: datetime | None = None,
) -> Attempt:
    """Run a job's members on nodes from an instant on, one node a member."""
    attempt = Attempt.objects.create(
        job=job, number=job.attempt_number, created_at=at, started_at=at, ended_at=until,
        outcome="succeeded" if until else "",
    )  # fmt: skip
    Member.objects.bulk_create(
        Member(attempt=attempt, rank=rank, node=node) for rank, node in enumerate(nodes)
    )
    job.state = JobState.SUCCEEDED if until else JobState.RUNNING
    job.state_since, job.ended_at = until or at, until
    job.outcome = "succeeded" if until else ""
    job.save()
    moves = [("RUNNING", "started", at)] + ([("SUCCEEDED", "succeeded", until)] if until else [])
    for after, what, when in moves:
        Move.objects.create(job=job, at=when, after=after, attempt_number=1, what=what)
    open_members([attempt], first_look_us=to_us(world.cluster.first_look_at))
    if until is not None:
        close_members({attempt.pk: to_us(until)})
    return attempt


def hold(
    job: Job,
    members: list[tuple[int, Node]],
    *,
    at: datetime,
    until: datetime | None = None,
    outcome: str = "",
    timeout: int | None = 1800,
) -> Reservation:
    """Hold members' GPUs for a job from an instant on."""
    reservation = Reservation.objects.create(
        job=job, attempt_number=job.attempt_number, since=at, ended_at=until,
        outcome=outcome, timeout_seconds=timeout,
    )  # fmt: skip
    open_holds(reservation, members, at_us=to_us(at))
    if until is not None:
        close_holds(reservation, at_us=to_us(until))
    else:
        job.state, job.state_since = JobState.RESERVING, at
        job.save()
    Move.objects.create(
        job=job, at=at, before="PENDING", after="RESERVING", attempt_number=job.attempt_number,
        what="reserved", detail={"held": len(members), "size": job.size},
    )  # fmt: skip
    return reservation


def nine_ranks(world: SimpleNamespace, make_job: MakeJob, *, at: datetime, tenant: str) -> Job:
    """Tell the seed story: eight of nine ranks hold a GPU for 47 s, then all start together."""
    nodes = nodes_of(world)
    job = make_job("nine ranks", tenant, size=9, min_size=9, gpus_per_member=1, submitted_at=at)
    start = at + timedelta(seconds=47)
    hold(job, [(rank, nodes[2]) for rank in range(8)], at=at, until=start, outcome="started")
    run(world, job, [*[nodes[2]] * 8, nodes[3]], at=start, until=at + timedelta(minutes=5))
    return job


def text_of(response: Any) -> str:
    """Return a page as a reader sees it: without tags, blanks folded."""
    body = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", response.content.decode(), flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def table_of(response: Any, name: str) -> list[list[str]]:
    """Return the cells of the table of a class: a list per line, heads first."""
    found = re.search(rf'<table class="[^"]*\b{name}\b.*?</table>', response.content.decode(), re.S)
    assert found, f"no table {name}"
    rows = re.findall(r"<tr.*?</tr>", found[0], re.S)
    return [
        [
            re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", cell))).strip()
            for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.S)
        ]
        for row in rows
    ]


def amount(text: str) -> Decimal:
    """Return the number a cell shows; ``< 0.1 %`` is what it is apportioned as: nothing."""
    if text.startswith("<"):
        return Decimal(0)
    return Decimal(re.sub(r"[^0-9.\-]", "", text.replace("−", "-")) or "0")


def adds_up(rows: list[list[str]]) -> bool:
    """Return whether each column of numbers is its last line, as shown."""
    *parts, total = rows
    return all(
        sum(amount(row[column]) for row in parts) == amount(total[column])
        for column in range(1, len(total))
        if total[column]
    )
