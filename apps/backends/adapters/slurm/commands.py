"""Slurm by its commands: what they are told, and what they print."""

from __future__ import annotations

from apps.backends.adapters.slurm.marks import Mark
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.own import OWN, OwnJob, detail_in, own_in
from apps.backends.adapters.slurm.runner import Runner
from apps.backends.adapters.slurm.submit import arguments, environment_of, script_of
from apps.backends.adapters.slurm.text import EVERY, config_of, nodes_in, rows_in
from apps.backends.adapters.slurm.ways import Records, Refused
from apps.backends.port import BackendError, LaunchRequest

GONE = ("already finished", "invalid job id", "already completing", "no job")


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
        How a job ended takes a second question, asked only when one did.
        """
        config, nodes, own, every = (
            answer.out
            for answer in self._runner.read(
                ["scontrol", "-o", "show", "config"],
                ["scontrol", "-d", "-o", "show", "node"],
                ["squeue", "-h", "--me", "-t", "all", "-o", OWN],
                # Those that ended too, for as long as Slurm remembers them; it costs slurmctld no more.
                ["squeue", "-h", "-a", "-t", "all", "-o", EVERY],
            )
        )
        settings = config_of(config)
        self.slurm = settings.get("ClusterName", "")
        jobs = own_in(own, cluster)
        asked = [job for job in jobs if not job.runs and job.key not in known]
        details = {}
        if asked:
            shown = (["scontrol", "-o", "show", "job", str(job.id)] for job in asked)
            details = {
                job.id: detail_in(answer.out)
                for job, answer in zip(asked, self._runner.read(*shown), strict=True)
                if not answer.code
            }
        return Records(
            booted=int(settings["BOOT_TIME"]),
            as_of=int(settings["as_of"]),
            nodes=nodes_in(nodes),
            rows=rows_in(every),
            own=jobs,
            details=details,
        )

    def submit(self, request: LaunchRequest, mark: Mark, nodes: list[str]) -> str:
        """Submit a gang by sbatch."""
        answer = self._runner.run(
            "sbatch",
            *arguments(request, self._options, mark, nodes),
            stdin=script_of(request.workload, request.gpus_per_member),
            plain=False,
            extra=environment_of(request),
        )
        if answer.code:
            raise Refused(answer.said)
        return answer.out.strip().split(";")[0]

    def submitted(self, number: str, name: str, cluster: str) -> list[OwnJob]:
        """Return our jobs of this name."""
        listed = self._runner.run("squeue", "-h", "--me", "-t", "all", f"--name={name}", "-o", OWN)
        return own_in(listed.out, cluster)

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

    def remark(self, job: OwnJob, mark: Mark) -> None:
        """Write another mark into a job's comment."""
        self._change(job, "scontrol", "update", f"JobId={job.id}", f"Comment={mark.text()}")

    def _scancel(self, job: OwnJob, *options: str) -> None:
        self._change(job, "scancel", *options, "--me", f"--name={job.name}", str(job.id))

    def _change(self, job: OwnJob, *command: str) -> None:
        answer = self._runner.run(*command)
        if answer.code and not any(words in answer.err.lower() for words in GONE):
            raise BackendError(f"Slurm refused to change job {job.id}: {answer.said}", retry=True)
