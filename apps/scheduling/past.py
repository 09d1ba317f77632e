"""Runs that are over become jobs, attempts and intervals, as if each had been looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from apps.backends.models import Cluster, Node, Pool
from apps.backends.port import ForeignWork
from apps.common.rows import add_keyed, add_rows, set_columns
from apps.common.time import to_us
from apps.jobs.models import Attempt, Job, Member, Move
from apps.jobs.states import JobState, Outcome
from apps.ledger.past import PastRun, add_runs
from apps.queues.models import PriorityClass
from apps.queues.services import default_class
from apps.scheduling.adopt import columns_of, tenants_of, uid_of
from apps.scheduling.observe import FINAL

Key = TypeVar("Key")
# So many keys stand in one question.
BATCH = 500


class Past:
    """The runs of one window, written in the caller's transaction, which locked the cluster."""

    def __init__(self, cluster: Cluster, works: Iterable[ForeignWork], *, now: datetime) -> None:
        self.cluster, self.now = cluster, now
        self.works = {uid_of(cluster, work): work for work in works}

    def known(self, own: Mapping[str, str]) -> set[UUID]:
        """Return the uids of the runs that the ledger has: seen as they ran, imported, or ours."""
        ours = {UUID(own[work.ref]): uid for uid, work in self.works.items() if work.ref in own}
        there = _attempts(self.works.keys() | ours.keys())
        known = {ours.get(uid, uid) for uid in there}
        # A job of that name without this run would be one that is looked at right now.
        refs = {work.ref: uid for uid, work in self.works.items() if uid not in known}
        for part in _parts(refs):
            rows = Job.objects.filter(cluster=self.cluster, foreign_ref__in=part)
            known |= {refs[ref] for ref in rows.values_list("foreign_ref", flat=True)}
        return known

    def write(self, own: Mapping[str, str], *, until: datetime) -> tuple[int, int]:
        """Write what the ledger does not have; return how many runs that is, and how many it had.

        What ran on after ``until`` is in the ledger up to there alone.
        """
        known = self.known(own)
        fresh = {uid: work for uid, work in self.works.items() if uid not in known}
        for part in _parts(fresh):
            self._write({uid: fresh[uid] for uid in part}, until)
        return len(fresh), len(known)

    def _write(self, works: Mapping[UUID, ForeignWork], until: datetime) -> None:
        usual = default_class()
        pools = self._pools({work.pool for work in works.values()})
        jobs = self._jobs(works.values(), pools, usual)
        attempts = [
            Attempt(
                job=job, number=1, uid=uid, created_at=_span(work)[0],
                launched_at=work.started_at, started_at=work.started_at, ended_at=work.ended_at,
                outcome=work.outcome, cluster_ref=work.ref[:120],
            )
            for job, (uid, work) in zip(jobs, works.items(), strict=True)
        ]  # fmt: skip
        add_keyed(attempts)
        nodes = self._nodes(works.values(), pools, until)
        members = []
        runs = []
        for job, attempt, work in zip(jobs, attempts, works.values(), strict=True):
            places = [(rank, nodes[name, job.pool_id]) for rank, name in enumerate(work.nodes)]
            members += [Member(attempt=attempt, rank=rank, node_id=pk) for rank, pk in places]
            start, end = _span(work)
            runs.append(
                PastRun(
                    job.pool_id, job.tenant_id, job.pk, attempt.pk, work.gpus_per_member,
                    usual.usage_factor, to_us(start), to_us(min(end, until)), places,
                )
            )  # fmt: skip
        add_rows(members)
        add_runs(self.cluster, runs)

    def _jobs(
        self, works: Iterable[ForeignWork], pools: Mapping[str, Pool], usual: PriorityClass
    ) -> list[Job]:
        works = list(works)
        tenants = tenants_of(self.cluster, {work.account for work in works}, now=self.now)
        jobs = []
        for work in works:
            _, end = _span(work)
            jobs.append(
                Job(
                    name=work.name, tenant=tenants[work.account], cluster=self.cluster,
                    pool=pools[work.pool], priority_class=usual, foreign_ref=work.ref,
                    submitted_at=work.submitted_at, state=FINAL[Outcome(work.outcome)], state_since=end,
                    ended_at=end, outcome=work.outcome, **columns_of(work, since=end),
                )
            )  # fmt: skip
        add_keyed(jobs)
        moves = [
            move
            for job, work in zip(jobs, works, strict=True)
            for move in _story(job, work, self.cluster.name)
        ]
        add_rows(moves)
        return jobs

    def _pools(self, names: set[str]) -> dict[str, Pool]:
        """Return pools by name; GPUs of a kind that is not there any more are one too."""
        found = {pool.name: pool for pool in Pool.objects.filter(cluster=self.cluster)}
        missing = [Pool(cluster=self.cluster, name=name) for name in sorted(names - found.keys())]
        Pool.objects.bulk_create(missing)
        return found | {pool.name: pool for pool in missing}

    def _nodes(
        self, works: Iterable[ForeignWork], pools: Mapping[str, Pool], until: datetime
    ) -> dict[tuple[str, int], int]:
        """Return nodes by name and pool; those that are not there any more are made, gone.

        How many GPUs they had is not known: as many as a run had on them, at least.
        """
        most: defaultdict[tuple[str, int], int] = defaultdict(int)
        first: dict[tuple[str, int], datetime] = {}
        last: dict[tuple[str, int], datetime] = {}
        for work in works:
            start, end = _span(work)
            each: defaultdict[tuple[str, int], int] = defaultdict(int)
            for name in work.nodes:
                each[name, pools[work.pool].pk] += work.gpus_per_member
            for key, gpus in each.items():
                most[key] = max(most[key], gpus)
                first[key] = min(first.get(key, start), start)
                last[key] = min(max(last.get(key, end), end), until)
        rows = Node.objects.filter(cluster=self.cluster, pool__in=pools.values())
        there = {(node.name, node.pool_id): node for node in rows}
        self._keep_gone([there[key] for key in most if key in there], most, last)
        by_id = {pool.pk: pool for pool in pools.values()}
        fresh = [
            Node(
                cluster=self.cluster, pool=by_id[key[1]], name=key[0], gpus=gpus,
                state_since=first[key], gone_at=max(last[key], first[key]),
            )
            for key, gpus in most.items()
            if key not in there
        ]  # fmt: skip
        Node.objects.bulk_create(fresh)
        return {(node.name, node.pool_id): node.pk for node in (*there.values(), *fresh)}

    def _keep_gone(
        self,
        nodes: Iterable[Node],
        most: Mapping[tuple[str, int], int],
        last: Mapping[tuple[str, int], datetime],
    ) -> None:
        """Let nodes that this history made be as large, and stay as long, as runs need them."""
        changed = []
        for node in nodes:
            key = node.name, node.pool_id
            seen = self.cluster.first_look_at
            if node.gone_at is None or (seen is not None and node.gone_at >= seen):
                continue
            gpus, gone_at = max(node.gpus, most[key]), max(node.gone_at, last[key])
            if (gpus, gone_at) != (node.gpus, node.gone_at):
                node.gpus, node.gone_at = gpus, gone_at
                changed.append(node)
        set_columns(changed, ["gpus", "gone_at"])


