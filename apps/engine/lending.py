"""Idle guarantees that are not lent (``lend_guarantee = false``): what is kept from whom."""

from __future__ import annotations


class Kept:
    """Idle guarantees of one pool, moved as jobs start.

    A tenant's idle guarantee is what it is promised and does not use, or what its children are and
    do not, the larger. From a job is kept the idle guarantee of all beside its path to the root.
    """

    def __init__(
        self, parents: list[int], bottom_up: list[int], guarantee: list[int], used: list[int]
    ) -> None:
        self.parents, self.bottom_up = parents, bottom_up
        self.guarantee, self.used = guarantee, used
        self.extra = [0] * len(parents)  # counted as used as well: what a gang holds
        self.idle = [0] * len(parents)
        self.family = [0] * (len(parents) + 1)  # by parent, the root last
        for tenant in bottom_up:
            self.idle[tenant] = self._idle(tenant)
            self.family[parents[tenant]] += self.idle[tenant]

    def _idle(self, tenant: int) -> int:
        return max(
            self.guarantee[tenant] - self.used[tenant] - self.extra[tenant], self.family[tenant], 0
        )

    def moved(self, tenant: int) -> None:
        """Follow a change of ``used`` on the tenant's path."""
        while tenant >= 0:
            idle = self._idle(tenant)
            self.family[self.parents[tenant]] += idle - self.idle[tenant]
            self.idle[tenant] = idle
            tenant = self.parents[tenant]

    def withheld(self, tenant: int) -> int:
        """Return the GPUs that are kept from a job of the tenant."""
        kept = self.family[tenant]  # its children's: beside what it does itself
        while tenant >= 0:
            kept += self.family[self.parents[tenant]] - self.idle[tenant]
            tenant = self.parents[tenant]
        return kept

    def count(self, tenant: int, gpus: int) -> None:
        """Count so many GPUs more as used by a tenant, and so by all above it."""
        above = tenant
        while above >= 0:
            self.extra[above] += gpus
            above = self.parents[above]
        self.moved(tenant)

    def copy(self) -> Kept:
        """Copy, to look ahead."""
        used = [u + e for u, e in zip(self.used, self.extra, strict=True)]
        return Kept(self.parents, self.bottom_up, self.guarantee, used)


class Lack:
    """What is kept from a tenant at later instants, asked in ascending order."""

    def __init__(self, kept: Kept, ends: list[tuple[int, int, int, int]], tenant: int) -> None:
        self.kept, self.ends, self.tenant = kept, ends, tenant
        self.seen = 0

    def then(self, at: int) -> Kept:
        """Return what is kept from whom at an instant."""
        while self.seen < len(self.ends) and self.ends[self.seen][0] <= at:
            _, _, freed, tenant = self.ends[self.seen]
            self.kept.count(tenant, -freed)
            self.seen += 1
        return self.kept

    def __call__(self, at: int) -> int:
        """Return the GPUs that are kept from the tenant at an instant."""
        return self.then(at).withheld(self.tenant)
