"""Slurm's accounts: read from slurmdbd and slurmctld; shares, limits and guarantees written there."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from apps.backends.adapters.slurm.notes import GPUS, noted, with_note
from apps.backends.adapters.slurm.runner import Answer, Runner
from apps.backends.adapters.slurm.text import SLURMDBD, config_of, seconds_of
from apps.backends.port import NO_LIMIT, BackendError, SeenAccount, SeenQos, SeenUser

ASSOCIATION = (
    "Cluster", "Account", "ParentName", "User", "Partition", "Share", "GrpTRES", "MaxTRES",
)  # fmt: skip
QOS = (
    "Name", "Priority", "Flags", "Preempt", "PreemptMode", "GraceTime", "GrpTRES", "MaxTRESPU",
    "MaxTRESPerJob", "MaxWall",
)  # fmt: skip
SHARES = (
    "Account", "User", "RawShares", "NormShares", "RawUsage", "EffectvUsage", "FairShare", "LevelFS",
)  # fmt: skip
# What sacctmgr takes for more than a name: a list, a quotation, a range, an option.
NOT_IN_A_NAME = frozenset(",=|'\"`\\[]()*")
LONGEST = 255
MOST = 1_000_000_000
Number = TypeVar("Number", int, float)
GONE = "Slurm has no such account any more: nothing was changed."
DENIED = ("privilege", "permission denied", "access denied")


def read(runner: Runner) -> list[SeenAccount]:
    """Return the accounts of this cluster, by name; those that a list cannot spell are left out.

    :raises BackendError: if there is no slurmdbd, or it does not answer.
    """
    cluster = _cluster(runner)
    listed = _ask(
        runner, "-nP", "show", "assoc", f"cluster={cluster}", f"format={','.join(ASSOCIATION)}"
    )
    found = accounts_in(listed.out, cluster)
    if not found:
        # There is always one called root. slurmdbd 22.05 now and then says nothing, and no error.
        raise BackendError(
            f"slurmdbd lists no accounts of {cluster}. If it stays so, PrivateData hides them from"
            " Rollcall's user: sacctmgr -i modify user NAME set adminlevel=Operator.",
            retry=True,
        )
    described = _descriptions(runner)
    found = [replace(one, guarantees=noted(described.get(one.name, ""), cluster)) for one in found]
    shared = runner.read(["sshare", "-a", "-l", "-P"])[0]
    if shared.code:
        raise BackendError(f"Slurm does not tell its fair share: {shared.said}.", retry=True)
    return with_usage(found, shared.out)


def write(
    runner: Runner,
    name: str,
    *,
    shares: int | None,
    gpu_limit: int | None,
    guarantees: Mapping[str, int] | None,
) -> None:
    """Change an account in slurmdbd; what else stands in its GrpTRES and description stays.

    :raises BackendError: in Slurm's words, with the command that grants it where a right is missing.
    """
    _check_name(name)
    values = []
    if shares is not None:
        if not 0 <= shares <= MOST:
            raise BackendError(f"Slurm takes no {shares} shares.", retry=False)
        values.append(f"fairshare={shares}")
    if gpu_limit is not None:
        if gpu_limit != NO_LIMIT and not 0 <= gpu_limit <= MOST:
            raise BackendError(f"Slurm takes no limit of {gpu_limit} GPUs.", retry=False)
        values.append(f"GrpTRES={GPUS}={gpu_limit}")
    if not values and not guarantees:
        return
    cluster = _cluster(runner)
    if guarantees:
        known = _descriptions(runner).get(name)
        if known is None:
            raise BackendError(GONE, retry=False)
        values.append(f"description={with_note(known, cluster, guarantees)}")
    asked = ["-i", "modify", "account", "where", f"name={name}", f"cluster={cluster}"]
    _ask(runner, *asked, "set", *values)


def _check_name(name: str) -> None:
    """Refuse a name by which sacctmgr would change something else, or nothing."""
    bad = sorted(NOT_IN_A_NAME & set(name))
    if bad or not name or not name.isprintable() or len(name) > LONGEST:
        why = f"has {bad[0]} in it" if bad else "is not a name"
        raise BackendError(
            f"The account {name[:80]!r} {why}, which sacctmgr reads as something else; it can only"
            " be changed by hand.",
            retry=False,
        )


def _cluster(runner: Runner) -> str:
    """Return what Slurm calls this cluster: slurmdbd may keep the accounts of several."""
    answer = runner.read(["scontrol", "-o", "show", "config"])[0]
    if answer.code:
        raise BackendError(f"slurmctld refused to answer: {answer.said}.", retry=True)
    settings = config_of(answer.out)
    kind = settings.get("AccountingStorageType", "")
    if kind != SLURMDBD:
        raise BackendError(
            f"This Slurm keeps no accounts (AccountingStorageType={kind or 'none'}). To have them,"
            f" set up slurmdbd, then AccountingStorageType={SLURMDBD} in slurm.conf and"
            " systemctl restart slurmctld.",
            retry=False,
        )
    return settings.get("ClusterName", "")


def _descriptions(runner: Runner) -> dict[str, str]:
    """Return the description of each account of slurmdbd's, by name.

    :raises BackendError: if it does not answer.
    """
    out = _ask(runner, "-nP", "show", "account", "format=Account,Descr").out
    rows = (line.partition("|") for line in out.splitlines())
    found = {name: description for name, bar, description in rows if bar}
    if not found:
        # As above: believed, it would mean that somebody took all notes away.
        raise BackendError("slurmdbd lists no descriptions of accounts.", retry=True)
    return found


def _ask(runner: Runner, *arguments: str) -> Answer:
    """Ask slurmdbd.

    :raises BackendError: if it is away, or says no.
    """
    try:
        answer = runner.run("sacctmgr", *arguments)
    except BackendError as error:
        if "SSH" in error.message:
            raise
        raise BackendError(
            f"Slurm's accounting does not answer ({error.message.rstrip('.')}). Where slurmdbd runs:"
            " systemctl start slurmdbd.",
            retry=True,
        ) from None
    if answer.code:
        raise _refused(runner, answer)
    return answer


def _refused(runner: Runner, answer: Answer) -> BackendError:
    """Return a refusal of slurmdbd's in words."""
    words = f"{answer.out}\n{answer.err}".lower()
    if any(sign in words for sign in DENIED):
        who = runner.run("/usr/bin/id", "-un").out.strip() or "USER"
        return BackendError(
            f"Slurm does not let {who} do this. An administrator of Slurm grants it:"
            f" sacctmgr -i modify user {shlex.quote(who)} set adminlevel=Operator.",
            retry=False,
        )
    if "nothing modified" in words:
        return BackendError(GONE, retry=False)
    return BackendError(f"Slurm refused it: {answer.said.rstrip('.')}.", retry=False)


