"""Write intervals down: the only writer of the only source of usage and cost.

Every call is safe to repeat, runs in the caller's transaction, and takes a few queries however
many rows it is about. Instants are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from apps.backends.models import Cluster, Node, NodeState
from apps.common.statements import placeholders
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job, Member, Reservation
from apps.ledger import sql
from apps.ledger.models import Interval, IntervalKind
from apps.ledger.rollup import lower_mark
from apps.ledger.usage import Change, book
from apps.queues.models import PriorityClass

HELD_IDLE, UNKNOWN, STRANDED, FOREIGN = "held_idle", "unknown", "stranded", "foreign"


def node_seen(nodes: Sequence[Node], *, at_us: int) -> None:
    """Make the open node intervals match these nodes of one cluster, from ``at_us`` on.

    A node that is gone has none; GPUs used by work that is not ours are a mark on it. Members and
    holds on a node that stopped or started being up are closed and opened again at that instant.
    """
    if not nodes:
        return
    cluster_id = nodes[0].cluster_id
    seen: dict[tuple[str, int], tuple[int, str, int]] = {
        (kind, node_id): (pk, state, gpus)
        for pk, kind, node_id, state, gpus in sql.read(sql.OPEN_NODES, cluster_id)
    }
    turned: dict[int, bool] = {}
    differ: list[tuple[Node, IntervalKind, int | None, tuple[str, int] | None]] = []
    for node in nodes:
        here = node.gone_at is None
        known = seen.get((IntervalKind.NODE, node.pk))
        was_out = known is not None and known[1] != NodeState.UP
        is_out = here and node.state != NodeState.UP
        if was_out != is_out:
            turned[node.pk] = is_out
        for kind, state, gpus in (
            (IntervalKind.NODE, node.state, node.gpus),
            (IntervalKind.MARK, FOREIGN, min(node.foreign_gpus, node.gpus)),
        ):
            wanted = (state, gpus) if here and gpus else None
            known = seen.get((kind, node.pk))
            if (None if known is None else known[1:]) != wanted:
                differ.append((node, kind, None if known is None else known[0], wanted))
    if differ:
        _write_nodes(cluster_id, differ, turned, at_us)


def _write_nodes(
    cluster_id: int,
    differ: Sequence[tuple[Node, IntervalKind, int | None, tuple[str, int] | None]],
    turned: Mapping[int, bool],
    at_us: int,
) -> None:
    """Write what is new of nodes: (node, kind, its open interval, wanted state and GPUs)."""
    rows = Interval.objects.in_bulk([pk for _, _, pk, _ in differ if pk is not None])
    changes = _Changes()
    for node, kind, pk, wanted in differ:
        changes.match(None if pk is None else rows[pk], node, kind, wanted, at_us)
    if turned:
        for row in Interval.objects.filter(
            cluster_id=cluster_id,
            kind__in=[IntervalKind.MEMBER, IntervalKind.HOLD],
            node_id__in=list(turned),
            end_us__isnull=True,
        ):
            out = turned[row.node_id or 0]
            if row.on_drained != out:
                changes.change(row, at_us, on_drained=out)
    changes.write(cluster_id)


def mark_gap(cluster: Cluster, *, since_us: int, until_us: int) -> None:
    """Mark the time between two looks that lie too far apart: the last state is assumed there."""
    if until_us <= since_us:
        return
    changes = _Changes()
    for row in Interval.objects.filter(
        cluster=cluster, kind=IntervalKind.NODE, end_us__isnull=True, start_us__lt=until_us
    ):
        gap = changes.change(row, since_us, assumed=True)
        changes.change(gap, until_us, assumed=False)
    changes.write(cluster.pk)


def open_members(attempts: Sequence[Attempt], *, first_look_us: int) -> None:
    """Open an interval per member from the attempt's start, at the earliest the first look.

    Needs ``attempt.job`` and ``attempt.members`` loaded; attempts that have intervals are left.
    """
    begun = [attempt for attempt in attempts if attempt.started_at is not None]
    if not begun:
        return
    pks = [attempt.pk for attempt in begun]
    statement = sql.KNOWN_ATTEMPTS.format(placeholders(len(pks)))
    known = {pk for (pk,) in sql.read(statement, *pks)}
    begun = [attempt for attempt in begun if attempt.pk not in known]
    if not begun:
        return
    cluster_id = begun[0].job.cluster_id
    factors = _factors(begun)
    out = _nodes_out(cluster_id, begun)
    rows: list[tuple[Any, ...]] = []
    changes: list[Change] = []
    for attempt in begun:
        assert attempt.started_at is not None  # noqa: S101  filtered above; tells mypy
        job = attempt.job
        start_us = max(to_us(attempt.started_at), first_look_us)
        factor = factors[job.priority_class_id]
        members = list(attempt.members.all())
        rows += [
            (
                cluster_id, job.pool_id, "member", "", member.node_id, job.tenant_id, job.pk,
                attempt.pk, member.rank, job.gpus_per_member, start_us, factor,
                member.node_id in out, False,
            )
            for member in members
        ]  # fmt: skip
        gpus = len(members) * job.gpus_per_member
        changes.append(Change(job.tenant_id, job.pool_id, gpus * factor, start_us))
    sql.write_many(sql.ADD_INTERVAL, rows)
    book(cluster_id, changes)
    lower_mark(cluster_id, min(change.at_us for change in changes))


def close_members(ends: Mapping[int, int], *, ranks: Sequence[int] | None = None) -> None:
    """End the members of attempts (id → instant), and the marks on them, and book their usage.

    A mark that would end as it starts says nothing, and goes: whether one came to be depends on how
    often an instant was looked at.

    ``ranks``: of these members alone, and no mark; the gang goes on without them.

    An end before the start is clipped to the start; one earlier than an end already known corrects
    it.
    """
    if not ends:
        return
    changed: list[tuple[int, int]] = []
    empty: list[tuple[int]] = []
    changes: dict[int, list[Change]] = {}
    lowest: dict[int, int] = {}
    rows = sql.read(sql.PIECES.format(placeholders(len(ends))), *ends)
    if ranks is not None:
        rows = [row for row in rows if row[-1] in ranks]
    for (
        pk,
        kind,
        attempt_id,
        cluster_id,
        tenant_id,
        pool_id,
        gpus,
        factor,
        start,
        before,
        _,
    ) in rows:
        end = max(start, ends[attempt_id])
        if before is not None and before <= end:
            continue
        if kind == IntervalKind.MARK and end == start:
            empty.append((pk,))
        else:
            changed.append((end, pk))
        lowest[cluster_id] = min(end, lowest.get(cluster_id, end))
        if kind == IntervalKind.MEMBER:
            of_cluster = changes.setdefault(cluster_id, [])
            of_cluster.append(Change(tenant_id, pool_id, -gpus * factor, end))
            if before is not None:
                of_cluster.append(Change(tenant_id, pool_id, gpus * factor, before))
    sql.write_many(sql.DROP_INTERVAL, empty)
    sql.write_many(sql.SET_END, changed)
    for cluster_id, of_cluster in changes.items():
        book(cluster_id, of_cluster)
    for cluster_id, at_us in lowest.items():
        lower_mark(cluster_id, at_us)


def open_holds(
    reservation: Reservation, members: Sequence[tuple[int, Node]], *, at_us: int
) -> None:
    """Hold each member's GPUs on its node from ``at_us`` on; one held elsewhere moves there."""
    held = {
        row.rank: row
        for row in Interval.objects.filter(
            reservation=reservation, kind=IntervalKind.HOLD, end_us__isnull=True
        )
    }
    job = reservation.job
    changes = _Changes()
    for rank, node in members:
        row = held.get(rank)
        if row is not None:
            if row.node_id == node.pk:
                continue
            changes.end(row, at_us)
        changes.begin(
            Interval(
                cluster_id=job.cluster_id,
                pool_id=job.pool_id,
                kind=IntervalKind.HOLD,
                node_id=node.pk,
                tenant_id=job.tenant_id,
                job_id=job.pk,
                reservation_id=reservation.pk,
                rank=rank,
                gpus=job.gpus_per_member,
                start_us=at_us,
                on_drained=_is_out(node),
            )
        )
    changes.write(job.cluster_id)


