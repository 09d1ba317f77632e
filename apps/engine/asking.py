"""What a gang asks for, and what there is for it: looked at anew only when something changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from apps.engine.candidates import Candidates
from apps.engine.eviction import Ask, Guarded, Proof, View
from apps.engine.keeping import Keeping, Means
from apps.engine.types import NONE, Bools

if TYPE_CHECKING:
    from apps.engine.starting import Starting


@dataclass(frozen=True, slots=True, eq=False)
class Helps:
    """Which nodes could take a member if all who may be touched went, and who is on one."""

    nodes: Bools  # by position
    candidates: Bools


class Asking(Keeping):
    """One walk's room for evictions."""

    def __init__(self, walk: Starting, means: Means) -> None:
        super().__init__(walk, means)
        ground = walk.ground
        self.candidates = Candidates(
            ground.running,
            ground.pool,
            ground.position,
            self.holdings.row_of,
            walk.policy,
            walk.now,
        )
        self._seen = (NONE, NONE)
        self._views: dict[bool, View] = {}
        self._helps: dict[tuple[int, ...], Helps | None] = {}
        self._not_next: dict[tuple[int, ...], int] = {}

    def _forget(self) -> None:
        """Look anew once something changed."""
        now = (self.walk.changes, self.walk.plans)
        if now != self._seen:
            self._seen = now
            self._views, self._helps, self._not_next = {}, {}, {}

    def _shape(self, k: int) -> tuple[bool, int, int]:
        """Return what gangs have in common that find the same room, whatever their size."""
        walk = self.walk
        return walk.is_behind(k), walk.gpus[k], walk.topology[k]

    def view(self, k: int) -> View:
        """Return the room for a gang without a victim: idle or coming, beside the reservation."""
        self._forget()
        mine = not self.walk.is_behind(k)
        if mine not in self._views:
            self._views[mine] = self._look(own=mine)
        return self._views[mine]

    def _look(self, *, own: bool) -> View:
        walk, promised = self.walk, self.promised
        coming = np.array(promised.coming, dtype=np.int64)
        if own or walk.behind is None:
            return View(np.array(walk.free, dtype=np.int64) + coming, None, None, NONE)
        behind, at = walk.behind, walk.behind.kept.at
        room = np.array(behind.unheld.free, dtype=np.int64) + coming
        if at == NONE:
            return View(room, None, None, NONE)
        spare = np.array(behind.kept.spare, dtype=np.int64)
        late = [p for p in promised.at if coming[p] > 0 and promised.last[p] > at]
        cap = spare.copy()
        cap[late] += coming[late]
        return View(room, spare, cap, at)

    def ask(self, k: int) -> Ask:
        """Gather what a gang needs and what there is for it without a victim."""
        walk = self.walk
        need, tenant = walk.size[k] * walk.gpus[k], walk.tenant[k]
        chain, then = walk.chain(tenant), walk.limits.then
        over_then: dict[int, int] = {}
        beside = walk.is_behind(k)
        if walk.behind is not None and beside:
            left = walk.behind.kept.quota
            bound = walk.bound(tenant)
            over_then = {t: need - left[t] for t in bound if need > left.get(t, need)}
        return Ask(
            size=walk.size[k],
            gpus=walk.gpus[k],
            row=int(self.holdings.row_of[tenant]),
            view=self.view(k),
            domain_of=walk.domain_of(k),
            over={t: then[t] + need - c for t, c in chain if then[t] + need > c},
            over_then=over_then,
            guarded=self._guarded(k, need),
            guarded_then=self._guarded_then(k, need) if beside else (),
        )

    def _guarded(self, k: int, need: int) -> tuple[Guarded, ...]:
        walk = self.walk
        if walk.kept is None:
            return ()
        kept, counted = walk.kept.copy(), walk.counted
        if not walk.is_behind(k) and walk.behind is not None:
            kept.count(walk.tenant[walk.first_blocked], -counted)
            counted = 0
        gpus = walk.idle.total - counted + sum(max(c, 0) for c in self.promised.coming)
        return (Guarded(kept, walk.tenant[k], gpus, need),)

    def _guarded_then(self, k: int, need: int) -> tuple[Guarded, ...]:
        walk = self.walk
        if walk.later is None or walk.behind is None:
            return ()
        later = walk.later.copy()
        later.count(walk.tenant[k], need)
        first = walk.tenant[walk.first_blocked]
        return (Guarded(later, first, sum(walk.behind.kept.spare) - need, 0),)

    def helps(self, k: int) -> Helps | None:
        """Tell who could help a gang; None: it would not fit if all went."""
        view, walk = self.view(k), self.walk
        size, gpus, topology = walk.size[k], walk.gpus[k], walk.topology[k]
        key = (*self._shape(k), size)
        if key not in self._helps:
            self._helps[key] = self._who_helps(view, size, gpus, topology)
        return self._helps[key]

    def _who_helps(self, view: View, size: int, gpus: int, topology: int) -> Helps | None:
        movable = self.candidates.movable(len(view.room))
        slots = np.maximum(view.room + movable, 0) // gpus
        nodes = slots > 0
        if topology:
            domains = np.array(self.walk.idle.domain_of[topology], dtype=np.int64)
            enough = np.bincount(domains, weights=slots, minlength=1) >= size
            nodes &= enough[domains]
        elif int(slots.sum()) < size:
            return None
        return Helps(nodes, self.candidates.helpful(nodes)) if nodes.any() else None

    def could_be_next(self, k: int) -> bool:
        """Tell whether what is coming could be enough for a gang, before it is proven."""
        walk = self.walk
        size, view = walk.size[k], self.view(k)
        if size * walk.gpus[k] > view.total:
            return False
        return size < self._not_next.get(self._shape(k), size + 1)

    def not_next(self, k: int, proof: Proof) -> None:
        """Remember that no gang of such a shape and size has room in what is coming."""
        if not proof.good:
            self._not_next[self._shape(k)] = self.walk.size[k]
