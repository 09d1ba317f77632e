"""What each answer of a preflight means, in a sentence, and the command that changes it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from apps.backends.adapters.slurm.look import SAME_CLOCK_SECONDS
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.own import CHECKPOINTED
from apps.backends.adapters.slurm.text import NodeText, Work
from apps.backends.port import Finding

TRIED = ("22.05", "24.11")
# Those who may change other people's jobs.
OPERATORS = ("Operator", "Administrator")
SLOW_KILL_SECONDS = 30
MOST_WORK_SECONDS = 1.0
SLOW_RETURN_SECONDS = 60
# The default of cred_expire where AuthInfo does not name it.
CRED_EXPIRE = 120
IN_CONF = "# in slurm.conf, then: scontrol reconfigure"


def counted(count: int, one: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def away(message: str, options: Options, *, reached: bool) -> Finding:
    """Return that nothing answers, and where to look: at the way there, or at slurmctld."""
    if reached:
        return Finding("slurmctld", "missing", message, "systemctl start slurmctld")
    command, words = "", message.lower()
    if options.commands == "ssh":
        target = f"{options.user}@{options.host}" if options.user else options.host
        known = options.known_hosts
        where = shlex.quote(known) if known else "~/.ssh/known_hosts"
        if "host key" in words:
            command = f"ssh-keyscan -p {options.port} {options.host} >> {where}"
        elif "permission denied" in words:
            key = shlex.quote(f"{options.key}.pub")
            command = f"ssh-copy-id -p {options.port} -i {key} {target}"
        elif "no such file" in words or "not accessible" in words:
            command = f"ssh-keygen -t ed25519 -N '' -f {shlex.quote(options.key)}"
    elif "cannot be started" in words:
        command = "apt-get install slurm-client"
    return Finding("commands", "missing", message, command)


def service_user(name: str) -> Finding:
    """Return as whom all of it is done: never as root."""
    if name == "root":
        said = "Rollcall would be root there; it needs an ordinary user and no more."
        return Finding("service_user", "warning", said, "useradd --create-home rollcall")
    if not name:
        said = "The name of the user that Rollcall is there could not be found."
        return Finding("service_user", "warning", said)
    return Finding("service_user", "ok", f"Rollcall is the user {name} there.")


def version(text: str) -> Finding:
    """Return whether this version was tried; ``text`` is as ``slurm-wlm 22.05.8``."""
    number = (text.split() or ["unknown"])[-1][:20]
    if number.startswith(TRIED):
        return Finding("version", "ok", f"Slurm {number}, which Rollcall is tested on.")
    said = f"Slurm {number}; Rollcall is tested on {', '.join(TRIED)} only."
    return Finding("version", "warning", said)


def folder(path: str, *, writable: bool) -> Finding:
    """Return whether jobs can write where they start, as far as one machine tells."""
    if writable:
        return Finding("folder", "ok", f"{path} can be written to; it must be so on every node.")
    said = f"{path} cannot be written to from here: jobs fail at once on nodes where that is so."
    return Finding("folder", "warning", said, f"mkdir -p {shlex.quote(path)}")


def controller(settings: Mapping[str, str]) -> list[Finding]:
    """Return that slurmctld answers, and as which cluster."""
    name = settings.get("ClusterName", "")
    return [Finding("slurmctld", "ok", f"slurmctld answers; it calls its cluster {name}.")]


def clock(skew: int) -> Finding:
    """Return how Slurm's clock stands to ours."""
    if abs(skew) <= SAME_CLOCK_SECONDS:
        return Finding("clock", "ok", "Slurm's clock and Rollcall's agree.")
    side = "ahead of" if skew > 0 else "behind"
    said = (
        f"Slurm's clock is {counted(abs(skew), 'second')} {side} Rollcall's; its instants are"
        " shifted by that."
    )
    return Finding("clock", "warning", said, "chronyc makestep")


def partition(
    name: str, known: Mapping[str, Mapping[str, str]], nodes: Sequence[NodeText]
) -> list[Finding]:
    """Return whether jobs have a partition to go to, and whether it has GPUs."""
    if not name:
        usual = [key for key, row in known.items() if row.get("Default") == "YES"]
        if not usual:
            said = "Slurm has no default partition, and the options name none: jobs go nowhere."
            return [Finding("partition", "missing", said, "scontrol show partition")]
        name = usual[0]
    if name not in known:
        there = f"there are {', '.join(sorted(known)[:8])}" if known else "there is none"
        said = f"There is no partition {name} that Rollcall may see; {there}."
        return [
            Finding(
                "partition",
                "missing",
                said,
                f"scontrol create PartitionName={shlex.quote(name)} Nodes=ALL",
            )
        ]
    state = known[name].get("State", "")
    if state == "UP":
        found = [Finding("partition", "ok", f"Jobs go to the partition {name}, which is up.")]
    else:
        said = f"The partition {name} is {state.lower()}: Slurm starts nothing there."
        command = f"scontrol update PartitionName={shlex.quote(name)} State=UP"
        found = [Finding("partition", "missing", said, command)]
    return [*found, _gpus(name, nodes)]