def close_holds(
    reservation: Reservation, *, at_us: int, ranks: Sequence[int] | None = None
) -> None:
    """Give back what a reservation holds, or what these ranks of it hold."""
    rows = Interval.objects.filter(reservation=reservation, kind=IntervalKind.HOLD).filter(
        Q(end_us__isnull=True) | Q(end_us__gt=at_us)
    )
    if ranks is not None:
        rows = rows.filter(rank__in=ranks)
    changes = _Changes()
    for row in rows:
        changes.end(row, at_us)
    changes.write(reservation.job.cluster_id)


def set_marks(
    cluster: Cluster,
    *,
    at_us: int,
    held_idle: Mapping[int, int],
    stranded: Mapping[int, int],
    unknown: Mapping[int, int] | None = None,
) -> None:
    """Make the open marks of a cluster match what a tick judged, from ``at_us`` on.

    ``held_idle`` and ``unknown`` are attempt id → GPUs, ``stranded`` is node id → GPUs. What is
    allocated and in neither is at work; ``unknown`` None: no attempt's utilisation is unknown.
    """
    wanted: dict[tuple[str, int], int] = {}
    for state, gpus_of in ((HELD_IDLE, held_idle), (UNKNOWN, unknown or {}), (STRANDED, stranded)):
        wanted |= {(state, pk): gpus for pk, gpus in gpus_of.items() if gpus > 0}
    ended: list[tuple[int, int]] = []
    empty: list[tuple[int]] = []
    for pk, state, attempt_id, node_id, gpus, start_us in sql.read(sql.OPEN_MARKS, cluster.pk):
        key = (state, node_id if state == STRANDED else attempt_id)
        if wanted.get(key) == gpus:
            del wanted[key]
        elif start_us < at_us:
            ended.append((at_us, pk))
        else:
            empty.append((pk,))
    if ended or empty or wanted:
        sql.write_many(sql.DROP_INTERVAL, empty)
        sql.write_many(sql.SET_END, ended)
        sql.write_many(sql.ADD_INTERVAL, _marks(cluster, wanted, at_us))
        lower_mark(cluster.pk, at_us)


