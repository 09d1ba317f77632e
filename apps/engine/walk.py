"""One pool's open jobs, walked in order: start, reserve, or say why not."""

from __future__ import annotations

import numpy as np

from apps.engine.draft import Outcome
from apps.engine.lending import Lack
from apps.engine.promised import Row
from apps.engine.quotas import UNLIMITED
from apps.engine.reservation import Behind, Reservation, Wanted, reserve
from apps.engine.starting import MAIN, STARTS, Starting
from apps.engine.tail import judge_rest
from apps.engine.types import NONE, Ints, Reason

WEIGHTLESS, CEILING = int(Reason.WEIGHTLESS), int(Reason.CEILING)
CAPACITY, PLACEMENT, RESERVED = int(Reason.CAPACITY), int(Reason.PLACEMENT), int(Reason.RESERVED)
GUARANTEE, LEAVING = int(Reason.GUARANTEE), int(Reason.LEAVING)
BLOCKED = (CAPACITY, PLACEMENT, RESERVED, CEILING)


class Walk(Starting):
    """A walk; ``run`` goes through it once."""

    def run(self) -> Outcome:
        """Judge every job in order, then let the plan settle."""
        if not self.job:
            return self.out
        smallest = min(s * g for s, g in zip(self.size, self.gpus, strict=True))
        taking = self.taking
        if taking is not None:
            taking.stand()
        at_once = self.kept is None and not (taking is not None and taking.may) and not self.started
        for k in range(len(self.job)):
            if at_once and self.behind is not None and self.idle.total < smallest:
                self._rest(k)
                break
            self._judge(k)
        self._settle()
        self._hold()
        if taking is not None:
            taking.write()
        self.notes.write(self.draft, self.order)
        return self.out

    # --- one job

    def _judge(self, k: int) -> None:
        tenant, need = self.tenant[k], self.size[k] * self.gpus[k]
        limits, taking = self.limits, self.taking
        if taking is not None:
            if self.notes.reason[k] == STARTS:
                return
            if k in taking.places:
                taking.elsewhere(k)
                return
        if self.waited and limits.weightless[tenant]:
            light = limits.beyond(tenant, need)
            if light != NONE:
                self.late(k)
                self.light.append(k)
                self.notes.say(k, WEIGHTLESS, tenant=light)
                return
        if taking is not None:
            whose, left = taking.beyond_guarantee(k)
            if whose != NONE:
                self.late(k)
                self.notes.say(k, GUARANTEE, need, left, whose)
                return
        if self.limited:
            for above, ceiling in self.chain(tenant):
                room = ceiling - limits.used[above]
                if need > room:
                    if taking is not None and taking.evict(k):
                        return
                    self.late(k)
                    self.notes.say(k, CEILING, need, max(room, 0), above)
                    return
        if not self.start(k) and (taking is None or not taking.evict(k)):
            self._blocked(k, need)

    # --- waiting for room

    def _blocked(self, k: int, need: int) -> None:
        """Say which room is lacking; the first who lacks nothing else reserves."""
        withheld, taking = self.idle.total - self._budget(k), self.taking
        reason, usable = RESERVED, self.idle.total
        if self.behind is not None:
            usable = self._usable_behind(self._short(k))
        kept = taking.kept_idle() if taking is not None else 0
        if need > self.idle.total + kept - withheld:
            reason = CAPACITY
        elif not self._fits(k) and (taking is None or taking.keeps_from(k) == NONE):
            reason = PLACEMENT
        self.notes.say(k, reason, need, max(usable - withheld, 0))
        self.waits(k)
        late = self.late(k)
        if self.behind is not None:
            if reason == RESERVED or (self.kept is not None and need <= self.idle.total):
                self.retry.append(k)
                self._behind_whom(k)
        else:
            if not late and self._may_reserve(k):
                self._reserve(k)
            self._behind_whom(k)

    def _behind_whom(self, k: int) -> None:
        """Say for whom the idle GPUs are kept: a reservation, or a gang that was promised them."""
        notes, taking = self.notes, self.taking
        if notes.reason[k] != RESERVED:
            return
        first, whom = self.first_blocked, NONE
        if taking is not None and (first in (NONE, k) or not self._fits(k)):
            whom = taking.keeps_from(k)
        if whom != NONE:
            notes.for_job[k], notes.until[k] = self.job[whom], notes.until[whom]
        elif self.behind is not None and first != k:
            notes.for_job[k], notes.until[k] = self.job[first], self.behind.kept.at

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
        self.all_ends = ends = sorted([*self._ends(k), *self._started_ends()])
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
        wanted = Wanted(self.job[k], size, gpus, domains, possible, self.held(k), most_now)
        rows = [(at, position, freed) for at, position, freed, _ in ends]
        kept = reserve(wanted, self.free, rows, self.how, self.waste, lack)
        late = self.policy.hold_late
        if late >= 0:
            kept.holds = kept.at != NONE and kept.at - self.now <= late
        self._keep_quota(k, kept)
        self.first_blocked, self.planned_after = k, self.changes
        self.plans += 1
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
        hold up nobody, and lose what it holds. So it would if it weighs nothing, others wait, and it
        came to pass its guarantee.
        """
        need, limits, tenant = self.size[k] * self.gpus[k], self.limits, self.tenant[k]
        kept.quota = {t: c - limits.used[t] - need for t, c in self.chain(tenant)}
        for above in self.bound(tenant) if limits.weightless[tenant] else ():
            left = limits.guarantee[above] - limits.used[above] - need
            if limits.zero[above] and left >= 0:
                kept.quota[above] = min(kept.quota.get(above, left), left)

    def _ends(self, k: int) -> list[Row]:
        if self.taking is not None:
            return self.taking.ends(k)
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
            while self.behind is not None and self.changes != self.planned_after:
                waiting, self.retry = self.retry, []
                self._reserve(self.first_blocked)
                for k in waiting:
                    if self._over(k) or not self.start(k):
                        self.retry.append(k)
                        self._behind_whom(k)
            again = self._lighten()
            if self.taking is not None:
                again = self.taking.again() or again
                if self.again:
                    self._redo()
                    again = True

    def _redo(self) -> None:
        """Judge all who wait for room again: who reserved was promised a place."""
        self.again, self.retry = False, []
        for k, reason in enumerate(self.notes.reason):
            if reason in BLOCKED:
                self._judge(k)

    def _lighten(self) -> bool:
        """Judge weightless jobs again once nobody else waits for room; True if any started."""
        if not self.light:
            return False
        waits = [k for k in self.lacking if self.notes.reason[k] != STARTS]
        self.lacking = [k for k in waits if self.notes.reason[k] == LEAVING or not self._over(k)]
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
        return any(used[t] + need > ceiling for t, ceiling in self.chain(self.tenant[k]))

    def _hold(self) -> None:
        """Write down what the gang holds while it waits."""
        if self.behind is None:
            return
        k, kept = self.first_blocked, self.behind.kept
        nodes, gpus = self.ground.nodes, self.gpus[k]
        left = {p: kept.held(p, self.free[p]) // gpus for p in kept.now}
        rows: list[tuple[int, int]] = []
        for rank, position in self.holding(k):
            if left.get(position, 0) > 0:
                left[position] -= 1
                rows.append((rank, nodes[position]))
        taken = {rank for rank, _ in rows}
        ranks = iter([r for r in range(self.size[k]) if r not in taken])
        rows += [(next(ranks), nodes[p]) for p in sorted(left) for _ in range(left[p])]
        if rows:
            self.out.holds[self.job[k]] = sorted(rows)