def _gpus(name: str, nodes: Sequence[NodeText]) -> Finding:
    having = [node for node in nodes if name in node.partitions and node.gpus]
    if not having:
        said = f"No node of the partition {name} has GPUs: Slurm counts those in GresTypes alone."
        return Finding("gpus", "missing", said, "NodeName=… Gres=gpu:TYPE:8 # and gres.conf")
    kinds: dict[str, int] = {}
    for node in having:
        for kind, count in node.gpus.items():
            kinds[kind] = kinds.get(kind, 0) + count
    told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    up = sum(node.state == "up" for node in having)
    said = f"{counted(len(having), 'node')} with {told}; {up:,} of them up."
    return Finding("gpus", "ok" if up else "warning", said)


def no_accounting(accounts: Sequence[str]) -> Finding:
    """Return that nobody keeps accounts, so that none can be missing."""
    said = "Slurm keeps no accounting: a job needs no account"
    named = any(accounts)
    return Finding(
        "accounting", "ok", said + (", and those named here mean nothing." if named else ".")
    )


def no_slurmdbd(message: str) -> Finding:
    """Return that accounts could not be asked for."""
    said = f"slurmdbd does not answer, so the accounts are not checked: {message.rstrip('.')}."
    return Finding("accounting", "warning", said, "systemctl start slurmdbd")


def accounting(
    user: str, rows: Sequence[Sequence[str]], known: set[str], wanted: Sequence[str]
) -> list[Finding]:
    """Return whether slurmdbd knows the user and lets it into each account.

    ``rows`` are user, admin level, default account and account, one for each place of the user.
    """
    spelled = shlex.quote(user)
    named = [account for account in wanted if account]
    if not rows:
        account = shlex.quote(named[0]) if named else "NAME"
        said = f"slurmdbd does not know the user {user}."
        return [
            Finding(
                "accounting", "missing", said, f"sacctmgr -i add user {spelled} account={account}"
            )
        ]
    found = [Finding("accounting", "ok", f"slurmdbd knows the user {user}.")]
    if "" in wanted and not named and not rows[0][2]:
        said = f"{user} has no default account, and the options name none."
        command = f"sacctmgr -i modify user {spelled} set defaultaccount=NAME"
        found.append(Finding("account", "missing", said, command))
    within = {row[3] for row in rows}
    for account in named:
        # slurmdbd spells the names of accounts in lower case.
        word, name = shlex.quote(account), account.lower()
        if name in within:
            found.append(Finding("account", "ok", f"{user} is in the account {account}."))
            continue
        command = f"sacctmgr -i add user {spelled} account={word}"
        said = f"{user} is not in the account {account}."
        if name not in known:
            said = f"There is no account {account}."
            command = f"sacctmgr -i add account {word} && {command}"
        found.append(Finding("account", "missing", said, command))
    return found


def ranking(user: str, *, may: bool, accounting: bool = True) -> Finding:
    """Return whether the service user may give other people's jobs another nice, as grade advise does."""
    if may:
        told = (
            f"{user} may change the nice of other people's jobs: Slurm's line can follow our order."
        )
        return Finding("rank", "ok", told)
    told = (
        f"In grade advise Slurm's line follows our order by nice, and {user} may not change that of"
        " other people's jobs: it takes AdminLevel=Operator."
    )
    if not accounting:
        told += " Without slurmdbd nobody can be given it."
        return Finding("rank", "missing", told)
    command = f"sacctmgr -i modify user {shlex.quote(user or 'USER')} set adminlevel=Operator"
    return Finding("rank", "missing", told, command)


def submission(said: str, account: str, options: Options, user: str, tried: str) -> Finding:
    """Return whether Slurm would take a job; ``said`` is its refusal, empty: it would."""
    where = f" in the account {account}" if account else ""
    if not said:
        told = f"Slurm would take a job of 1 GPU{where} (sbatch --test-only)."
        return Finding("submission", "ok", told)
    words, spelled = said.lower(), shlex.quote(user or "USER")
    command = tried
    if "qos" in words:
        grant = f"sacctmgr -i modify user {spelled} set qos+={shlex.quote(options.qos or 'NAME')}"
        command = grant
    elif "account" in words:
        command = f"sacctmgr -i add user {spelled} account={shlex.quote(account or 'NAME')}"
    told = f"Slurm would refuse a job of 1 GPU{where}: {said.rstrip('.')}."
    return Finding("submission", "missing", told, command)


