"""Slurm by its commands: what they are told, and what they print."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from apps.backends.adapters.slurm.layout import laid_in, lay_out, lay_own
from apps.backends.adapters.slurm.marks import Mark
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.own import (
    OWN,
    OwnJob,
    detail_in,
    every_with_marks,
    is_ours,
    own_in,
    with_marks,
)
from apps.backends.adapters.slurm.owners import SUDO, without_rule
from apps.backends.adapters.slurm.runner import Runner
from apps.backends.adapters.slurm.submit import arguments, environment_of, export_of, script_of
from apps.backends.adapters.slurm.text import EVERY, config_of, nodes_in, rows_in
from apps.backends.adapters.slurm.ways import Denied, Records, Refused
from apps.backends.port import BackendError, LaunchRequest

GONE = ("already finished", "invalid job id", "already completing", "no job")
NOT_OURS = ("invalid user id", "permission denied")
# How many tasks of an array a change did, beside what it did not.
DONE = "no error"
# At a look; of the rest the GPUs are counted by node until there is time for them.
MOST_ASKED = 20


class Commands:
    """The way by scontrol, squeue, sbatch and scancel."""

    def __init__(self, runner: Runner, options: Options) -> None:
        self._runner = runner
        self._options = options
        self.slurm = ""

    def records(self, cluster: str, known: frozenset[str]) -> Records:
        """Ask for everything in one round trip.

        Nodes first: a job of ours that starts meanwhile is not taken for somebody else's. One that
        ends meanwhile is, for one look: better to take a GPU for used than to promise it twice.
        How a job ended takes a second question, asked only when one did, and so does where a job has
        its GPUs, if nothing else tells.
        """
        tag = "" if self._options.run_as == "service" else f"t{secrets.token_hex(8)}"
        listed = every_with_marks(tag) if tag else EVERY
        config, nodes, own, every = (
            answer.out
            for answer in self._runner.read(
                ["scontrol", "-o", "show", "config"],
                ["scontrol", "-d", "-o", "show", "node"],
                ["squeue", "-h", "--me", "-t", "all", "-o", OWN],
                # Those that ended too, for as long as Slurm remembers them; it costs slurmctld no more.
                ["squeue", "-h", "-a", "-t", "all", "-O", listed],
            )
        )
        settings, found = config_of(config), nodes_in(nodes)
        self.slurm = settings.get("ClusterName", "")
        rows, theirs = with_marks(every, tag, cluster) if tag else (rows_in(every), [])
        jobs = own_in(own, cluster, rows=rows) + theirs
        ended = [
            job.id for job in jobs if not job.runs and job.key not in known and is_ours(job, known)
        ]
        rows, unsure = lay_out(rows, found, jobs)
        # Ours first: they have started for us once it is known where they are.
        mine = {job.id for job in jobs}
        unsure = sorted(unsure, key=lambda row: row.id not in mine)[:MOST_ASKED]
        details = self._shown([*ended, *(row.id for row in unsure)])
        laid = {row.id: laid_in(details[row.id], row) for row in unsure if row.id in details}
        rows = [laid.get(row.id, row) for row in rows]
        return Records(
            booted=int(settings["BOOT_TIME"]),
            as_of=int(settings["as_of"]),
            nodes=found,
            rows=rows,
            own=lay_own(jobs, rows),
            details={id: detail_in(details[id]) for id in ended if id in details},
        )

    def _shown(self, ids: list[int]) -> dict[int, str]:
        """Return what Slurm says of jobs, each by itself; those that it has forgotten are left out."""
        if not ids:
            return {}
        answers = self._runner.read(
            *(["scontrol", "-d", "-o", "show", "job", str(id)] for id in ids)
        )
        return {id: one.out for id, one in zip(ids, answers, strict=True) if not one.code}

    def submit(self, request: LaunchRequest, mark: Mark, nodes: list[str]) -> str:
        """Submit a gang by sbatch, as its user where it is to run as one: sudo hands on nothing."""
        asked, told = arguments(request, self._options, mark, nodes), environment_of(request)
        answer = self._runner.run(
            "sbatch",
            *([export_of(told)] if mark.owner else []),
            *asked,
            stdin=script_of(request.workload, request.gpus_per_member),
            plain=False,
            extra={} if mark.owner else told,
            before=[*SUDO, mark.owner, "--"] if mark.owner else [],
        )
        if answer.code:
            raise Refused(without_rule(answer.said, mark.owner) if mark.owner else answer.said)
        return answer.out.strip().split(";")[0]

    def submitted(self, number: str, name: str, cluster: str, owner: str) -> list[OwnJob]:
        """Return our jobs of this name."""
        listed = self._runner.run(
            "squeue", "-h", _whose(owner), "-t", "all", f"--name={name}", "-o", OWN
        )
        return own_in(listed.out, cluster, owner)

    def cancel(self, job: OwnJob) -> None:
        """End a job."""
        self._scancel(job)

    def signal(self, job: OwnJob) -> None:
        """Send a running job's batch script, and nothing else of it, its signal."""
        self._scancel(job, f"--signal={job.mark.signal}", "--batch", "--state=RUNNING")

    def hold(self, job: OwnJob) -> None:
        """Put a job on hold."""
        self._change(job, "scontrol", "hold", str(job.id))

    def release(self, job: OwnJob) -> None:
        """Take a job off hold."""
        self._change(job, "scontrol", "release", str(job.id))

    def renice(self, job: OwnJob, nice: int) -> None:
        """Change how far a job stands behind others."""
        self._change(job, "scontrol", "update", f"JobId={job.id}", f"Nice={nice}")

    def user(self) -> str:
        """Return the name of the service user."""
        return self._runner.run("/usr/bin/id", "-un").out.strip() or "USER"

    def renice_each(self, nice: Mapping[int, int]) -> None:
        """Change the nice of several jobs by one scontrol, which is told each on a line of its own."""
        lines = "".join(f"update JobId={job} Nice={value}\n" for job, value in nice.items())
        answer = self._runner.run("scontrol", stdin=lines)
        said = [line.strip() for line in answer.err.splitlines() if line.strip()]
        said = [line for line in said if not any(sign in line.lower() for sign in (*GONE, DONE))]
        for line in said:
            if any(sign in line.lower() for sign in NOT_OURS):
                raise Denied(line)
        if said:
            raise Refused(said[0][:200])

    def remark(self, job: OwnJob, mark: Mark) -> None:
        """Write another mark into a job's comment."""
        self._change(job, "scontrol", "update", f"JobId={job.id}", f"Comment={mark.text()}")

    def _scancel(self, job: OwnJob, *options: str) -> None:
        self._change(
            job, "scancel", *options, _whose(job.mark.owner), f"--name={job.name}", str(job.id)
        )

    def _change(self, job: OwnJob, *command: str) -> None:
        answer = self._runner.run(*command)
        if answer.code and not any(words in answer.err.lower() for words in GONE):
            raise BackendError(f"Slurm refused to change job {job.id}: {answer.said}", retry=True)


def _whose(owner: str) -> str:
    """Return the option that names a job's user: the service user, or its owner."""
    return f"--user={owner}" if owner else "--me"