def _span(work: ForeignWork) -> tuple[datetime, datetime]:
    assert work.started_at is not None  # noqa: S101  what never ran is no part of a history
    assert work.ended_at is not None  # noqa: S101
    return work.started_at, work.ended_at


def _story(job: Job, work: ForeignWork, cluster: str) -> list[Move]:
    """Return the moves of a job that ran once."""
    start, end = _span(work)
    number = {"number": 1}
    told = [
        (job.submitted_at, "", JobState.PENDING, "submitted", {"on": cluster}),
        (start, JobState.PENDING, JobState.ADMITTED, "admitted", number),
        (start, JobState.ADMITTED, JobState.RUNNING, "started", number),
        (end, JobState.RUNNING, job.state, work.outcome, {**number, "outcome": work.outcome}),
    ]
    return [
        Move(job=job, at=at, before=before, after=after, attempt_number=1, what=what, detail=detail)
        for at, before, after, what, detail in told
    ]


def _parts(keys: Iterable[Key]) -> Iterable[Sequence[Key]]:
    every = list(keys)
    return (every[low : low + BATCH] for low in range(0, len(every), BATCH))


def _attempts(uids: Iterable[UUID]) -> set[UUID]:
    """Return which of these are attempts in the database."""
    found: set[UUID] = set()
    for part in _parts(uids):
        found |= set(Attempt.objects.filter(uid__in=part).values_list("uid", flat=True))
    return found
