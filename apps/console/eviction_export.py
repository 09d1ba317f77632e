"""Evictions for machines: one row each, exact, as the reader may know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from typing import Any

from django.conf import settings

from apps.common import show
from apps.common.money import round_half_up, scaled
from apps.console.eviction_rows import tells_money
from apps.console.people import Viewer
from apps.jobs.eviction_facts import LEAVING, loss_of, stood, team_told, tenants_in
from apps.jobs.eviction_words import grace_of
from apps.jobs.models import Eviction, Job

BATCH = 500
COLUMNS = (
    "id", "at", "cluster", "pool", "tick_id", "rule", "mode", "outcome",
    "victim_job", "victim", "victim_tenant", "victim_attempt", "members", "gpus",
    "beneficiary_job", "beneficiary", "beneficiary_tenant", "beneficiary_gpus",
    "asked_at", "leave_by", "grace_seconds", "confirmed_at", "ended_at",
    "team", "team_gpus_before", "team_gpus_after", "team_guarantee", "team_entitlement",
    "within_hour", "thrashes", "lost_gpu_hours",
)  # fmt: skip


def columns(*, money: bool) -> list[str]:
    """Return the names of the columns."""
    return [*COLUMNS, *([f"lost_cost_{settings.CURRENCY.lower()}"] if money else [])]


def exact(value: Fraction) -> str:
    """Write an exact amount for machines, to nine decimals."""
    return str(scaled(round_half_up(value, 9), 9))


def rows(evictions: Iterable[Eviction], viewer: Viewer, *, money: bool) -> Iterator[list[Any]]:
    """Yield a row per eviction; one query more for every batch of them."""
    left = iter(evictions)
    while batch := list(islice(left, BATCH)):
        paths = tenants_in(batch)
        for one in batch:
            yield row(one, viewer, paths, money=money)


def row(eviction: Eviction, viewer: Viewer, paths: Mapping[int, str], *, money: bool) -> list[Any]:
    """Return one eviction in the order of ``columns``."""
    loss, side = loss_of(eviction), stood(eviction, "victim")
    team = None if side is None else paths.get(side.tenant_id)
    known = side if team is not None else None
    cells = [
        eviction.pk, show.iso(eviction.at), eviction.cluster.name, eviction.job.pool.name,
        eviction.tick_id, eviction.rule, eviction.mode, eviction.outcome or LEAVING,
        *_side(viewer, eviction.job),
        eviction.attempt.number if viewer.sees(eviction.job.tenant) else None,
        eviction.members, eviction.gpus,
        *_side(viewer, eviction.beneficiary), eviction.beneficiary.gpus,
        *map(_instant, (eviction.asked_at, eviction.leave_by)),
        int(grace_of(eviction).total_seconds()),
        *map(_instant, (eviction.confirmed_at, eviction.ended_at)),
        None if team is None else team_told(viewer.sight, team),
        *(None if known is None else getattr(known, name)
          for name in ("before", "after", "guarantee", "entitlement")),
        eviction.within_hour, eviction.thrashes,
        None if loss is None else exact(loss.gpu_hours),
    ]  # fmt: skip
    if money:
        told = loss is not None and loss.money is not None and tells_money(viewer, eviction.job)
        cells.append(exact(loss.money) if told else None)  # type: ignore[union-attr, arg-type]  # told says so
    return cells


def _side(viewer: Viewer, job: Job) -> tuple[int | None, str, str]:
    """Return a job's id where its reader may follow it, and what may be told of it."""
    told = viewer.told(job)
    return job.pk if told.own else None, told.text, team_told(viewer.sight, job.tenant.path)


def _instant(at: Any) -> str | None:
    return None if at is None else show.iso(at)
