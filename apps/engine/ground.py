"""The usable nodes of one pool, by name, and what its jobs could ever get."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from apps.engine.types import Bools, Ints, Nodes, NodeState, Running, Snapshot, Topology


class Members:
    """Every running member of the cluster, as columns."""

    def __init__(self, running: Running) -> None:
        many = np.diff(running.member_offsets)
        self.attempt: Ints = np.repeat(np.arange(len(many)), many)
        self.node = running.member_node
        self.gpus = running.gpus_per_member[self.attempt]

    def used(self, nodes: int) -> Ints:
        """Sum GPUs by node."""
        used = np.zeros(nodes, dtype=np.int64)
        np.add.at(used, self.node, self.gpus)
        return used


class Ground:
    """One pool's usable nodes; a *position* is a place in the order of their names."""

    def __init__(
        self, snapshot: Snapshot, pool: int, free: Ints, members: Members, idle: Ints | None = None
    ) -> None:
        self._domains: dict[int, tuple[list[list[int]], list[int]]] = {}
        self.pool = pool
        self.running = snapshot.running
        nodes = snapshot.nodes
        here = np.flatnonzero(nodes.pool == pool)
        names, ids = nodes.name, nodes.id
        usable = here[(nodes.state[here] == NodeState.UP) & (nodes.gpus[here] > 0)].tolist()
        usable.sort(key=lambda n: (names[n], int(ids[n])))
        self.nodes: list[int] = usable
        self.all = here
        self.free: list[int] = free[usable].tolist() if usable else []
        # How far work that is not ours overlaps with ours: nothing is free before that is paid.
        debt = np.zeros(0, dtype=np.int64) if idle is None else np.maximum(-idle[usable], 0)
        self.debt: list[int] = debt.tolist() if usable else []
        self._table = nodes
        self._snapshot = snapshot
        self._members = members

    @cached_property
    def position(self) -> Ints:
        """Map a node to its position, -1: not usable here."""
        position = np.full(len(self._table.id), -1, dtype=np.int64)
        position[self.nodes] = np.arange(len(self.nodes))
        return position

    @cached_property
    def capacity(self) -> list[int]:
        """Return the GPUs of each usable node, by position."""
        capacity: list[int] = self._table.gpus[self.nodes].tolist()
        return capacity

    def domains(self, topology: int) -> tuple[list[list[int]], list[int]]:
        """Group positions by rack or NVLink domain; a node without is its own."""
        if topology not in self._domains:
            self._domains[topology] = self._group(topology)
        return self._domains[topology]

    def _group(self, topology: int) -> tuple[list[list[int]], list[int]]:
        if topology == Topology.NONE:
            return [list(range(len(self.nodes)))], [0] * len(self.nodes)
        codes = _codes(self._table, topology)[self.nodes].tolist()
        numbers: dict[tuple[int, int], int] = {}
        domains: list[list[int]] = []
        of: list[int] = []
        for position, code in enumerate(codes):
            key = (code, -1 if code >= 0 else position)
            number = numbers.setdefault(key, len(domains))
            if number == len(domains):
                domains.append([])
            domains[number].append(position)
            of.append(number)
        return domains, of

    def most(self, gpus: int, topology: int, *, usable: bool) -> int:
        """Return the most members of such a shape that its nodes could hold, empty."""
        here = np.asarray(self.nodes if usable else self.all, dtype=np.int64)
        slots = self._table.gpus[here] // gpus
        if not len(here):
            return 0
        if topology == Topology.NONE:
            return int(slots.sum())
        codes = _codes(self._table, topology)[here]
        alone = codes < 0
        best = int(slots[alone].max()) if alone.any() else 0
        if not alone.all():
            best = max(best, int(np.bincount(codes[~alone], weights=slots[~alone]).max()))
        return best

    def ends(self, leaves: Bools | None = None) -> list[tuple[int, int, int, int]]:
        """List (ends_by, position, GPUs, tenant) of running members with a limit, ascending.

        What should have ended already is expected to end now; ``leaves`` marks members left out.
        """
        running, members = self._snapshot.running, self._members
        ends_by = running.ends_by[members.attempt]
        position = self.position[members.node] if len(members.node) else members.node
        stays = (ends_by >= 0) & (position >= 0)
        chosen = np.flatnonzero(stays if leaves is None else stays & ~leaves)
        ends = np.maximum(ends_by[chosen], self._snapshot.now)
        chosen_position = position[chosen]
        order = np.lexsort((chosen_position, ends))
        rows = chosen[order]
        return list(
            zip(
                ends[order].tolist(),
                chosen_position[order].tolist(),
                members.gpus[rows].tolist(),
                running.tenant[members.attempt[rows]].tolist(),
                strict=True,
            )
        )


def _codes(nodes: Nodes, topology: int) -> Ints:
    return nodes.rack if topology == Topology.RACK else nodes.nvlink
