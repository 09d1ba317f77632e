"""What a job asks for, and how many GPUs a running one has on each of its nodes.

Slurm's lists tell what was asked for: GPUs a node (``--gres``), a task, or in all (``--gpus``). Of
the latter two they do not tell how Slurm laid them out. That follows from what the nodes have in use,
or Slurm is asked about the job itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from apps.backends.adapters.slurm.own import ACTIVE, OwnJob, gpus_held
from apps.backends.adapters.slurm.text import JobRow, NodeText, expand, gpus_in

GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
LAID = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
UNTYPED = "gpu"


@dataclass(frozen=True, slots=True)
class Asked:
    """So many members of so many GPUs; ``kind`` is their type, ``gpu``: any. ``by_node``: one a node."""

    kind: str
    members: int
    each: int
    by_node: bool = False

    @property
    def total(self) -> int:
        """Return the GPUs in all."""
        return self.members * self.each


def gpus_of(tres: str) -> dict[str, int]:
    """Return the GPUs in a list of TRES by type; ``gpu``: those whose type is not written down."""
    said = {kind: int(many) for kind, many in GPUS.findall(tres)}
    total = said.pop("", 0)
    typed = sum(said.values())
    if total > typed:
        said["gpu"] = said.get("gpu", 0) + total - typed
    return {kind: many for kind, many in said.items() if many}


def asked_of(row: JobRow) -> Asked | None:
    """Return what a job asks for, or was given; None: no GPUs, those of several types, or not known.

    GPUs that are asked for in all may lie anywhere: each is a member. Where it runs Slurm may have
    given it more: all of its nodes, if it does not share them.
    """
    asked, given = _wanted(row), gpus_of(row.alloc)
    if not given:
        return asked
    if len(given) > 1:
        return None
    ((kind, total),) = given.items()
    if asked is not None and kind == UNTYPED:
        kind = asked.kind
    if asked is not None and asked.by_node and asked.each * len(row.nodes) == total:
        return Asked(kind, len(row.nodes), asked.each, by_node=True)
    return Asked(kind, total, 1)


def _wanted(row: JobRow) -> Asked | None:
    by_node, by_task = gpus_in(row.per_node), gpus_in(row.per_task)
    if by_node:
        return _asked(by_node, len(row.nodes) or row.count, by_node=True)
    if by_task and row.ntasks:
        return _asked(by_task, row.ntasks)
    in_all = _asked(gpus_in(row.per_job), 1)
    return None if in_all is None else Asked(in_all.kind, in_all.total, 1)


def _asked(gpus: Mapping[str, int], members: int, *, by_node: bool = False) -> Asked | None:
    if len(gpus) != 1:
        return None
    ((kind, each),) = gpus.items()
    return Asked(kind, members, each, by_node) if each else None


def members_on(nodes: tuple[str, ...], gpus: int) -> tuple[str, ...]:
    """Return the node of each member: one a node where the GPUs divide evenly, else one a GPU.

    Of a run that is over Slurm tells how many GPUs it had in all, not on which of its nodes: they are
    taken to lie as evenly as they can, the first nodes having one more. The sum is exact either way.
    """
    if gpus % len(nodes) == 0:
        return nodes
    each, more = divmod(gpus, len(nodes))
    return tuple(name for number, name in enumerate(nodes) for _ in range(each + (number < more)))


@dataclass(frozen=True, slots=True)
class _Unlaid:
    """A running job of which it is to be found where it has how many GPUs."""

    row: JobRow
    kind: str
    total: int

    @property
    def places(self) -> list[tuple[str, str]]:
        return [(name, self.kind) for name in self.row.nodes]


def lay_out(
    rows: Iterable[JobRow], nodes: Iterable[NodeText], own: Sequence[OwnJob]
) -> tuple[list[JobRow], list[JobRow]]:
    """Return the rows with what running jobs have on each node, and those of which it is not known.

    A job on one node has all there, one as large as its nodes all of each. What else is in use on a
    node is the job's that is alone there among those that are not known, if the sum is what it has.
    """
    there = {node.name: node.gpus for node in nodes}
    left = Counter({(node.name, kind): used for node in nodes for kind, used in node.used.items()})
    left.subtract(gpus_held(own))
    laid: dict[int, JobRow] = {}
    unlaid: list[_Unlaid] = []
    unsure: list[JobRow] = []
    ours = {job.id for job in own if job.shares or not job.runs}
    rows = list(rows)
    for row in rows:
        if row.state not in ACTIVE or not row.nodes or row.id in ours:
            continue
        asked = asked_of(row)
        if asked is None:
            continue
        kind = _kind(asked.kind, row, there)
        shares = row.laid or (_plain(asked, kind, row, there) if kind else ())
        if shares:
            _lay(laid, left, row, kind, shares)
        elif kind:
            unlaid.append(_Unlaid(row, kind, asked.total))
        else:
            unsure.append(row)
    unsure += [one.row for one in _solve(laid, left, unlaid)]
    return [laid.get(row.id, row) for row in rows], unsure


def _kind(kind: str, row: JobRow, there: Mapping[str, Mapping[str, int]]) -> str:
    """Return the type of a job's GPUs, by its nodes where it asked for any; empty: unknown."""
    if row.kind or kind != UNTYPED:
        return row.kind or kind
    kinds = {one for name in row.nodes for one in there.get(name, ())}
    return next(iter(kinds)) if len(kinds) == 1 else ""


