"""Slurm behind the port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import perf_counter
from typing import Any

from apps.backends.adapters.slurm import accounts as slurm_accounts
from apps.backends.adapters.slurm import line as slurm_line
from apps.backends.adapters.slurm import ranks as slurm_ranks
from apps.backends.adapters.slurm import workload as workloads
from apps.backends.adapters.slurm.commands import Commands
from apps.backends.adapters.slurm.history import (
    PATIENCE_SECONDS,
    Ground,
    ground,
    ground_of,
    read_history,
)
from apps.backends.adapters.slurm.look import Look, foreign_rows, look, observation, told_by
from apps.backends.adapters.slurm.marks import Mark, job_name
from apps.backends.adapters.slurm.options import Options, read_options
from apps.backends.adapters.slurm.own import CHECKPOINTED, OwnJob, one_each
from apps.backends.adapters.slurm.owners import (
    AS_SERVICE,
    asks_for_tokens,
    check_token,
    owner_of,
)
from apps.backends.adapters.slurm.recall import recall
from apps.backends.adapters.slurm.rest import Rest, rest_cannot
from apps.backends.adapters.slurm.runner import Runner
from apps.backends.adapters.slurm.submit import shape_of
from apps.backends.adapters.slurm.ways import Denied, Refused, Way
from apps.backends.models import Cluster
from apps.backends.port import (
    BackendError,
    Capabilities,
    History,
    LaunchRequest,
    LaunchResult,
    Observation,
    OwnLine,
    Recalled,
    Sample,
    SeenAccount,
    SeenLine,
    SeenQos,
)
from apps.common.time import MICROSECOND, from_us, to_us

# Far below whatever else waits; a site's own users may go to 2147483645.
DEMOTED_NICE = 100_000
CAN = frozenset(
    {
        "observe",
        "launch",
        "stop",
        "utilisation",
        "ask_to_leave",
        "stay",
        "demote",
        "history",
        "accounts",
        "run_as_user",
        "line",
        "rank",
    }
)
CANNOT = {
    "shrink": "A running Slurm job keeps all its nodes, so a gang here has no smallest size.",
    "racks": "The topology of the network is not read from Slurm.",
    "nvlink": "Slurm does not tell which nodes share NVLink.",
    "isolation": "Slurm's QOS and its users' limits are only read; an account's shares and GPUs are set.",
}


class SlurmBackend:
    """A Slurm cluster, reached by its commands; keeps nothing but its last look."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._options: Options = read_options(cluster.options)
        self._runner = Runner(self._options)
        self._way = _way(self._options)
        self._look: Look | None = None
        self._places: Mapping[str, slurm_ranks.Placed] | None = None
        self._ground: Ground | None = None

    def capabilities(self) -> Capabilities:
        """Return what Slurm can and cannot do; nothing is asked of it."""
        cannot = CANNOT | rest_cannot(self._options)
        if self._options.run_as == "service":
            cannot["run_as_user"] = AS_SERVICE
        can = CAN | {"user_tokens"} if asks_for_tokens(self._options) else CAN
        return Capabilities(self._cluster.grade, can - cannot.keys(), cannot)

    def check_workload(self, workload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the workload with defaults filled in; raise Invalid naming the field."""
        return workloads.check(workload)

    def observe(self, cursor: str, *, now: datetime) -> Observation:
        """Return what is true on the cluster at ``now``.

        Where the cluster is driven, this also takes back what must not start by itself.
        """
        began = perf_counter()
        known = told_by(cursor)
        seen = self._look_anew(known, now=now)
        if self._cluster.driven:
            self._tidy(seen, now=now)
        cost_ms = (perf_counter() - began) * 1_000
        return observation(seen, known, self._options, now=now, cost_ms=cost_ms)

    def check_token(self, user: str, token: str, *, now: datetime) -> datetime | None:
        """Return until when a token lets a user in; raise Invalid for one that does not."""
        return check_token(self._options, user, token, now=now)

    def launch(self, request: LaunchRequest, *, now: datetime) -> LaunchResult:
        """Start all members or none; one that exists already is success.

        :raises BackendError: soon after slurmctld started: nodes may still run what it forgot.
        """
        self._must_drive()
        seen = self._last(now)
        job = seen.own.get(request.uid)
        if job is not None:
            return self._existing(seen, job)
        ago = seen.as_of - seen.booted
        if ago < self._options.settle_seconds:
            raise BackendError(
                f"slurmctld started {ago} s ago; jobs are launched again once its nodes have told it"
                f" what they run, {self._options.settle_seconds} s after its start.",
                retry=True,
            )
        nodes, members = shape_of(request)
        unknown = sorted(set(nodes) - {node.name for node in seen.nodes})
        if unknown:
            return LaunchResult("refused", detail=f"Slurm knows no node {unknown[0]}.")
        try:
            owner = owner_of(self._options, request.user, request.token, now=now)
        except Refused as words:
            return LaunchResult("refused", detail=f"It was not submitted: {words}.")
        mark = Mark(
            cluster=self._cluster.name,
            uid=request.uid,
            at=to_us(now),
            members=members,
            gpus=request.gpus_per_member,
            pool=request.pool,
            signal=request.workload["checkpoint_signal"] or "",
            owner=owner,
            size=0 if members else len(request.nodes),
            typed=any(len(node.gpus) > 1 for node in seen.nodes if node.name in nodes),
        )
        try:
            number = self._way.submit(request, mark, nodes)
        except Refused as words:
            return LaunchResult("refused", detail=f"Slurm refused it: {words}")
        return self._launched(number, request, owner)

    def stop(self, uid: str, *, now: datetime) -> None:
        """End an attempt; one that is gone already is success."""
        self._must_drive()
        seen = self._last(now)
        job = seen.own.get(uid)
        if job is not None and not seen.is_over(job) and job.state != "COMPLETING":
            self._cancel(job, now=now)

    def ask_to_leave(self, uid: str, *, until: datetime, now: datetime) -> None:
        """Tell an attempt to save its work and exit 75; one that has not started is cancelled.

        It is put on hold first: where Slurm lays back what exits 75 (RequeueExit), the job stays
        there until it is taken away. ``until`` is kept by whoever asked.
        """
        self._must_drive()
        seen = self._last(now)
        job = seen.own.get(uid)
        if job is None or seen.is_over(job) or job.mark.asked or job.state == "COMPLETING":
            return
        if not job.runs:
            self._cancel(job, now=now)
            return
        self._way.hold(job)
        if job.mark.signal:
            self._way.signal(job)
        self._remark(job, replace(job.mark, asked=to_us(now)))

    def shrink(self, uid: str, *, keep: int, until: datetime, now: datetime) -> None:
        """Refuse: a running job keeps its nodes.

        :raises BackendError: always; no job here is taken in with a smallest size.
        """
        raise BackendError(CANNOT["shrink"], retry=False)

    def stay(self, uid: str, *, now: datetime) -> bool:
        """Take back what an attempt was asked; False: it was told, and goes all the same."""
        self._must_drive()
        seen = self._last(now)
        job = seen.own.get(uid)
        if job is None or seen.is_over(job) or job.mark.stop:
            return False
        if job.mark.asked and job.mark.signal:
            return False
        if job.mark.asked:
            self._way.release(job)
            self._remark(job, replace(job.mark, asked=0))
        return True

    def demote(self, uid: str, *, now: datetime) -> None:
        """Let an attempt run on below all others, on hold: it runs, but would not start again."""
        self._must_drive()
        seen = self._last(now)
        job = seen.own.get(uid)
        if job is None or seen.is_over(job):
            return
        self._way.renice(job, DEMOTED_NICE)
        if job.runs:
            self._way.hold(job)

    def utilisation(self, *, now: datetime) -> Sequence[Sample]:
        """Return that the utilisation of each running attempt is unknown: Slurm does not see it."""
        seen = self._last(now)
        return [Sample(uid, now, None) for uid, job in seen.own.items() if job.runs]

    def history(self, since: datetime, until: datetime, *, now: datetime) -> History:
        """Return every run that is over by now and ran, if only for a moment, within a range."""
        if self._ground is None:
            self._ground = ground(self._runner, now)
        return read_history(self._runner, self._ground, since, until, self._options.partition)

    def line(self, *, now: datetime) -> OwnLine:
        """Return what Slurm counts and plans for each job that waits in it."""
        return slurm_line.read(self._runner, now=now)

    def recall(self, foreign: Sequence[str], own: Mapping[str, str], *, now: datetime) -> Recalled:
        """Return how jobs ended that a look lists no more, as far as sacct knows."""
        known, patience = self._ground, None if self._ground is None else float(PATIENCE_SECONDS)
        if known is None:
            known = ground_of(self._last(now))
        partition = self._options.partition
        return recall(self._runner, known, partition, foreign, own, patience=patience)

    def accounts(self, *, now: datetime) -> Sequence[SeenAccount]:
        """Return Slurm's accounts with their shares, limits and fair share."""
        return slurm_accounts.read(self._runner)

    def qos(self, *, now: datetime) -> Sequence[SeenQos]:
        """Return Slurm's QOS."""
        return slurm_accounts.read_qos(self._runner)

    def set_account(
        self,
        name: str,
        *,
        shares: int | None = None,
        gpu_limit: int | None = None,
        guarantees: Mapping[str, int] | None = None,
    ) -> None:
        """Change an account's shares, limit of GPUs or noted guarantees; None: leave it."""
        self._must_drive()
        slurm_accounts.write(
            self._runner, name, shares=shares, gpu_limit=gpu_limit, guarantees=guarantees
        )

    def ranks(self, *, now: datetime) -> SeenLine:
        """Return where everybody's jobs stand in Slurm's line, as of the last look."""
        work = {ref: job.seen for ref, job in self._placed(now).items()}
        seen = self._last(now)
        return SeenLine(work, from_us(seen.clock.us(seen.booted)))

    def rank(self, order: Sequence[str], *, most: int, now: datetime) -> Mapping[str, int]:
        """Return the nice by which Slurm's priorities follow an order; nothing is asked of it."""
        placed = self._placed(now)
        listed = [placed[ref] for ref in order if ref in placed and placed[ref].seen.listed]
        return slurm_ranks.nice_for(listed, most=most)

    def renice(self, nice: Mapping[str, int], *, now: datetime) -> None:
        """Set the nice of jobs, in one round trip.

        :raises BackendError: with the command that grants it, where the right to is missing.
        """
        placed = self._placed(now)
        asked = {placed[ref].id: value for ref, value in nice.items() if ref in placed}
        if not asked:
            return
        try:
            self._way.renice_each(asked)
        except Denied:
            raise BackendError(slurm_ranks.denied(self._way.user()), retry=False) from None
        except Refused as words:
            raise BackendError(f"Slurm refused to change a nice: {words}.", retry=True) from None

    # How it is done

    def _placed(self, now: datetime) -> Mapping[str, slurm_ranks.Placed]:
        """Return the jobs that are not ours and not over, by ref."""
        seen = self._last(now)
        if self._places is None:
            rows = foreign_rows(seen, self._options)
            self._places = slurm_ranks.placed_in(rows, seen.slurm)
        return self._places

    def _must_drive(self) -> None:
        """Raise unless the cluster's owner lets Rollcall change what is on it."""
        if not self._cluster.driven:
            raise BackendError(
                f"{self._cluster.name} is in grade {self._cluster.grade}: Rollcall starts and stops"
                " nothing there.",
                retry=False,
            )

    def _look_anew(self, known: frozenset[str], *, now: datetime) -> Look:
        self._look = self._places = None
        self._look = look(self._way, self._cluster.name, known, now=now)
        return self._look

    def _last(self, now: datetime) -> Look:
        """Return the last look, which is of this very tick, or a new one."""
        return self._look or self._look_anew(frozenset(), now=now)

    def _existing(self, seen: Look, job: OwnJob) -> LaunchResult:
        started = None
        # Where one lies that does so unevenly the next look says, and that it started.
        if job.runs and job.start is not None and job.mark.members:
            started = from_us(max(seen.clock.us(job.start), job.mark.at))
        return LaunchResult("exists", started, cluster_ref=f"{self._way.slurm}:{job.key}")

    def _launched(self, number: str, request: LaunchRequest, owner: str) -> LaunchResult:
        """Return the new job's id and submit time: the id alone may be given out again."""
        name = job_name(request.name, request.uid)
        listed = self._way.submitted(number, name, self._cluster.name, owner)
        job = one_each(listed)[0].get(request.uid)
        if job is not None:
            self._know(job)
        ref = "" if job is None else f"{self._way.slurm}:{job.key}"
        return LaunchResult("accepted", detail=f"Slurm calls it {number}", cluster_ref=ref)

    def _know(self, job: OwnJob) -> None:
        """Keep the last look right after a change of ours."""
        if self._look is not None:
            own = {**self._look.own, job.mark.uid: job}
            self._look = replace(self._look, own=own)

    def _cancel(self, job: OwnJob, *, now: datetime, why: str = "") -> None:
        """Cancel a job, after writing down that it was us."""
        if not job.mark.stop:
            self._remark(job, job.mark.stopped(to_us(now), why))
        self._way.cancel(job)

    def _remark(self, job: OwnJob, mark: Mark) -> None:
        self._way.remark(job, mark)
        self._know(replace(job, mark=mark))

    def _tidy(self, seen: Look, *, now: datetime) -> None:
        """Take away what Slurm would start though it must not.

        These are jobs that it laid back in line after they ended, second submissions of one
        attempt, and jobs that it could not start in time: their room is planned anew.
        """
        patience = self._options.start_seconds * MICROSECOND
        for job in seen.spare:
            self._way.cancel(job)
        for job in seen.own.values():
            if not job.waits or job.mark.stop or job.mark.left or job.mark.by_name:
                continue
            detail = seen.detail(job)
            if seen.is_over(job):
                left = max(seen.clock.us(job.submit), job.mark.asked)
                if detail.exit_code == CHECKPOINTED:
                    self._remark(job, replace(job.mark, left=left))
                self._way.cancel(job)
            elif to_us(now) - job.mark.at > patience:
                self._cancel(job, now=now, why=job.reason or "no reason")


def _way(options: Options) -> Way:
    return Rest(options) if options.way == "rest" else Commands(Runner(options), options)


def open_backend(cluster: Cluster) -> SlurmBackend:
    """Return the backend of a Slurm cluster.

    :raises Invalid: for options by which none can be reached.
    """
    return SlurmBackend(cluster)