def _marks(
    cluster: Cluster, wanted: Mapping[tuple[str, int], int], at_us: int
) -> list[tuple[Any, ...]]:
    """Return new marks, in columns, with the pool, and where there is one the tenant and the job."""
    pools = dict(
        Node.objects.filter(pk__in=[pk for state, pk in wanted if state == STRANDED]).values_list(
            "pk", "pool_id"
        )
    )
    jobs = {
        pk: (pool_id, tenant_id, job_id)
        for pk, pool_id, tenant_id, job_id in Attempt.objects.filter(
            pk__in={pk for state, pk in wanted if state != STRANDED}
        ).values_list("pk", "job__pool_id", "job__tenant_id", "job_id")
    }
    rows: list[tuple[Any, ...]] = []
    for (state, pk), gpus in wanted.items():
        node_id = tenant_id = job_id = attempt_id = None
        if state == STRANDED:
            node_id, pool_id = pk, pools[pk]
        else:
            attempt_id, (pool_id, tenant_id, job_id) = pk, jobs[pk]
        rows.append(
            (
                cluster.pk, pool_id, "mark", state, node_id, tenant_id, job_id,
                attempt_id, None, gpus, at_us, 1.0, False, False,
            )
        )  # fmt: skip
    return rows


def _factors(attempts: Sequence[Attempt]) -> dict[int, float]:
    """Return priority class id → usage factor; no query where the classes are loaded."""
    loaded = Job._meta.get_field("priority_class")
    if all(loaded.is_cached(attempt.job) for attempt in attempts):
        return {a.job.priority_class_id: a.job.priority_class.usage_factor for a in attempts}
    return dict(
        PriorityClass.objects.filter(
            pk__in={attempt.job.priority_class_id for attempt in attempts}
        ).values_list("pk", "usage_factor")
    )


