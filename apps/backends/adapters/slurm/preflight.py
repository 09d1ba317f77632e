"""What works on a Slurm cluster, what is missing and the command that grants it; it only asks.

The questions go from near to far, and end where nothing behind can be answered: a login node that
lets nobody in says nothing of its partitions.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from time import perf_counter

from apps.backends.adapters.slurm import owners, verdicts
from apps.backends.adapters.slurm.options import Options, read_options
from apps.backends.adapters.slurm.preflight_rest import RestPreflight
from apps.backends.adapters.slurm.runner import Answer, Runner
from apps.backends.adapters.slurm.text import SLURMDBD, config_of, fields_of, nodes_in, work_for
from apps.backends.models import Cluster, Grade
from apps.backends.port import BackendError, Finding
from apps.common.time import MICROSECOND, to_us

# Accounts that are tried one by one; a site may name hundreds.
MOST_TRIED = 10
USER = "User,AdminLevel,DefaultAccount,Account"


def preflight(cluster: Cluster, *, now: datetime) -> Sequence[Finding]:
    """Return what was found, from how it is reached to whether a job would be taken.

    :raises Invalid: for options by which none can be reached.
    """
    options = read_options(cluster.options)
    advised = cluster.grade == Grade.ADVISE
    found: list[Finding] = []
    if options.way == "rest":
        rest = RestPreflight(options, now, advised=advised)
        found = rest.reach()
        if any(one.state == "missing" for one in found):
            return found
        if not options.commands:
            return found + rest.rest(accounts_of(options))
    return found + _Preflight(options, now, advised=advised).run()


def accounts_of(options: Options) -> list[str]:
    """Return the accounts that jobs are submitted to, each once; the common one may be none."""
    return list(dict.fromkeys([options.account, *options.accounts.values()]))


class _Preflight:
    """One preflight: what it has learnt so far, and what follows from it."""

    def __init__(self, options: Options, now: datetime, *, advised: bool) -> None:
        self._options = options
        self._runner = Runner(options)
        self._now = now
        self._began = perf_counter()
        self._user = options.user
        self._operator = False
        self._advised = advised

    def run(self) -> list[Finding]:
        """Ask, and stop where nothing further can be asked."""
        found: list[Finding] = []
        try:
            found += self._reach()
            settings = self._settings()
        except BackendError as error:
            # Commands that ran have shown the way: what does not answer is slurmctld.
            return [*found, verdicts.away(error.message, self._options, reached=bool(found))]
        found += verdicts.controller(settings)
        found.append(verdicts.clock(self._skew(settings)))
        try:
            found += self._partition()
        except BackendError as error:
            found.append(Finding("partition", "warning", error.message))
        found += self._accounting(settings)
        if self._advised:
            found.append(self._ranking(settings))
        found += self._submission()
        found += self._owners(settings)
        found += verdicts.manners(settings, self._user, operator=self._operator)
        found += self._cost()
        return found

    def _cost(self) -> list[Finding]:
        """Return what slurmctld has had to do for the service user, as it counts itself."""
        try:
            answer = self._ask("sdiag")
        except BackendError:
            return []
        work = work_for(answer.out, self._user)
        return [] if answer.code or work is None else [verdicts.cost(self._user, work)]

    def _ask(self, *command: str) -> Answer:
        return self._runner.read(command)[0]

    def _reach(self) -> list[Finding]:
        version, who, folder = self._runner.read(
            ["scontrol", "--version"],
            ["/usr/bin/env", "id", "-un"],
            ["/usr/bin/test", "-w", self._options.directory],
        )
        if version.code:
            raise BackendError(f"scontrol cannot be run there: {version.said}.", retry=False)
        if not who.code:
            self._user = who.out.strip()
        reached = "over SSH" if self._options.commands == "ssh" else "on this machine"
        found = [Finding("commands", "ok", f"Slurm's commands can be run {reached}.")]
        found.append(verdicts.service_user(self._user))
        found.append(verdicts.version(version.out))
        found.append(verdicts.folder(self._options.directory, writable=not folder.code))
        return found

    def _settings(self) -> dict[str, str]:
        answer = self._ask("scontrol", "-o", "show", "config")
        if answer.code:
            raise BackendError(f"slurmctld refused to answer: {answer.said}.", retry=True)
        return config_of(answer.out)

    def _skew(self, settings: dict[str, str]) -> int:
        """Return by how many seconds Slurm's clock is ahead of ours."""
        passed = int(perf_counter() - self._began)
        return int(settings["as_of"]) - to_us(self._now) // MICROSECOND - passed

    def _partition(self) -> list[Finding]:
        listed, nodes = self._runner.read(
            ["scontrol", "-o", "show", "partition"], ["scontrol", "-d", "-o", "show", "node"]
        )
        rows = [fields_of(line) for line in listed.out.splitlines()]
        known = {row["PartitionName"]: row for row in rows if "PartitionName" in row}
        return verdicts.partition(self._options.partition, known, nodes_in(nodes.out))

    def _accounting(self, settings: dict[str, str]) -> list[Finding]:
        """Return whether slurmdbd knows the service user, and the accounts it submits to."""
        if settings.get("AccountingStorageType") != SLURMDBD:
            return [verdicts.no_accounting(accounts_of(self._options))]
        try:
            users, accounts = self._runner.read(
                ["sacctmgr", "-nP", "show", "user", self._user, "withassoc", f"format={USER}"],
                ["sacctmgr", "-nP", "show", "account", "format=Account"],
            )
            failed = users if users.code else accounts
            if failed.code:
                return [verdicts.no_slurmdbd(failed.said)]
        except BackendError as error:
            return [verdicts.no_slurmdbd(error.message)]
        rows = [line.split("|") for line in users.out.splitlines() if line.count("|") == 3]
        self._operator = any(row[1] in verdicts.OPERATORS for row in rows)
        return verdicts.accounting(
            self._user, rows, set(accounts.out.split("\n")), accounts_of(self._options)
        )

    def _owners(self, settings: dict[str, str]) -> list[Finding]:
        """Return whether jobs can run as their users, where they are to."""
        if self._options.run_as == "service":
            return []
        found = []
        if self._options.run_as == "sudo":
            # By env, so that it is found where Slurm's commands are not.
            found.append(owners.rule(self._ask("/usr/bin/env", "sudo", "-n", "-l"), self._user))
        accounts = settings.get("AccountingStorageType") == SLURMDBD
        return [*found, owners.level(self._user, accounts=accounts, operator=self._operator)]

    def _ranking(self, settings: dict[str, str]) -> Finding:
        """Return whether the service user may give anybody's jobs another nice."""
        highest = ("root", settings.get("SlurmUser", "").partition("(")[0])
        kept = settings.get("AccountingStorageType") == SLURMDBD
        may = self._operator or self._user in highest
        return verdicts.ranking(self._user, may=may, accounting=kept)

    def _submission(self) -> list[Finding]:
        """Return whether a job of one GPU would be taken, for each account."""
        options, found = self._options, []
        for account in accounts_of(options)[:MOST_TRIED]:
            if not account and options.accounts:
                # Only teams without an account would go there, by Slurm's own choice.
                continue
            asked = ["sbatch", "--test-only", "--nodes=1", "--gres=gpu:1", "--wrap=true"]
            asked.append(f"--chdir={options.directory}")
            for name, value in (
                ("partition", options.partition), ("account", account), ("qos", options.qos)
            ):  # fmt: skip
                if value:
                    asked.append(f"--{name}={value}")
            try:
                answer = self._ask(*asked)
            except BackendError as error:
                found.append(Finding("submission", "warning", error.message))
                break
            said = "" if not answer.code else answer.said
            found.append(verdicts.submission(said, account, options, self._user, shlex.join(asked)))
        return found