def _plain(
    asked: Asked, kind: str, row: JobRow, there: Mapping[str, Mapping[str, int]]
) -> tuple[int, ...]:
    """Return what a job has on each node, where nothing else can be."""
    whole = tuple(there.get(name, {}).get(kind, 0) for name in row.nodes)
    if (row.exclusive and min(whole) > 0) or sum(whole) == asked.total:
        return whole
    if asked.by_node:
        return (asked.each,) * len(row.nodes)
    return (asked.total,) if len(row.nodes) == 1 else ()


def _lay(
    laid: dict[int, JobRow],
    left: Counter[tuple[str, str]],
    row: JobRow,
    kind: str,
    shares: Sequence[int],
) -> None:
    laid[row.id] = replace(row, kind=kind, laid=tuple(shares))
    left.subtract({(name, kind): many for name, many in zip(row.nodes, shares, strict=True)})


def _solve(
    laid: dict[int, JobRow], left: Counter[tuple[str, str]], unlaid: list[_Unlaid]
) -> list[_Unlaid]:
    """Lay out each job that is alone on all of its nodes, until there is none; return the rest."""
    found = True
    while found:
        found = False
        crowd = Counter(place for one in unlaid for place in one.places)
        for one in unlaid:
            shares = [left[place] for place in one.places]
            alone = all(crowd[place] == 1 for place in one.places)
            if alone and min(shares) > 0 and sum(shares) == one.total:
                _lay(laid, left, one.row, one.kind, shares)
                found = True
        unlaid = [one for one in unlaid if one.row.id not in laid]
    return unlaid


def lay_own(own: Iterable[OwnJob], rows: Iterable[JobRow]) -> list[OwnJob]:
    """Return our jobs with how those of them lie that do so unevenly, as far as it is known."""
    known = {row.id: row for row in rows if row.laid}
    return [_laid(job, known.get(job.id)) for job in own]


def _laid(job: OwnJob, row: JobRow | None) -> OwnJob:
    if job.mark.members or row is None:
        return job
    # One that is known by its name alone need not have asked for a type.
    return replace(job, laid=row.laid, mark=replace(job.mark, pool=row.kind))


def laid_in(text: str, row: JobRow) -> JobRow:
    """Return a row with what ``scontrol -d -o show job`` says that it has on each node.

    The line holds texts of the job's user too: what names a node twice, or one that is not the job's,
    is not believed.
    """
    told = [(name, gpus_in(gres)) for names, gres in LAID.findall(text) for name in expand(names)]
    shares = dict(told)
    kinds = {kind for gpus in shares.values() for kind in gpus}
    if len(kinds) != 1 or sorted(name for name, _ in told) != sorted(row.nodes):
        return row
    (kind,) = kinds
    laid = tuple(shares[name].get(kind, 0) for name in row.nodes)
    return replace(row, kind=kind, laid=laid) if min(laid) > 0 else row
