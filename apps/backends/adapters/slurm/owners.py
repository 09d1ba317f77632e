"""As whom a job runs on Slurm: as the service user, or as the user who submitted it to Rollcall."""

from __future__ import annotations

import re
import shlex
from datetime import datetime

from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.runner import Answer
from apps.backends.adapters.slurm.tokens import TOKEN, claims
from apps.backends.adapters.slurm.ways import Refused
from apps.backends.port import Finding
from apps.common.errors import Invalid
from apps.common.sealing import Unreadable, unseal
from apps.common.time import MICROSECOND, from_us

# As useradd takes it; what sudo would read as an option or a number is none.
NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
NEVER = ("root", "slurm", "munge", "nobody")

AS_SERVICE = (
    "Jobs run as the service user, with their team's account: who asked for one is known to Rollcall"
    " alone, and its files are the service user's."
)
SUDO = ("sudo", "-n", "-u")
# What sudo says where its rule is missing, or asks for more than the one command.
NO_RULE = ("password is required", "not allowed to", "not in the sudoers", "no tty present")


def asks_for_tokens(options: Options) -> bool:
    """Return whether each user's jobs go by a token that they have entered."""
    return options.run_as == "token" and not options.jwt_key


def owner_of(options: Options, user: str, token: str, *, now: datetime) -> str:
    """Return the user a job is to run as; empty: the service user.

    :raises Refused: if there is none, one as whom nothing of Rollcall's ever runs, or one whose own
        token is needed and not there.
    """
    if options.run_as == "service":
        return ""
    name = _name_of(options, user)
    if asks_for_tokens(options):
        if not token:
            raise Refused(f"{user} has entered no token for it, which is done on the page Profile")
        try:
            until(unseal(token), name, now=now)
        except Unreadable:
            raise Refused(
                f"the token of {user} cannot be read any more; it is to be entered again"
            ) from None
        except Invalid as why:
            raise Refused(f"the token of {user} will not do: {why.message.rstrip('.')}") from None
    return name


def until(token: str, name: str, *, now: datetime) -> datetime | None:
    """Return until when a token lets a user in, by what it says itself; None: it does not say.

    :raises Invalid: if it is none, has ended, or is for another user of the cluster's.
    """
    if not TOKEN.fullmatch(token):
        raise Invalid(
            "The token must be as `scontrol token` prints it: three parts with dots.", field="token"
        )
    who, ends = claims(token)
    if who and who != name:
        raise Invalid(f"The token is for {who[:40]}, not for {name}.", field="token")
    at = None if ends is None else from_us(ends * MICROSECOND)
    if at is not None and at <= now:
        raise Invalid(f"The token ended at {at:%Y-%m-%d %H:%M:%S} UTC.", field="token")
    return at


def check_token(options: Options, user: str, token: str, *, now: datetime) -> datetime | None:
    """Return until when a token that a user enters lets them in.

    :raises Invalid: naming the field.
    """
    try:
        name = _name_of(options, user)
    except Refused as why:
        raise Invalid(f"{str(why)[0].upper()}{str(why)[1:]}.", field="token") from None
    return until(token.strip().removeprefix("SLURM_JWT="), name, now=now)


def _name_of(options: Options, user: str) -> str:
    if not user:
        raise Refused(
            "jobs here run as who submitted them, and this one was submitted by nobody in particular"
        )
    name = options.users.get(user, user)
    if not NAME.fullmatch(name):
        raise Refused(
            f"{user} cannot be the name of a user there; options.users says what {user} is called"
        )
    if name in (*NEVER, options.user):
        raise Refused(f"{user} would be {name} there, as whom nothing of Rollcall's ever runs")
    return name


def without_rule(words: str, owner: str) -> str:
    """Return what is to be said of a submission by sudo that failed, in Slurm's words or its own."""
    if any(sign in words.lower() for sign in NO_RULE):
        return (
            f"sudo does not let the service user run sbatch as {owner} (see docs/SLURM.md): {words}"
        )
    return words


# As sudo -l lists a rule: (users) tags: commands.
RULE = re.compile(r"^\s*\((?P<users>[^)]*)\)\s+(?P<tags>(?:[A-Z_]+:\s*)*)(?P<commands>.+)$", re.M)


def rule(listed: Answer, user: str) -> Finding:
    """Return whether sudo lets the service user run sbatch as others, and no more than that."""
    allowed = [
        (match["users"].strip(), command.strip())
        for match in RULE.finditer(listed.out)
        if "NOPASSWD:" in match["tags"]
        for command in match["commands"].split(",")
    ]
    grants = [who for who, command in allowed if command.endswith("/sbatch")]
    more = [command for _, command in allowed if not command.endswith("/sbatch")]
    spelled = f"{user} ALL=(%USERS) NOPASSWD: /usr/bin/sbatch"
    command = f"echo {shlex.quote(spelled)} | EDITOR=tee visudo -f /etc/sudoers.d/rollcall"
    if more:
        said = f"sudo lets {user} run {more[0]} too, without a password: sbatch alone is enough."
        return Finding("run_as", "warning", said, command)
    if not grants:
        said = f"sudo does not let {user} run sbatch as others: jobs are refused until it does."
        return Finding("run_as", "missing", said, command)
    said = f"sudo lets {user} run sbatch, and nothing else, as {', '.join(grants)[:80]}."
    return Finding("run_as", "ok", said)


def level(user: str, *, accounts: bool, operator: bool) -> Finding:
    """Return whether the service user may change jobs that run as others."""
    if operator:
        return Finding("operator", "ok", f"{user} is an operator: it may stop other users' jobs.")
    if not accounts:
        said = (
            "Slurm keeps no accounting, so there are no operators: nobody but SlurmUser could stop a"
            " job that runs as its user."
        )
        return Finding("operator", "missing", said)
    said = f"{user} is no operator: it could not stop, ask or demote a job that runs as its user."
    command = f"sacctmgr -i modify user {shlex.quote(user or 'USER')} set adminlevel=Operator"
    return Finding("operator", "missing", said, command)