def accounts_in(text: str, cluster: str) -> list[SeenAccount]:
    """Return the accounts that ``sacctmgr show assoc`` printed, by name, without their usage."""
    found: dict[str, SeenAccount] = {}
    people: dict[str, dict[str, SeenUser]] = defaultdict(dict)
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != len(ASSOCIATION) or cells[0] != cluster:
            continue
        _, account, parent, user, _, share, limits, of_a_job = cells
        shares = int(share) if share.isdigit() else None
        if not user:
            found[account] = SeenAccount(account, parent, shares, gpus_of(limits))
            continue
        one = SeenUser(user, shares, gpus_of(limits), gpus_of(of_a_job))
        before = people[account].get(user)
        people[account][user] = one if before is None else _both(before, one)
    return [
        replace(found[name], users=len(people[name]), people=tuple(people[name].values()))
        for name in sorted(found)
    ]


def _both(one: SeenUser, other: SeenUser) -> SeenUser:
    """Return two associations of a user's, each of a partition, as those of one user all the same."""
    same_limit = one.gpu_limit == other.gpu_limit
    same_of_a_job = one.gpus_per_job == other.gpus_per_job
    return SeenUser(
        one.name,
        _sum(one.shares, other.shares),
        one.gpu_limit if same_limit else None,
        one.gpus_per_job if same_of_a_job else None,
    )