def cost(user: str, work: Work) -> Finding:
    """Return how much of slurmctld's time the service user's questions take, as it counts itself."""
    minute = work.microseconds / work.seconds * 60 / 1_000_000
    said = (
        f"slurmctld has worked {minute:.2f} s a minute for {user}: {work.requests:,} requests in the"
        f" {work.seconds // 60:,} min that it counts (sdiag)."
    )
    if minute <= MOST_WORK_SECONDS:
        return Finding("cost", "ok", said)
    return Finding("cost", "warning", f"{said} Look less often: raise the seconds between looks.")


def seconds_in(text: str, default: int) -> int:
    """Return the seconds a setting says, as ``30 sec``."""
    word = text.split()[0] if text.split() else ""
    return int(word) if word.isdigit() else default


def manners(settings: Mapping[str, str], user: str, *, operator: bool) -> list[Finding]:
    """Return what is configured such that things are slow, hidden or ordered otherwise."""
    return [
        _requeue_exit(settings),
        _kill_wait(settings),
        _cred_expire(settings),
        _private(settings, user, operator=operator),
        _priority(settings),
    ]


def _requeue_exit(settings: Mapping[str, str]) -> Finding:
    named = settings.get("RequeueExit", "")
    codes = {part.strip() for part in named.split(",")}
    if str(CHECKPOINTED) in codes:
        said = f"RequeueExit names {CHECKPOINTED}: Slurm lays back a job that saves its work and exits so."
        return Finding("requeue_exit", "ok", f"{said} Rollcall takes it out of Slurm's line again.")
    said = f"RequeueExit does not name {CHECKPOINTED}: a job that saves its work and exits so ends."
    return Finding("requeue_exit", "ok", f"{said} Rollcall itself puts it back in line.")


def _kill_wait(settings: Mapping[str, str]) -> Finding:
    wait = seconds_in(settings.get("KillWait", ""), SLOW_KILL_SECONDS)
    said = f"A job that is stopped and does not go keeps its GPUs for {wait} s more (KillWait)."
    if wait > SLOW_KILL_SECONDS:
        return Finding("kill_wait", "warning", said, f"KillWait={SLOW_KILL_SECONDS} {IN_CONF}")
    return Finding("kill_wait", "ok", said)


def _cred_expire(settings: Mapping[str, str]) -> Finding:
    parts = dict(part.partition("=")[::2] for part in settings.get("AuthInfo", "").split(","))
    expire = seconds_in(parts.get("cred_expire", ""), CRED_EXPIRE)
    said = f"What Slurm itself lays back in line waits {expire + 1} s (cred_expire)."
    if expire < SLOW_RETURN_SECONDS:
        return Finding("cred_expire", "ok", said)
    # Where others share the partition, their job then comes for room that was taken for free.
    said += " Until then Rollcall sees its GPUs as free; its own jobs are never laid back so."
    return Finding("cred_expire", "warning", said, f"AuthInfo=cred_expire=30 {IN_CONF}")


def _private(settings: Mapping[str, str], user: str, *, operator: bool) -> Finding:
    named = settings.get("PrivateData", "none").lower()
    hidden = {part.strip() for part in named.split(",")} - {"none", "(null)", ""}
    slurm_user = settings.get("SlurmUser", "").partition("(")[0]
    if not hidden:
        return Finding("private_data", "ok", "Nothing is hidden from ordinary users (PrivateData).")
    listed = ", ".join(sorted(hidden))
    if operator or user in ("root", slurm_user):
        said = f"PrivateData hides {listed} from ordinary users, but not from {user}."
        return Finding("private_data", "ok", said)
    command = f"sacctmgr -i modify user {shlex.quote(user or 'USER')} set adminlevel=Operator"
    if hidden & {"nodes", "partitions"}:
        said = f"PrivateData hides {listed} from {user}: what is there cannot be seen."
        return Finding("private_data", "missing", said, command)
    said = f"PrivateData hides {listed} of other people from {user}."
    if "jobs" in hidden:
        said += " The GPUs their jobs hold are still counted, by node."
    return Finding("private_data", "warning", said, command)


def _priority(settings: Mapping[str, str]) -> Finding:
    kind = settings.get("PriorityType", "")
    if kind == "priority/multifactor":
        return Finding(
            "priority", "ok", "Slurm weighs its jobs (priority/multifactor): nice counts."
        )
    said = f"Slurm starts jobs in the order they come ({kind or 'no PriorityType'}): nice does not count."
    command = "PriorityType=priority/multifactor # in slurm.conf, then: systemctl restart slurmctld"
    return Finding("priority", "warning", said, command)
