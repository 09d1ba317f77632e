"""A past for the lab: jobs of every kind as slurmdbd keeps them, and what Slurm says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from random import Random

from tests.labs.slurm import accounting as slurm
from tests.labs.slurm.accounting import Association, PastJob
from tests.labs.slurm.lab import Lab

GPUS = 8
ACCOUNTS = ("vision", "nlp", "two words")
USERS = ("ana", "bo", "cy")
TREE = (
    "Parent - 'root'",
    *(f"Account - '{name}':Description='d':Organization='o'" for name in ACCOUNTS),
    *(
        line
        for account, user in zip(ACCOUNTS, USERS, strict=True)
        for line in (f"Parent - '{account}'", f"User - '{user}':Fairshare=1")
    ),
)
WHO = [Association(account, user) for account, user in zip(ACCOUNTS, USERS, strict=True)]
# Slurm gives ids from 1 on: nobody else has these.
FIRST_ID = 1_000_000
EVIL = ("a|b|c", "1|2|3|4|5|6|7|8|9|10|11|12|13", "line\n9|9|9", "it's", "größe", "")
STATES = (slurm.COMPLETED, slurm.COMPLETED, slurm.FAILED, slurm.TIMEOUT, slurm.NODE_FAIL)


@dataclass
class Past:
    """Makes jobs one after another on nodes of 8 GPUs, none on a GPU that is in use.

    ``nodes`` are the lab's and two that are not there any more.
    """

    random: Random
    since: int
    until: int
    count: int
    nodes: tuple[str, ...]
    free: dict[str, list[int]] = field(default_factory=dict)
    next_id: int = FIRST_ID

    def __post_init__(self) -> None:
        self.free = {name: [self.since] * GPUS for name in self.nodes}
        # So long on the average that they fill the time.
        room = (self.until - self.since) * GPUS * len(self.nodes)
        self.typical = room / self.count / 9

    def jobs(self) -> Iterator[PastJob]:
        """Yield so many jobs; each run of a requeued one is a job of the same id."""
        endless = (job for _ in count() for job in self._next())
        yield from islice(endless, self.count)

    def _next(self) -> Iterator[PastJob]:
        number, self.next_id = self.next_id, self.next_id + 1
        kind = self.random.random()
        who = self.random.choice(WHO)
        name = self.random.choice(EVIL) if kind < 0.05 else "train"
        wait = self.random.randrange(0, 4_000)
        if kind < 0.03:  # cancelled while it waited
            at = self.random.randrange(self.since, self.until - 4_000)
            yield PastJob(
                number, who, at, 0, at + wait, slurm.CANCELLED, "None assigned", 0, 0, name
            )  # fmt: skip
            return
        if kind < 0.06:  # without GPUs
            at = self.random.randrange(self.since, self.until - 900)
            yield PastJob(number, who, at, at, at + 900, slurm.COMPLETED, "gpu1", 1, 0, name)
            return
        nodes, each = self._places(kind)
        start, end = self._take(nodes, each, self._seconds(kind))
        if end > self.until:
            return
        state = self.random.choice(STATES)
        last = self.random.choice((0, 0, 0, 40))
        shape = (",".join(nodes), len(nodes), sum(each))
        submit = start - wait
        if 0.1 < kind < 0.15:  # laid back in line, and run again as soon as it can
            state = self.random.choice((slurm.REQUEUED, slurm.PREEMPTED))
            yield PastJob(number, who, submit, start, end, state, *shape, name)
            again, over = self._take(nodes, each, self._seconds(kind))
            if over <= self.until:
                yield PastJob(
                    number, who, end + 1, max(again, end + 1), max(over, end + 1),
                    slurm.COMPLETED, *shape, name,
                )  # fmt: skip
            return
        array = (number, last) if 0.15 < kind < 0.3 else None
        yield PastJob(number, who, submit, start, end, state, *shape, name, array)

    def _places(self, kind: float) -> tuple[list[str], list[int]]:
        """Return nodes and the GPUs on each of them."""
        many = self.random.choices((1, 2, 4), (85, 10, 5))[0]
        free = sorted(self.nodes, key=lambda name: min(self.free[name]))
        nodes = sorted(free[:many])
        if many == 1:
            return nodes, [self.random.choice((1, 1, 2, 4, 8))]
        if kind > 0.9:  # unevenly: the first has one more
            return nodes, [3, *[2] * (many - 1)]
        return nodes, [self.random.choice((4, 8))] * many

    def _seconds(self, kind: float) -> int:
        if kind > 0.98:
            return 0
        return round(self.random.expovariate(1 / self.typical))

    def _take(self, nodes: list[str], each: list[int], seconds: int) -> tuple[int, int]:
        """Take the GPUs that are free first; return from when to when."""
        slots = [sorted(self.free[name]) for name in nodes]
        start = max(of[gpus - 1] for of, gpus in zip(slots, each, strict=True))
        start += self.random.choice((0, 0, 1, 30))
        for name, of, gpus in zip(nodes, slots, each, strict=True):
            self.free[name] = [start + seconds] * gpus + of[gpus:]
        return start, start + seconds


def lay(lab: Lab, past: Past) -> list[PastJob]:
    """Lay a past into the lab's database, and nothing else; return the jobs."""
    jobs = list(past.jobs())
    lab.accounting.forget_jobs()
    lab.accounting.load(TREE)
    lab.accounting.lay_jobs(jobs)
    return jobs


def told_by_sacct(lab: Lab, since: int, until: int) -> dict[str, int]:
    """Return the GPU-seconds of each account, of what ended in a range, as sacct has them."""
    out = _said(
        lab, "sacct", "-a", "-X", "-D", "-n", "-P",
        "-S", _iso(since), "-E", _iso(until), "-o", "Account,AllocTRES,ElapsedRaw,End",
    )  # fmt: skip
    sums: Counter[str] = Counter()
    for line in out.splitlines():
        account, tres, seconds, end = line.split("|")
        gpus = dict(part.split("=") for part in tres.split(",") if part).get("gres/gpu", "0")
        if end.isdigit() and since <= int(end) < until:
            sums[account] += int(gpus) * int(seconds)
    return {account: total for account, total in sums.items() if total}


def told_by_sreport(lab: Lab, since: int, until: int) -> dict[str, int]:
    """Return the GPU-seconds of each account within whole hours, as sreport has them."""
    lab.accounting.roll_up(since)
    out = _said(
        lab, "sreport", "-n", "-P", "-t", "Seconds", "-T", "gres/gpu",
        "cluster", "AccountUtilizationByUser", f"Start={_iso(since)}", f"End={_iso(until)}",
        "Format=Account,Login,Used",
    )  # fmt: skip
    rows = [line.split("|") for line in out.splitlines()]
    return {account: int(used) for account, user, used in rows if not user and account != "root"}


def _said(lab: Lab, *command: str) -> str:
    """Return what a command printed: now and then slurmdbd fails, and it prints nothing."""
    said = ""
    for _ in range(5):
        said = said or lab.run("env", "TZ=UTC", "SLURM_TIME_FORMAT=%s", *command)
    return said


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