def _nodes_out(cluster_id: int, attempts: Sequence[Attempt]) -> set[int]:
    """Return the nodes whose GPUs are unavailable when idle; no query where nodes are loaded."""
    loaded = Member._meta.get_field("node")
    members = [member for attempt in attempts for member in attempt.members.all()]
    if all(loaded.is_cached(member) for member in members):
        return {member.node_id for member in members if _is_out(member.node)}
    nodes = Node.objects.filter(cluster_id=cluster_id, gone_at__isnull=True)
    return set(nodes.exclude(state=NodeState.UP).values_list("pk", flat=True))


def _is_out(node: Node) -> bool:
    return node.state != NodeState.UP and node.gone_at is None


class _Changes:
    """Changes of intervals, gathered and written at once."""

    def __init__(self) -> None:
        self.new: list[Interval] = []
        self.ends: list[tuple[int, int]] = []
        self.edited: list[Interval] = []
        self.lowest: int | None = None

    def begin(self, row: Interval) -> Interval:
        """Open an interval."""
        self.new.append(row)
        self._touch(row.start_us)
        return row

    def end(self, row: Interval, at_us: int) -> None:
        """Close an interval, at the earliest at its start."""
        row.end_us = max(row.start_us, at_us)
        if row.pk is not None:
            self.ends.append((row.end_us, row.pk))
        self._touch(row.end_us)

    def change(self, row: Interval, at_us: int, **fields: Any) -> Interval:
        """Let an open interval go on with other values from an instant on."""
        if row.start_us >= at_us:
            if row.pk is not None:
                self.edited.append(row)
            after = row
        else:
            self.end(row, at_us)
            values = {
                field.attname: getattr(row, field.attname)
                for field in Interval._meta.concrete_fields
                if not field.primary_key
            }
            after = self.begin(Interval(**values | {"start_us": at_us, "end_us": None}))
        for name, value in fields.items():
            setattr(after, name, value)
        self._touch(after.start_us)
        return after

    def match(
        self,
        row: Interval | None,
        node: Node,
        kind: IntervalKind,
        wanted: tuple[str, int] | None,
        at_us: int,
    ) -> None:
        """Make a node's open interval of a kind say ``wanted`` (state, GPUs), or end it."""
        if row is not None:
            if wanted is None:
                self.end(row, at_us)
            elif (row.state, row.gpus) != wanted:
                self.change(row, at_us, state=wanted[0], gpus=wanted[1])
        elif wanted is not None:
            self.begin(
                Interval(
                    cluster_id=node.cluster_id,
                    pool_id=node.pool_id,
                    kind=kind,
                    state=wanted[0],
                    node_id=node.pk,
                    gpus=wanted[1],
                    start_us=at_us,
                )
            )

    def write(self, cluster_id: int) -> None:
        """Write all of it; roll-ups that it reaches back into are done again."""
        sql.write_many(sql.SET_END, self.ends)
        if self.edited:
            Interval.objects.bulk_update(self.edited, ["state", "gpus", "on_drained", "assumed"])
        if self.new:
            Interval.objects.bulk_create(self.new, batch_size=1000)
        if self.lowest is not None:
            lower_mark(cluster_id, self.lowest)

    def _touch(self, at_us: int) -> None:
        self.lowest = at_us if self.lowest is None else min(self.lowest, at_us)
