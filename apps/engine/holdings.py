"""What tenants hold of one pool, and what they may keep of it when somebody else asks.

Rows are the tenants, then once more each tenant: its *own work*, which stands below it as one more
child where it has children (DOMAIN decision 24).
"""

from __future__ import annotations

import numpy as np

from apps.engine.tree import Tree
from apps.engine.types import Bools, Ints

PLENTY = np.iinfo(np.int64).max // 4


class Holdings:
    """Use, guarantee and entitlement of one pool, moved by starts and evictions.

    ``used`` is as it will be when all that leave have left and all that are promised have started;
    ``lowered`` is what of it is demoted, and so outside the guarantee (DOMAIN §5).
    """

    def __init__(self, tree: Tree, guarantee: Ints, used: Ints, own: Ints) -> None:
        count = len(tree.parent)
        self.tenants = count
        inner = np.zeros(count, dtype=np.bool_)
        inner[tree.parent[tree.parent >= 0]] = True
        every = np.arange(count)
        self.row_of: Ints = np.where(inner, count + every, every)
        self.parent: Ints = np.concatenate([tree.parent, every])
        self.guarantee: Ints = np.concatenate([guarantee, np.zeros(count, dtype=np.int64)])
        self.used: Ints = np.concatenate([used, own])
        self.lowered: Ints = np.zeros(2 * count, dtype=np.int64)
        self.entitled: Ints = np.zeros(2 * count, dtype=np.int64)
        self.levels = [*tree.levels, np.zeros(0, dtype=np.int64)]
        for depth, level in enumerate(tree.levels):
            below = count + level[inner[level]]
            self.levels[depth + 1] = np.concatenate([self.levels[depth + 1], below])
        self._parents: list[int] = self.parent.tolist()
        self._paths: dict[int, tuple[int, ...]] = {}

    def path(self, row: int) -> tuple[int, ...]:
        """List a row and all above it, lowest first."""
        path = self._paths.get(row)
        if path is None:
            rows, above = [], row
            while above >= 0:
                rows.append(above)
                above = self._parents[above]
            path = self._paths[row] = tuple(rows)
        return path

    def move(self, tenant: int, gpus: int) -> None:
        """Count so many GPUs more as used by a tenant's own work, and so by all above it."""
        self.used[list(self.path(int(self.row_of[tenant])))] += gpus

    def lower(self, tenant: int, gpus: int) -> None:
        """Count so many GPUs of a tenant's own work more as demoted; below 0: as so no more."""
        self.lowered[list(self.path(int(self.row_of[tenant])))] += gpus

    @property
    def firm(self) -> Ints:
        """What each row uses that it may be kept by a guarantee or an entitlement."""
        return self.used - self.lowered

    def entitle(self, entitled: Ints, own: Ints) -> bool:
        """Take over what each is entitled to now; True if that is news."""
        rows = np.concatenate([entitled, own])
        news = not np.array_equal(rows, self.entitled)
        self.entitled = rows
        return news

    def beside(self, taker: int) -> tuple[Ints, Bools]:
        """Return, for each row, where it meets the taker's path, and whether it is on it.

        Where is a place in ``path(taker)``: the lowest common ancestor's, its length for the root.
        """
        path = self.path(taker)
        meets = np.full(len(self.parent), len(path), dtype=np.int64)
        on_path = np.zeros(len(self.parent), dtype=np.bool_)
        for place, row in enumerate(path):
            meets[row], on_path[row] = place, True
        for level in self.levels[1:]:
            aside = level[~on_path[level]]
            meets[aside] = meets[self.parent[aside]]
        return meets, on_path

    def surplus(self, bound: Ints, on_path: Bools) -> Ints:
        """Return what each row may lose: the least above ``bound`` on its way to the taker's path.

        A row on that path loses nothing by what the taker takes.
        """
        over = np.where(on_path, PLENTY, self.firm - bound)
        for level in self.levels[1:]:
            over[level] = np.minimum(over[level], over[self.parent[level]])
        return over

    def within(self, bound: Ints, taker: int, need: int) -> list[bool]:
        """Tell, for each row of the taker's path, whether it stays within ``bound`` with the job."""
        rows = list(self.path(taker))
        inside: list[bool] = (self.used[rows] + need <= bound[rows]).tolist()
        return inside
