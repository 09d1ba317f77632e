"""What was submitted to a cluster itself becomes jobs and attempts too: seen, counted, never touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID, uuid5

from apps.backends.models import Cluster, Node, Pool
from apps.backends.port import ForeignWork, Observation, Recalled, SeenAttempt
from apps.common.rows import add_keyed, add_rows, set_columns
from apps.jobs.models import Attempt, Job, Member, Move
from apps.jobs.moves import Change, move_each
from apps.jobs.states import HOLDING, WAITING, JobState, Outcome
from apps.queues.services import default_class, queues_for
from apps.quotas.account_tenants import make_path, paths_of
from apps.tenants.models import Tenant

# Each run of foreign work has the same uid at every look.
NAMES = UUID("5f7c1f0e-8d0b-4d5e-9a55-0d6a3f6f2b11")
# Why the cluster itself does not consider a job; ours does not then, either.
NOT_CONSIDERED = ("JobHeld", "Dependency", "BeginTime", "DependencyNeverSatisfied")
READ = (
    "foreign_ref", "state", "attempt_number", "size", "min_size", "gpus_per_member",
    "limit_seconds", "held_at", "held_reason", "workload",
)  # fmt: skip


def uid_of(cluster: Cluster, work: ForeignWork) -> UUID:
    """Return the uid of a run: the same whether it is seen as it runs or read of afterwards."""
    return uuid5(NAMES, f"{cluster.pk}:{work.ref}:{work.run}")


def tenants_of(cluster: Cluster, accounts: Iterable[str], *, now: datetime) -> dict[str, Tenant]:
    """Return whose work an account's is: by the cluster's options, else a tenant of its own.

    Those stand below one that is called after the cluster, where only admins look.
    """
    mapped = cluster.options.get("accounts") or {}
    path_of = {account: path for path, account in mapped.items()}
    wanted = {account: path_of.get(account, "") for account in accounts}
    wanted |= paths_of(cluster, [account for account, path in wanted.items() if not path])
    found = {row.path: row for row in Tenant.objects.filter(path__in=set(wanted.values()))}
    for path in sorted(set(wanted.values()) - found.keys()):
        found[path] = make_path(path, reason=f"an account on {cluster.name}", now=now)
    tenants = {account: found[path] for account, path in wanted.items()}
    queues_for({(tenant.pk, cluster.pk) for tenant in tenants.values()})
    return tenants


class Adoption:
    """The foreign work of one look, and the rows it has or is to have."""

    def __init__(self, cluster: Cluster, seen: Observation) -> None:
        self.cluster, self.seen = cluster, seen
        self.known: dict[str, Job] = {}
        self.works: list[ForeignWork] = []
        self.new: list[ForeignWork] = []
        self._places: set[tuple[str, str]] | None = None
        self._kinds: set[str] = set()
        if seen.foreign is not None:
            self._sort(seen.foreign)

    def _sort(self, works: Sequence[ForeignWork]) -> None:
        """Tell what is known, what is new, and what is none of our business any more."""
        alive = Job.objects.filter(cluster=self.cluster, state__in=sorted(WAITING | HOLDING))
        rows = alive.exclude(foreign_ref="").order_by().only(*READ)
        self.known = {job.foreign_ref: job for job in rows}
        # An end before the last look was seen by it; before the first nothing is known.
        since = self.cluster.observed_at or self.seen.as_of
        self.works = [
            work
            for work in {work.ref: work for work in works}.values()
            if (work.ref in self.known if _is_nowhere(work) else self._is_here(work))
            and (work.ref in self.known or work.ended_at is None or work.ended_at > since)
            and (work.state != "ended" or work.started_at is not None or work.ref in self.known)
        ]
        unknown = {work.ref for work in self.works} - self.known.keys()
        over = set()
        if unknown:
            there = Job.objects.filter(cluster=self.cluster, foreign_ref__in=sorted(unknown))
            over = set(there.values_list("foreign_ref", flat=True))
        self.works = [work for work in self.works if work.ref not in over]
        self.new = [work for work in self.works if work.ref not in self.known]

    def _is_here(self, work: ForeignWork) -> bool:
        """Tell whether its pool and all of its nodes are on the cluster now."""
        if self._places is None:
            self._places = {(node.name, node.pool) for node in self.seen.nodes}
            self._kinds = {pool for _, pool in self._places}
        places = self._places
        return work.pool in self._kinds and all((name, work.pool) in places for name in work.nodes)

    def vanished(self) -> list[str]:
        """Return the refs of work that is known here and that the look lists no more.

        What is left of an array has no end of its own: its tasks have.
        """
        if self.seen.foreign is None:
            return []
        listed = {work.ref for work in self.works}
        return sorted(ref for ref in self.known.keys() - listed if "[" not in ref)

    def take_back(self, recalled: Recalled) -> None:
        """Go on as if the look had listed this too."""
        self.works += [work for work in recalled.works if self._is_here(work)]
        attempts = [*self.seen.attempts, *recalled.attempts]
        self.seen = replace(self.seen, attempts=attempts)

    def taken_from_nodes(self) -> Observation:
        """Return the look with no GPU counted as foreign on a node that a job here accounts for."""
        taken = self._members_of([work for work in self.works if _is_nowhere(work)])
        for work in self.works:
            if work.state == "running":
                for name in work.nodes:
                    taken[name, work.pool] += work.gpus_per_member
        if taken:
            nodes = [
                replace(node, foreign_gpus=max(node.foreign_gpus - taken[node.name, node.pool], 0))
                for node in self.seen.nodes
            ]
            self.seen = replace(self.seen, nodes=nodes)
        return self.seen

    def _members_of(self, works: Sequence[ForeignWork]) -> Counter[tuple[str, str]]:
        """Return the GPUs, by node and pool, of runs of which an earlier look knew where they are."""
        taken: Counter[tuple[str, str]] = Counter()
        if works:
            uids = [uid_of(self.cluster, work) for work in works]
            rows = Member.objects.filter(attempt__uid__in=uids).order_by()
            for name, pool, gpus in rows.values_list(
                "node__name", "node__pool__name", "attempt__job__gpus_per_member"
            ):
                taken[name, pool] += gpus
        return taken

    def write(self) -> Observation:
        """Write what is new of foreign work; return the look with its runs among the attempts."""
        if not self.works and not self.known:
            return self.seen
        self._add(self.new)
        self._follow([work for work in self.works if work.state == "waiting"])
        self._forget(self.known.keys() - {work.ref for work in self.works})
        reports = self._runs()
        self.seen = replace(self.seen, attempts=[*self.seen.attempts, *reports])
        return self.seen

    # What waits

    def _add(self, works: Sequence[ForeignWork]) -> None:
        if not works:
            return
        accounts = {work.account for work in works}
        tenants = tenants_of(self.cluster, accounts, now=self.seen.as_of)
        pools = {pool.name: pool for pool in Pool.objects.filter(cluster=self.cluster)}
        usual = default_class()
        jobs = [
            Job(
                name=work.name,
                tenant=tenants[work.account],
                cluster=self.cluster,
                pool=pools[work.pool],
                priority_class=usual,
                foreign_ref=work.ref,
                submitted_at=work.submitted_at,
                state=JobState.PENDING,
                state_since=work.submitted_at,
                **columns_of(work, since=self.seen.as_of),
            )
            for work in works
        ]
        add_keyed(jobs)
        add_rows(
            [
                Move(
                    job=job, at=job.submitted_at, before="", after=job.state,
                    attempt_number=1, what="submitted", detail={"on": self.cluster.name},
                )
                for job in jobs
            ]
        )  # fmt: skip
        self.known |= {job.foreign_ref: job for job in jobs}

    def _follow(self, works: Sequence[ForeignWork]) -> None:
        """Keep up what may change of a job while it waits."""
        changed = []
        names: set[str] = set()
        for work in works:
            job = self.known[work.ref]
            if job.state not in WAITING:
                continue
            columns = columns_of(work, since=job.held_at or self.seen.as_of)
            differ = [name for name, value in columns.items() if getattr(job, name) != value]
            if differ:
                for name in differ:
                    setattr(job, name, columns[name])
                names.update(differ)
                changed.append(job)
        if changed:
            set_columns(changed, sorted(names))

    def _forget(self, refs: Iterable[str]) -> None:
        """End what waited and is listed no more: an array's rest that has all started goes."""
        gone = [self.known[ref] for ref in refs if self.known[ref].state in WAITING]
        rests = [job for job in gone if _is_rest(job)]
        Job.objects.filter(pk__in=[job.pk for job in rests]).delete()
        move_each(
            [
                Change(
                    job, JobState.CANCELLED, at=self.seen.as_of, what="forgotten",
                    fields={"ended_at": self.seen.as_of, "outcome": Outcome.LOST},
                )
                for job in gone
                if not _is_rest(job)
            ]
        )  # fmt: skip

    # What runs, or ran

    def _runs(self) -> list[SeenAttempt]:
        """Return what is to be said of each run, once each that is new has its attempt."""
        open_rows = Attempt.objects.filter(job__cluster=self.cluster, ended_at__isnull=True)
        open_rows = open_rows.exclude(job__foreign_ref="").order_by()
        alive = dict(open_rows.values_list("job_id", "uid"))
        reports, begins = [], []
        for work in self.works:
            job = self.known[work.ref]
            ran = work.state != "waiting" and work.started_at is not None
            uid = uid_of(self.cluster, work) if ran else None
            before = alive.get(job.pk)
            if before is not None and before != uid:
                reports.append(self._laid_back(before, work))
            elif before is None and _is_nowhere(work):
                continue  # its GPUs are counted by node until it is known where it is
            elif ran and (before == uid or job.state in WAITING):
                if before is None:
                    begins.append(work)
                reports.append(report_of(work, str(uid)))
            elif work.state == "ended" and job.state in WAITING:
                self._ended_waiting(job, work)
        self._begin(begins)
        return reports

    def _laid_back(self, uid: UUID, work: ForeignWork) -> SeenAttempt:
        """Say that a run is over, as its job waits again, or runs anew: that is seen next time."""
        at = self.seen.as_of if work.started_at is None else min(work.started_at, self.seen.as_of)
        return SeenAttempt(
            uid=str(uid), state="ended", nodes=(), ended_at=at, outcome=Outcome.EVICTED,
            detail="the cluster laid it back in line",
        )  # fmt: skip

    def _ended_waiting(self, job: Job, work: ForeignWork) -> None:
        at = work.ended_at or self.seen.as_of
        fields = {"ended_at": at, "outcome": Outcome.CANCELLED}
        move_each([Change(job, JobState.CANCELLED, at=at, what="cancelled", fields=fields)])

    def _begin(self, works: Sequence[ForeignWork]) -> None:
        """Give each run an attempt and its members; that it started is booked with the others."""
        if not works:
            return
        nodes = dict(
            Node.objects.filter(cluster=self.cluster, gone_at__isnull=True).values_list(
                "name", "pk"
            )
        )
        changes, attempts = [], []
        for work in works:
            job, at = self.known[work.ref], work.started_at or self.seen.as_of
            changes.append(
                Change(
                    job, JobState.ADMITTED, at=at, what="admitted",
                    detail={"number": job.attempt_number},
                    fields={"size": work.size, "gpus_per_member": work.gpus_per_member,
                            "min_size": work.size, "held_at": None, "held_reason": ""},
                )
            )  # fmt: skip
            attempts.append(
                Attempt(
                    job=job, number=job.attempt_number, uid=uid_of(self.cluster, work), created_at=at,
                    launched_at=at, cluster_ref=work.ref[:120],
                )
            )  # fmt: skip
        move_each(changes)
        add_keyed(attempts)
        add_rows(
            [
                Member(attempt=attempt, rank=rank, node_id=nodes[name])
                for attempt, work in zip(attempts, works, strict=True)
                for rank, name in enumerate(work.nodes)
            ]
        )


