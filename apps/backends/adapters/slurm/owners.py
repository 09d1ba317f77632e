"""As whom a job runs on Slurm: as the service user, or as the user who submitted it to Rollcall."""

from __future__ import annotations

import re

from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.ways import Refused

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


def owner_of(options: Options, user: str) -> str:
    """Return the user a job is to run as; empty: the service user.

    :raises Refused: if there is none, or one as whom nothing of Rollcall's ever runs.
    """
    if options.run_as == "service":
        return ""
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