def _sum(one: Number | None, other: Number | None) -> Number | None:
    return one if other is None else other if one is None else one + other


def gpus_of(limits: str) -> int | None:
    """Return the limit of GPUs in a list of TRES, as ``cpu=100,gres/gpu=8``; None: there is none."""
    for part in limits.split(","):
        name, _, value = part.partition("=")
        if name == GPUS and value.isdigit():
            return int(value)
    return None


def number(text: str) -> float | None:
    """Return a figure as sshare prints it; None: it prints none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def with_usage(accounts: list[SeenAccount], text: str) -> list[SeenAccount]:
    """Return accounts with what ``sshare -a -l -P`` printed of them.

    slurmctld may not know yet what slurmdbd does: of such an account there are no figures.
    """
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    heads = lines[0] if lines else []
    if any(name not in heads for name in SHARES):
        raise BackendError("sshare printed its columns in a way not understood.", retry=True)
    rows = [dict(zip(heads, row, strict=True)) for row in lines[1:] if len(row) == len(heads)]
    own = {row["Account"]: row for row in rows if not row["User"]}
    theirs: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["User"]:
            theirs[row["Account"]][row["User"]].append(row)
    return [
        account
        if account.name not in own
        else replace(
            account,
            raw_usage=number(own[account.name]["RawUsage"]),
            norm_shares=number(own[account.name]["NormShares"]),
            effective_usage=number(own[account.name]["EffectvUsage"]),
            level=number(own[account.name]["LevelFS"]),
            fair_share=_best(row for each in theirs[account.name].values() for row in each),
            people=tuple(_used(one, theirs[account.name][one.name]) for one in account.people),
        )
        for account in accounts
    ]


def _best(rows: Iterable[Mapping[str, str]]) -> float | None:
    """Return the best fair share of some rows of users."""
    factors = [number(row["FairShare"]) for row in rows]
    return max((factor for factor in factors if factor is not None), default=None)


def _used(user: SeenUser, rows: list[dict[str, str]]) -> SeenUser:
    """Return a user with what sshare prints, a row for each association in the account."""
    told: dict[str, float | None] = dict.fromkeys(("RawUsage", "NormShares", "EffectvUsage"))
    for row in rows:
        told = {name: _sum(value, number(row[name])) for name, value in told.items()}
    return replace(
        user,
        raw_usage=told["RawUsage"],
        norm_shares=told["NormShares"],
        effective_usage=told["EffectvUsage"],
        fair_share=_best(rows),
    )


def read_qos(runner: Runner) -> list[SeenQos]:
    """Return the QOS of slurmdbd's, which all of its clusters have, the highest first.

    :raises BackendError: if it does not answer.
    """
    found = qos_in(_ask(runner, "-nP", "show", "qos", f"format={','.join(QOS)}").out)
    if not found:
        # There is always one called normal.
        raise BackendError("slurmdbd lists no QOS.", retry=True)
    return found


def qos_in(text: str) -> list[SeenQos]:
    """Return the QOS that ``sacctmgr show qos`` printed."""
    rows = [line.split("|") for line in text.splitlines()]
    found = [
        SeenQos(
            name,
            int(priority) if priority.isdigit() else 0,
            _list(flags),
            _list(preempts),
            mode,
            seconds_of(grace) or 0,
            together,
            per_user,
            per_job,
            seconds_of(longest),
        )
        for name, priority, flags, preempts, mode, grace, together, per_user, per_job, longest in (
            row for row in rows if len(row) == len(QOS)
        )
    ]
    return sorted(found, key=lambda one: (-one.priority, one.name))


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)