def _is_nowhere(work: ForeignWork) -> bool:
    """Tell whether it runs, and this look does not know how much of it on which node."""
    return work.state == "running" and not work.nodes


def _is_rest(job: Job) -> bool:
    """Tell whether a job stands for all tasks of an array that wait yet."""
    return "[" in job.foreign_ref


def columns_of(work: ForeignWork, *, since: datetime) -> dict[str, object]:
    """Return what of a job the cluster may change while it waits; ``since``: held, if it is."""
    held = work.reason.startswith(NOT_CONSIDERED)
    return {
        "size": work.size,
        "min_size": work.size,
        "gpus_per_member": work.gpus_per_member,
        "limit_seconds": work.limit_seconds or None,
        "held_at": since if held else None,
        "held_reason": f"the cluster says {work.reason}"[:300] if held else "",
        "workload": {
            "kind": "foreign",
            "account": work.account,
            "user": work.user,
            "reason": work.reason,
            "tasks": work.tasks,
            "qos": work.qos,
        },
    }


def report_of(work: ForeignWork, uid: str) -> SeenAttempt:
    """Return what is said of a run of this uid."""
    return SeenAttempt(
        uid=uid,
        state=work.state,
        nodes=work.nodes,
        started_at=work.started_at,
        ended_at=work.ended_at,
        outcome=work.outcome,
        cluster_ref=work.ref,
    )
