"""One pool's open jobs, walked in order: start, reserve, or say why not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apps.engine.draft import Draft, Limits, Notes, Outcome
from apps.engine.ground import Ground
from apps.engine.lending import Kept, Lack
from apps.engine.placement import Placer, Room, Spots, place
from apps.engine.quotas import UNLIMITED
from apps.engine.reservation import Behind, Reservation, Wanted, reserve
from apps.engine.tail import judge_rest
from apps.engine.tree import path_of
from apps.engine.types import NONE, Ints, Pending, Policy, Reason

STARTS, WEIGHTLESS, CEILING = int(Reason.STARTS), int(Reason.WEIGHTLESS), int(Reason.CEILING)
CAPACITY, PLACEMENT, RESERVED = int(Reason.CAPACITY), int(Reason.PLACEMENT), int(Reason.RESERVED)


MAIN = 0
"""The room of all that is idle, in the memory of failures; a later job tries others."""

Row = tuple[int, int, int, int]
"""(instant by which it ends, position, GPUs, tenant)."""


class Walk:
    """The state of a walk; ``run`` goes through it once."""

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
        self.planned_after = 0  # how many had started when the reservation was planned
        self.light: list[int] = []  # who waits because its tenant weighs nothing
        self.lacking: list[int] = []  # who waits for room, and weighs something
        self.waited = False  # someone whose tenant has a weight waits for room

    def run(self) -> Outcome:
        """Judge every job in order, then let the plan settle."""
        if not self.job:
            return self.out
        smallest = min(s * g for s, g in zip(self.size, self.gpus, strict=True))
        for k in range(len(self.job)):
            if self.behind is not None and self.idle.total < smallest and self.kept is None:
                self._rest(k)
                break
            self._judge(k)
        self._settle()
        self._hold()
        self.notes.write(self.draft, self.order)
        return self.out

    # --- one job

    def _judge(self, k: int) -> None:
        tenant, need = self.tenant[k], self.size[k] * self.gpus[k]
        limits = self.limits
        if self.waited and limits.weightless[tenant]:
            light = limits.beyond(tenant, need)
            if light != NONE:
                self._late(k)
                self.light.append(k)
                self.notes.say(k, WEIGHTLESS, tenant=light)
                return
        if self.limited:
            for above, ceiling in self._chain(tenant):
                room = ceiling - limits.used[above]
                if need > room:
                    self._late(k)
                    self.notes.say(k, CEILING, need, max(room, 0), above)
                    return
        if not self._start(k):
            self._blocked(k, need)

    def _chain(self, tenant: int) -> list[tuple[int, int]]:
        """List who of the tenant and those above it has a ceiling, lowest first."""
        chain = self.chains.get(tenant)
        if chain is None:
            ceiling = self.limits.ceiling
            path = path_of(self.limits.parents, tenant)
            chain = [(t, ceiling[t]) for t in path if ceiling[t] != UNLIMITED]
            self.chains[tenant] = chain
        return chain

    def _late(self, k: int) -> bool:
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

    def _start(self, k: int) -> bool:
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
        if behind is None and self._holding(k):
            spots = self._around(k)
            if spots is not None:
                self._commit(k, spots, short)
                return True
        for turn, room in enumerate(rooms):
            if need > room.total:
                continue
            key = (MAIN if behind is None else 1 + turn + 2 * short, topology, gpus)
            if size >= self.failed.get(key, UNLIMITED):
                continue
            spots = place(room, size, gpus, topology, self.how, self.waste)
            if spots is not None:
                self._commit(k, spots, short)
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
        """Tell whether the reservation still fits under its ceilings beside this job."""
        quota = self.behind.kept.quota if self.behind is not None else {}
        if not quota:
            return True
        need = self.size[k] * self.gpus[k]
        return all(need <= quota.get(t, need) for t, _ in self._chain(self.tenant[k]))

    def _holding(self, k: int) -> list[tuple[int, int]]:
        """List (rank, position) of what the job holds on nodes that are still usable."""
        job, pending = self.job[k], self.pending
        start, end = int(pending.hold_offsets[job]), int(pending.hold_offsets[job + 1])
        if start == end:
            return []
        positions = self.ground.position[pending.hold_node[start:end]].tolist()
        ranks = pending.hold_rank[start:end].tolist()
        return sorted((r, p) for r, p in zip(ranks, positions, strict=True) if p >= 0)

    def _held(self, k: int) -> dict[int, int]:
        """Count the members the job holds where their GPUs are still idle, by position."""
        held: dict[int, int] = {}
        for _, position in self._holding(k):
            members = held.get(position, 0) + 1
            if members * self.gpus[k] <= self.free[position]:
                held[position] = members
        return held

    def _around(self, k: int) -> Spots | None:
        """Place a gang around what it holds; None: it must be placed afresh."""
        size, gpus, topology = self.size[k], self.gpus[k], self.topology[k]
        held = self._held(k)
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

    def _commit(self, k: int, spots: Spots, short: bool) -> None:
        """Start the gang: every node, ceiling and view follows."""
        gpus, tenant = self.gpus[k], self.tenant[k]
        for position, members in spots:
            idle = self.free[position] - members * gpus
            self.free[position] = idle
            self.idle.set(position, idle)
            if self.behind is not None and self.behind.took(position, members * gpus, idle, short):
                self.failed.clear()
        need = self.size[k] * gpus
        used, parents = self.limits.used, self.limits.parents
        above = tenant
        while above >= 0:
            used[above] += need
            above = parents[above]
        if self.behind is not None and self.behind.kept.quota:
            quota = self.behind.kept.quota
            for above, _ in self._chain(tenant):
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

    def _ranks(self, k: int, spots: Spots) -> list[int]:
        """Give each rank its node; who holds already stays where it holds."""
        nodes = self.ground.nodes
        holding = self._holding(k)
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

    # --- waiting for room

    def _blocked(self, k: int, need: int) -> None:
        """Say which room is lacking; the first who lacks nothing else reserves."""
        withheld = self.idle.total - self._budget(k)
        reason, usable = RESERVED, self.idle.total
        if self.behind is not None:
            usable = self._usable_behind(self._short(k))
        if need > self.idle.total - withheld:
            reason = CAPACITY
        elif not self._fits(k):
            reason = PLACEMENT
        self.notes.say(k, reason, need, max(usable - withheld, 0))
        if not self.limits.weightless[self.tenant[k]]:
            self.waited = True
            self.lacking.append(k)
        late = self._late(k)
        if self.behind is not None:
            if reason == RESERVED or (self.kept is not None and need <= self.idle.total):
                self.retry.append(k)
                self._behind_whom(k)
        elif not late and self._may_reserve(k):
            self._reserve(k)

    def _behind_whom(self, k: int) -> None:
        notes = self.notes
        if self.behind is not None and notes.reason[k] == RESERVED:
            notes.for_job[k] = self.job[self.first_blocked]
            notes.until[k] = self.behind.kept.at

    def _fits(self, k: int) -> bool:
        """Tell whether the gang has a place among all that is idle, kept or not."""
        size, gpus, topology = self.size[k], self.gpus[k], self.topology[k]
        key = (MAIN, topology, gpus)
        if size >= self.failed.get(key, UNLIMITED):
            return False
        if topology:
            fits = self.idle.domain_for(topology, size, gpus) >= 0
        else:
            fits = self.idle.slots(gpus) >= size
        if not fits:
            self.failed[key] = size
        return fits

    def _may_reserve(self, k: int) -> bool:
        job = self.job[k]
        if self.now < int(self.pending.no_reserve_before[job]):
            return False
        if bool(self.pending.broken[job]):
            return True
        return self.size[k] <= self.ground.most(self.gpus[k], self.topology[k], usable=True)

    def _reserve(self, k: int) -> None:
        """Let the gang keep what it needs until the instant at which it fits."""
        self.all_ends = ends = sorted([*self._ends(), *self._started_ends()])
        size, gpus, topology = self.size[k], self.gpus[k], self.topology[k]
        domains = self.ground.domains(topology)[0]
        capacity = self.ground.capacity
        possible = [sum(capacity[p] // gpus for p in nodes) >= size for nodes in domains]
        most_now, lack = size, None
        if self.kept is not None:
            self.kept.count(self.tenant[k], -self.counted)
            self.counted = 0
            idle = self.idle.total - self.kept.withheld(self.tenant[k])
            most_now = max(idle, 0) // gpus
            lack = Lack(self.kept.copy(), ends, self.tenant[k])
        wanted = Wanted(self.job[k], size, gpus, domains, possible, self._held(k), most_now)
        rows = [(at, position, freed) for at, position, freed, _ in ends]
        kept = reserve(wanted, self.free, rows, self.how, self.waste, lack)
        late = self.policy.hold_late
        if late >= 0:
            kept.holds = kept.at != NONE and kept.at - self.now <= late
        self._keep_quota(k, kept)
        self.first_blocked, self.planned_after = k, len(self.started)
        self.draft.forecast[self.job[k]] = kept.at
        self.behind = Behind(self.idle, self.free, kept)
        self.failed = {key: size for key, size in self.failed.items() if key[0] == MAIN}
        if self.kept is not None:
            self._lend_nothing_twice(k, kept)

    def _lend_nothing_twice(self, k: int, kept: Reservation) -> None:
        """Count what the gang holds as used, so that it is not kept from others once more."""
        held = sum(kept.held(p, f) for p, f in enumerate(self.free))
        if self.kept is not None:
            self.kept.count(self.tenant[k], held)
            self.counted = held
            self.later = None
            if kept.at != NONE:
                self.later = Lack(self.kept.copy(), self.all_ends, self.tenant[k]).then(kept.at)
                self.later.count(self.tenant[k], self.size[k] * self.gpus[k] - held)

    def _keep_quota(self, k: int, kept: Reservation) -> None:
        """Note what is left under the gang's ceilings beside the gang.

        What ends by then counts too: were the gang to stand at its ceiling meanwhile, it would
        hold up nobody, and lose what it holds.
        """
        need = self.size[k] * self.gpus[k]
        chain = self._chain(self.tenant[k])
        kept.quota = {t: ceiling - self.limits.used[t] - need for t, ceiling in chain}

    def _ends(self) -> list[Row]:
        if self.running_ends is None:
            self.running_ends = self.ground.ends()
        return self.running_ends

    def _started_ends(self) -> list[Row]:
        return [
            (self.now + self.limit[k], position, members * self.gpus[k], self.tenant[k])
            for k, spots in self.started
            if self.limit[k] >= 0
            for position, members in spots
        ]

    # --- the end of the walk

    def _rest(self, k: int) -> None:
        """Judge all that is left at once: no job is small enough for what is idle."""
        jobs = self.order[k:]
        usable = self._usable(jobs)
        reason, needed, available, tenant = judge_rest(
            self.pending, jobs, self.limits, usable, waited=self.waited
        )
        notes = self.notes
        notes.reason[k:], notes.needed[k:] = reason.tolist(), needed.tolist()
        notes.available[k:], notes.tenant[k:] = available.tolist(), tenant.tolist()
        if self.policy.gang_timeout >= 0:
            since = self.pending.reserved_since[jobs]
            late = (since >= 0) & (self.now - since >= self.policy.gang_timeout)
            self.out.timed_out.update(jobs[late].tolist())

    def _usable(self, jobs: Ints) -> Ints:
        """Return what each job could use of the little that is idle."""
        behind = self.behind
        if behind is None:
            return np.full(len(jobs), self.idle.total, dtype=np.int64)
        limit, at = self.pending.limit[jobs], behind.kept.at
        short = (limit >= 0) & (self.now + limit <= at) & (at != NONE)
        return np.where(short, self._usable_behind(True), self._usable_behind(False))

    def _usable_behind(self, short: bool) -> int:
        """Return what a job behind the reservation could use now."""
        if self.behind is None or self.policy.backfill == "none":
            return 0
        return self.behind.usable(short)

    def _settle(self) -> None:
        """Plan again after what started behind, until another run would change nothing."""
        again = True
        while again:
            while self.behind is not None and len(self.started) != self.planned_after:
                waiting, self.retry = self.retry, []
                self._reserve(self.first_blocked)
                for k in waiting:
                    if self._over(k) or not self._start(k):
                        self.retry.append(k)
                        self._behind_whom(k)
            again = self._lighten()

    def _lighten(self) -> bool:
        """Judge weightless jobs again once nobody else waits for room; True if any started."""
        if not self.light:
            return False
        waits = [k for k in self.lacking if self.notes.reason[k] != STARTS]
        self.lacking = [k for k in waits if not self._over(k)]
        if self.lacking:
            return False
        self.waited = False
        before = len(self.started)
        light, self.light = self.light, []
        for k in light:
            self._judge(k)
        return len(self.started) != before

    def _over(self, k: int) -> bool:
        need, used = self.size[k] * self.gpus[k], self.limits.used
        return any(used[t] + need > ceiling for t, ceiling in self._chain(self.tenant[k]))

    def _hold(self) -> None:
        """Write down what the gang holds while it waits."""
        if self.behind is None:
            return
        k, kept = self.first_blocked, self.behind.kept
        nodes, gpus = self.ground.nodes, self.gpus[k]
        left = {p: kept.held(p, self.free[p]) // gpus for p in kept.now}
        rows: list[tuple[int, int]] = []
        for rank, position in self._holding(k):
            if left.get(position, 0) > 0:
                left[position] -= 1
                rows.append((rank, nodes[position]))
        taken = {rank for rank, _ in rows}
        ranks = iter([r for r in range(self.size[k]) if r not in taken])
        rows += [(next(ranks), nodes[p]) for p in sorted(left) for _ in range(left[p])]
        if rows:
            self.out.holds[self.job[k]] = sorted(rows)
