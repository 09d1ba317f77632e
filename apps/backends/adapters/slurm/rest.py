"""Slurm by slurmrestd: what it is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.backends.adapters.slurm.client import VERSIONS, Client, NotBelieved, SlurmError
from apps.backends.adapters.slurm.commands import Commands
from apps.backends.adapters.slurm.layout import lay_out, lay_own
from apps.backends.adapters.slurm.marks import Mark, job_name
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.own import OwnJob, is_ours
from apps.backends.adapters.slurm.runner import PATH, Runner
from apps.backends.adapters.slurm.shapes import (
    MINUTE,
    detail_of,
    instant,
    listed,
    node_of,
    number,
    own_of,
    row_of,
    text,
)
from apps.backends.adapters.slurm.submit import (
    account_of,
    environment_of,
    memory_of,
    per_node,
    per_task,
    script_of,
)
from apps.backends.adapters.slurm.ways import Denied, Records, Refused
from apps.backends.port import BackendError, LaunchRequest

# From these versions on: numbers are objects and environments lists; GRES are spelt with a slash;
# a signal may be for the batch script alone.
NEW_SHAPE, GRES_BY_SLASH, SIGNALS_ALONE = 39, 40, 40
# Slurm's numbers for a job that is gone: no such id, or over.
GONE = (2_017, 2_021, 2_084)
# And for one that is not ours to change.
NOT_OURS = (2_002, 2_010)
CANNOT_SIGNAL_ALONE = (
    "slurmrestd before v0.0.40 sends a checkpoint signal to every process of a job, not to its batch"
    " script alone: whatever does not trap it dies. Name a login node, and it goes by scancel."
)

CANNOT_HISTORY = (
    "What Slurm has forgotten is told by sacct: name a login node, or the folder of its commands."
)
CANNOT_LINE = (
    "slurmrestd does not tell the terms of Slurm's priority: name a login node, or the folder of its"
    " commands, and they are read by sprio."
)


def rest_cannot(options: Options) -> dict[str, str]:
    """Return what the way by REST cannot; nothing is asked for it."""
    if options.way != "rest" or options.commands:
        return {}
    cannot = {"history": CANNOT_HISTORY, "line": CANNOT_LINE}
    if VERSIONS.get(options.url, 0) >= SIGNALS_ALONE:
        return cannot
    return cannot | {"signal_alone": CANNOT_SIGNAL_ALONE}


def submission(
    request: LaunchRequest, options: Options, mark: Mark, nodes: list[str], version: int
) -> dict[str, Any]:
    """Return what is posted to start a gang, as ``submit.arguments`` has it for sbatch."""
    workload = request.workload
    job: dict[str, Any] = {
        "name": job_name(request.name, request.uid),
        "comment": mark.text(),
        "tasks": len(request.nodes),
        "cpus_per_task": workload["cpus_per_member"],
        "current_working_directory": workload["directory"] or options.directory,
        "standard_output": workload["output"] or options.output,
        "dependency": "singleton",
    }
    for name, value in (
        ("partition", options.partition),
        ("account", account_of(options, request.tenant)),
        ("qos", options.qos),
    ):
        if value:
            job[name] = value
    # What sbatch itself would add for srun to find.
    environment = {
        "PATH": PATH,
        "SLURM_CPUS_PER_TASK": str(workload["cpus_per_member"]),
        **environment_of(request),
    }
    if mark.members:
        environment["SLURM_NTASKS_PER_NODE"] = str(mark.members)
        job["tasks_per_node"] = mark.members
    else:
        environment["SLURM_GPUS_PER_TASK"] = per_task(request, mark)
    job |= _gpus(request, mark, version)
    by_node, by_cpu = memory_of(request, mark)
    limit = request.limit_seconds
    numbers = {
        "memory_per_node": by_node,
        "memory_per_cpu": by_cpu,
        # Whole minutes, and none too few.
        "time_limit": None if limit is None else -(-limit // MINUTE),
    }
    if version < NEW_SHAPE:
        job |= {
            "nodelist": ",".join(nodes),
            "nodes": [len(nodes), len(nodes)],
            "no_requeue": True,  # "requeue" is taken for true, whatever stands there
            "open_mode": "append",
            "environment": environment,
        }
    else:
        job |= {
            "required_nodes": nodes,
            "requeue": False,
            "minimum_nodes": len(nodes),
            "maximum_nodes": len(nodes),
            "open_mode": ["APPEND"] if version >= GRES_BY_SLASH else "APPEND",
            "environment": [f"{name}={value}" for name, value in environment.items()],
        }
    for name, asked in numbers.items():
        if asked is not None:
            job[name] = asked if version < NEW_SHAPE else {"set": True, "number": asked}
    return {"job": job, "script": script_of(workload, request.gpus_per_member)}


def _gpus(request: LaunchRequest, mark: Mark, version: int) -> dict[str, str]:
    """Return how a submission asks for its GPUs: by node, or by task where they lie unevenly."""
    if version < NEW_SHAPE:
        return (
            {"gres": per_node(mark)} if mark.members else {"gpus_per_task": per_task(request, mark)}
        )
    gres = "gres/" if version >= GRES_BY_SLASH else "gres:"
    if mark.members:
        return {"tres_per_node": f"{gres}{per_node(mark)}"}
    return {"tres_per_task": f"{gres}gpu:{per_task(request, mark)}"}


class Rest:
    """The way by slurmrestd; a signal goes by scancel where there are commands too."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client = Client(options)
        self.slurm = ""
        self._commands = Commands(Runner(options), options) if options.commands else None

    def records(self, cluster: str, known: frozenset[str]) -> Records:
        """Ask for everything in three requests; nodes before jobs, for the reason of ``Commands``.

        When slurmctld started is not told, only since when it counts: that is midnight too.
        """
        told = self._read("diag").get("statistics")
        counts: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        as_of = instant(counts.get("req_time"))
        if as_of is None:
            raise BackendError("slurmrestd does not say what time it is for Slurm.", retry=True)
        nodes = [node_of(node) for node in listed(self._read("nodes"), "nodes")]
        jobs = listed(self._read("jobs"), "jobs")
        # Only jobs tell it, and where there are none there is nothing to call by it.
        self.slurm = text(jobs[0].get("cluster")) if jobs else ""
        own, details = [], {}
        for job in jobs:
            ours = self._own(job, cluster)
            if ours is not None:
                own.append(ours)
                if not ours.runs and ours.key not in known and is_ours(ours, known):
                    details[ours.id] = detail_of(job)
        rows, _ = lay_out((row_of(job) for job in jobs), nodes, own)
        return Records(
            # One that has not begun to count has only just started.
            booted=instant(counts.get("req_time_start")) or as_of,
            as_of=as_of,
            nodes=nodes,
            rows=rows,
            own=lay_own(own, rows),
            details=details,
        )

    def submit(self, request: LaunchRequest, mark: Mark, nodes: list[str]) -> str:
        """Submit a gang, as its user by a token that is signed for them, or by sbatch."""
        if mark.owner and self._options.run_as == "sudo" and self._commands is not None:
            return self._commands.submit(request, mark, nodes)
        body = submission(request, self._options, mark, nodes, self._client.version)
        try:
            answer = self._client.post(
                "job/submit", body, user=mark.owner, token=request.token if mark.owner else ""
            )
        except SlurmError as error:
            raise Refused(str(error)) from None
        except NotBelieved as error:
            # The service user is let in: then it is this user's token, and no trouble of others'.
            if not request.token or self._listed(body["job"]["name"]):
                raise
            raise Refused(error.message.rstrip(".")) from None
        found = number(answer.get("job_id"))
        if not found:
            raise BackendError("slurmrestd took a job without saying its id.", retry=True)
        return str(found)

    def submitted(self, number: str, name: str, cluster: str, owner: str) -> list[OwnJob]:
        """Return the job of this id, if it is ours and has this name."""
        found = self._one(number)
        if found is None or found.get("name") != name:
            return []
        ours = self._own(found, cluster)
        if ours is None:
            # It would never be seen again: a token for all, or a host that knows no such user.
            self._client.delete(f"job/{number}")
            listed_as = text(found.get("user_name")) or "nobody"
            raise BackendError(
                f"slurmrestd lists what {owner or self._options.user} submitted as {listed_as}'s; its host"
                " must know the user, and the token be that user's.",
                retry=False,
            )
        return [ours]

    def cancel(self, job: OwnJob) -> None:
        """End a job."""
        if self._is_there(job):
            self._change(job, "DELETE")

    def signal(self, job: OwnJob) -> None:
        """Send a running job its signal: its batch script alone, or all of it where that cannot be."""
        if self._commands is not None:
            self._commands.signal(job)
        elif self._is_there(job):
            alone = "&flags=BATCH_JOB" if self._client.version >= SIGNALS_ALONE else ""
            self._change(job, "DELETE", query=f"?signal={job.mark.signal}{alone}")

    def hold(self, job: OwnJob) -> None:
        """Put a job on hold."""
        self._change(job, "POST", {"hold": True})

    def release(self, job: OwnJob) -> None:
        """Take a job off hold."""
        self._change(job, "POST", {"hold": False})

    def renice(self, job: OwnJob, nice: int) -> None:
        """Change how far a job stands behind others."""
        self._change(job, "POST", {"nice": nice})

    def user(self) -> str:
        """Return whose the token is."""
        return self._options.user

    def renice_each(self, nice: Mapping[int, int]) -> None:
        """Change the nice of several jobs, a request each; the first refusal that counts is told."""
        refused: SlurmError | None = None
        for job, value in nice.items():
            try:
                self._client.post(f"job/{job}", {"nice": value})
            except SlurmError as error:
                if error.number in NOT_OURS:
                    raise Denied(str(error)) from None
                if error.number not in GONE:
                    refused = refused or error
        if refused is not None:
            raise Refused(str(refused))

    def remark(self, job: OwnJob, mark: Mark) -> None:
        """Write another mark into a job's comment."""
        self._change(job, "POST", {"comment": mark.text()})

    def _read(self, path: str) -> dict[str, Any]:
        try:
            return self._client.get(path)
        except SlurmError as error:
            raise BackendError(f"Slurm refused to tell of {path}: {error}.", retry=True) from None

    def _listed(self, name: str) -> bool:
        """Return whether there is a job of this name, as one whose submission seemed to fail."""
        return any(job.get("name") == name for job in listed(self._read("jobs"), "jobs"))

    def _one(self, number: int | str) -> Mapping[str, Any] | None:
        """Return a job by its id; None: there is none."""
        try:
            found = listed(self._client.get(f"job/{number}"), "jobs")
        except SlurmError as error:
            if error.number in GONE:
                return None
            raise BackendError(
                f"Slurm refused to tell of job {number}: {error}.", retry=True
            ) from None
        self.slurm = text(found[0].get("cluster")) if found else self.slurm
        return found[0] if found else None

    def _own(self, job: Mapping[str, Any], cluster: str) -> OwnJob | None:
        """Return a job of ours, which is the service user's or one that runs as its user."""
        whose = text(job.get("user_name"))
        if whose == self._options.user:
            return own_of(job, cluster, "")
        if self._options.run_as == "service" or not whose:
            return None
        return own_of(job, cluster, whose)

    def _is_there(self, job: OwnJob) -> bool:
        """Return whether a job's id is still its own."""
        found = self._one(job.id)
        return found is not None and found.get("name") == job.name

    def _change(
        self, job: OwnJob, method: str, body: Mapping[str, Any] | None = None, *, query: str = ""
    ) -> None:
        try:
            if method == "DELETE":
                self._client.delete(f"job/{job.id}{query}")
            else:
                self._client.post(f"job/{job.id}", body or {})
        except SlurmError as error:
            if error.number not in GONE:
                raise BackendError(
                    f"Slurm refused to change job {job.id}: {error}", retry=True
                ) from None
