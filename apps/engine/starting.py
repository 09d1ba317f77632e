"""One pool's open jobs and what is idle for them: starting a gang whole, or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apps.engine.draft import Draft, Limits, Notes, Outcome
from apps.engine.ground import Ground
from apps.engine.keeping import Means
from apps.engine.lending import Kept
from apps.engine.placement import Placer, Room, Spots, place
from apps.engine.promised import Place, Row
from apps.engine.quotas import UNLIMITED
from apps.engine.reservation import Behind
from apps.engine.taking import Taking
from apps.engine.tree import path_of
from apps.engine.types import NONE, Ints, Pending, Policy, Reason

STARTS = int(Reason.STARTS)
MAIN = 0
"""The room of all that is idle, in the memory of failures; a later job tries others."""


class Starting:
    """The state of a walk, and what starts do to it."""

    def __init__(
        self,
        now: int,
        policy: Policy,
        pending: Pending,
        jobs: Ints,
        ground: Ground,
        limits: Limits,
        draft: Draft,
        how: Placer,
        waste: Sequence[float],
        kept: Kept | None,
        means: Means | None,
    ) -> None:
        self.now, self.policy, self.pending = now, policy, pending
        self.order, self.ground, self.limits, self.draft = jobs, ground, limits, draft
        self.notes = Notes(len(jobs))
        self.how, self.waste, self.kept = how, waste, kept
        self.job: list[int] = jobs.tolist()
        self.tenant: list[int] = pending.tenant[jobs].tolist()
        self.size: list[int] = pending.size[jobs].tolist()
        self.gpus: list[int] = pending.gpus_per_member[jobs].tolist()
        self.limit: list[int] = pending.limit[jobs].tolist()
        self.topology: list[int] = pending.topology[jobs].tolist()
        self.free = list(ground.free)  # what is idle; a placer may have moved its room already
        self.idle = Room(ground.free)
        for topology in set(self.topology) - {0}:
            self.idle.divide(topology, *ground.domains(topology))
        self.limited = any(c != UNLIMITED for c in limits.ceiling)
        self.chains: dict[int, list[tuple[int, int]]] = {}
        self.bounds: dict[int, list[int]] = {}
        self.failed: dict[tuple[int, int, int], int] = {}
        self.behind: Behind | None = None
        self.first_blocked = NONE  # position in the walk of the gang that reserves
        self.counted = 0  # GPUs the gang holds that ``kept`` counts as used
        self.later: Kept | None = None  # idle guarantees at the reservation's instant
        self.all_ends: list[Row] = []
        self.out = Outcome()
        self.started: list[tuple[int, Spots]] = []
        self.retry: list[int] = []  # who may start once the plan is made again
        self.running_ends: list[Row] | None = None
        self.plans = 0  # how often the reservation was planned
        self.planned_after = 0  # how many had started when the reservation was planned
        self.light: list[int] = []  # who waits because its tenant weighs nothing
        self.lacking: list[int] = []  # who waits for room, and weighs something
        self.waited = False  # someone whose tenant has a weight waits for room
        self.again = False  # who reserved was promised a place: all must be judged again
        self.taking = Taking(self, means) if means is not None else None

    @property
    def changes(self) -> int:
        """Count what happened so far: starts, evictions, promises."""
        return len(self.started) + (self.taking.turns if self.taking is not None else 0)

    def chain(self, tenant: int) -> list[tuple[int, int]]:
        """List who of the tenant and those above it has a ceiling, lowest first."""
        chain = self.chains.get(tenant)
        if chain is None:
            ceiling = self.limits.ceiling
            path = path_of(self.limits.parents, tenant)
            chain = [(t, ceiling[t]) for t in path if ceiling[t] != UNLIMITED]
            self.chains[tenant] = chain
        return chain

    def bound(self, tenant: int) -> list[int]:
        """List who of the tenant and those above it has a ceiling, or weighs nothing."""
        bound = self.bounds.get(tenant)
        if bound is None:
            limits = self.limits
            path = path_of(limits.parents, tenant)
            bound = [t for t in path if limits.ceiling[t] != UNLIMITED or limits.zero[t]]
            self.bounds[tenant] = bound
        return bound

    def late(self, k: int) -> bool:
        """Note a reservation that is older than the timeout; True if it is."""
        timeout = self.policy.gang_timeout
        if timeout < 0:
            return False
        since = int(self.pending.reserved_since[self.job[k]])
        late = since >= 0 and self.now - since >= timeout
        if late:
            self.out.timed_out.add(self.job[k])
        return late

    # --- starting

    def start(self, k: int) -> bool:
        rooms: tuple[Room, ...] = (self.idle,)
        short, behind = True, self.behind
        if behind is not None:
            if self.policy.backfill == "none":
                return False
            short = self._short(k)
            rooms = behind.rooms(short)
            if not self._keeps_quota(k):
                return False
        size, gpus, topology = self.size[k], self.gpus[k], self.topology[k]
        need = size * gpus
        if self.kept is not None and (need > self._budget(k) or not self._keeps_budget(k, short)):
            return False
        if behind is None and self.holding(k):
            spots = self._around(k)
            if spots is not None:
                self.commit(k, spots, short)
                return True
        for turn, room in enumerate(rooms):
            if need > room.total:
                continue
            key = (MAIN if behind is None else 1 + turn + 2 * short, topology, gpus)
            if size >= self.failed.get(key, UNLIMITED):
                continue
            spots = place(room, size, gpus, topology, self.how, self.waste)
            if spots is not None:
                self.commit(k, spots, short)
                return True
            self.failed[key] = size
        return False

    def _budget(self, k: int) -> int:
        """Return what is idle, less the idle guarantees and the holds that are not lent."""
        withheld = self.kept.withheld(self.tenant[k]) if self.kept is not None else 0
        return self.idle.total - self.counted - withheld

    def _keeps_budget(self, k: int, short: bool) -> bool:
        """Tell whether the reservation still fits beside this job and the guarantees kept then."""
        if self.behind is None or self.later is None or short:
            return True
        need, first, tenant = self.size[k] * self.gpus[k], self.first_blocked, self.tenant[k]
        self.later.count(tenant, need)
        withheld = self.later.withheld(self.tenant[first])
        self.later.count(tenant, -need)
        left = sum(self.behind.kept.spare) - need
        return left >= withheld

    def _short(self, k: int) -> bool:
        """Tell whether the job's limit ends by the reservation's instant."""
        at = self.behind.kept.at if self.behind is not None else NONE
        return at != NONE and self.limit[k] >= 0 and self.now + self.limit[k] <= at

    def _keeps_quota(self, k: int) -> bool:
        """Tell whether the reservation still fits under its limits beside this job."""
        quota = self.behind.kept.quota if self.behind is not None else {}
        if not quota:
            return True
        need = self.size[k] * self.gpus[k]
        return all(need <= quota.get(t, need) for t in self.bound(self.tenant[k]))

    def holding(self, k: int, *, promised: bool = True) -> list[tuple[int, int]]:
        """List (rank, position) of what the job holds, or is promised, on usable nodes."""
        job, pending = self.job[k], self.pending
        rows: list[tuple[int, int]] = []
        tables = [(pending.hold_offsets, pending.hold_rank, pending.hold_node)]
        if promised and self.taking is not None:
            tables.append((pending.promise_offsets, pending.promise_rank, pending.promise_node))
        for offsets, ranks, nodes in tables:
            start, end = int(offsets[job]), int(offsets[job + 1])
            if start < end:
                positions = self.ground.position[nodes[start:end]].tolist()
                some = zip(ranks[start:end].tolist(), positions, strict=True)
                rows += [(r, p) for r, p in some if p >= 0]
        return sorted(rows)

    def held(self, k: int) -> dict[int, int]:
        """Count the members the job holds where their GPUs are still idle, by position."""
        held: dict[int, int] = {}
        for _, position in self.holding(k, promised=False):
            members = held.get(position, 0) + 1
            if members * self.gpus[k] <= self.free[position]:
                held[position] = members
        return held

    def _around(self, k: int) -> Spots | None:
        """Place a gang around what it holds; None: it must be placed afresh."""
        size, gpus, topology = self.size[k], self.gpus[k], self.topology[k]
        held = self.held(k)
        nodes = list(range(len(self.free)))
        if topology:
            domains = {self.idle.domain_of[topology][p] for p in held}
            if len(domains) != 1:
                return None
            nodes = self.idle.domains[topology][domains.pop()]
        left = size - sum(held.values())
        spots = dict(held)
        if left > 0:
            rest = Room([self.free[p] - held.get(p, 0) * gpus for p in nodes])
            more = place(rest, left, gpus, 0, self.how, self.waste)
            if more is None:
                return None
            for place_, members in more:
                spots[nodes[place_]] = spots.get(nodes[place_], 0) + members
        return sorted(spots.items()) if left >= 0 else None

    def commit(self, k: int, spots: Spots, short: bool) -> None:
        """Start the gang: every node, ceiling and view follows."""
        gpus, tenant = self.gpus[k], self.tenant[k]
        for position, members in spots:
            self.occupy(position, members * gpus, short)
        need = self.size[k] * gpus
        if self.taking is not None:
            self.taking.started(k)
        else:
            used, parents = self.limits.used, self.limits.parents
            above = tenant
            while above >= 0:
                used[above] += need
                above = parents[above]
        if self.behind is not None and self.behind.kept.quota:
            quota = self.behind.kept.quota
            for above in self.bound(tenant):
                if above in quota:
                    quota[above] -= need
        if self.kept is not None:
            self.kept.moved(tenant)
            if self.later is not None and not short:
                self.later.count(tenant, need)
        self.notes.say(k, STARTS)
        self.out.timed_out.discard(self.job[k])
        self.started.append((k, spots))
        self.out.starts[self.job[k]] = self._ranks(k, spots)

    def occupy(self, position: int, gpus: int, short: bool = False) -> None:
        """Take what is idle on a node, or give it back (below 0); every view follows."""
        idle = self.free[position] - gpus
        self.free[position] = idle
        self.idle.set(position, idle)
        if self.behind is not None and self.behind.took(position, gpus, idle, short):
            self.failed.clear()

    def _ranks(self, k: int, spots: Spots) -> list[int]:
        """Give each rank its node; who holds already stays where it holds."""
        nodes = self.ground.nodes
        holding = self.holding(k)
        if not holding:
            return [nodes[p] for p, members in spots for _ in range(members)]
        left = dict(spots)
        ranks = [NONE] * self.size[k]
        for rank, position in holding:
            if left.get(position, 0) > 0 and rank < len(ranks) and ranks[rank] == NONE:
                ranks[rank] = nodes[position]
                left[position] -= 1
        rest = iter([nodes[p] for p in sorted(left) for _ in range(left[p])])
        return [next(rest) if node == NONE else node for node in ranks]

    def rank_rows(self, k: int, mine: Place) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Give each rank of a promised gang its node: what it holds already, what is to come."""
        nodes, left = self.ground.nodes, dict(mine.spots)
        at: dict[int, list[int]] = {position: [] for position in left}
        placed: set[int] = set()
        for rows in (self.holding(k, promised=False), self.holding(k)):
            for rank, position in rows:
                if left.get(position, 0) and rank < self.size[k] and rank not in placed:
                    left[position] -= 1
                    at[position].append(rank)
                    placed.add(rank)
        others = iter([rank for rank in range(self.size[k]) if rank not in placed])
        held, promised = [], []
        for position in sorted(at):
            ranks = [*at[position], *(next(others) for _ in range(left[position]))]
            many = mine.holds(position)
            held += [(rank, nodes[position]) for rank in ranks[:many]]
            promised += [(rank, nodes[position]) for rank in ranks[many:]]
        return sorted(held), sorted(promised)

    def waits(self, k: int) -> None:
        """Note that a job waits for room."""
        if not self.limits.weightless[self.tenant[k]]:
            self.waited = True
            self.lacking.append(k)

    def is_behind(self, k: int) -> bool:
        """Tell whether a job comes after the one that reserves: it must not delay that."""
        return self.behind is not None and k > self.first_blocked

    def domain_of(self, k: int) -> list[int] | None:
        """Return the domain of each position where a gang must be in one."""
        topology = self.topology[k]
        return self.idle.domain_of[topology] if topology else None

    def beside(self, k: int, taken: Mapping[int, int], idle: Mapping[int, int]) -> None:
        """Take a promised place off what the reservation leaves; ``idle`` of it is off already.

        ``taken`` is without what only comes free after the reservation's instant.
        """
        behind = self.behind
        if behind is None:
            return
        need, tenant = self.size[k] * self.gpus[k], self.tenant[k]
        if behind.kept.at != NONE:
            for position, gpus in taken.items():
                behind.kept.spare[position] += idle.get(position, 0) - gpus
                behind.took(position, 0, self.free[position], short=False)
        for above in self.bound(tenant):
            if above in behind.kept.quota:
                behind.kept.quota[above] -= need
        if self.later is not None:
            self.later.count(tenant, need)

    def leaves_quota(self, tenant: int, gpus: int) -> None:
        """Give the reservation's ceilings and guarantees back what a victim would still use then."""
        if self.behind is not None:
            quota = self.behind.kept.quota
            for above in path_of(self.limits.parents, tenant):
                if above in quota:
                    quota[above] += gpus
        if self.later is not None:
            self.later.count(tenant, -gpus)

    def unreserve(self) -> None:
        """Drop the reservation: its gang was promised a place."""
        if self.kept is not None:
            self.kept.count(self.tenant[self.first_blocked], -self.counted)
        self.behind = self.later = None
        self.counted, self.first_blocked = 0, NONE
        self.plans += 1
        self.again = True
        self.failed.clear()
