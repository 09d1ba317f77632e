"""The lab's accounting: accounts are loaded, usage is what was laid into it, a job is booked."""

from __future__ import annotations

import getpass

from tests.labs.slurm.accounting import Association
from tests.labs.slurm.lab import Lab

ME = getpass.getuser()
ACCOUNTS = (
    "Parent - 'root'",
    f"User - '{ME}':DefaultAccount='root':Fairshare=1",
    "Account - 'vision':Description='d':Organization='o':Fairshare=3:GrpTRES=gres/gpu=8",
    "Parent - 'vision'",
    f"User - '{ME}':Fairshare=1",
    "User - 'ana':Fairshare=2",
)


def test_usage_is_what_was_laid_into_it(accounting_lab: Lab) -> None:
    accounting = accounting_lab.accounting
    accounting.load(ACCOUNTS, clean=True)

    accounting.seed_usage({Association("vision", "ana"): 600, Association("vision", ME): 150.4})

    out = accounting_lab.run("sshare", "-a", "-n", "-P", "-o", "account,user,rawshares,rawusage")
    rows = [line.strip() for line in out.splitlines()]
    assert rows[1:] == [f"root|{ME}|1|0", "vision||3|750", "vision|ana|2|600", f"vision|{ME}|1|150"]


def test_a_limit_of_an_account_holds_a_job_back(accounting_lab: Lab) -> None:
    accounting_lab.accounting.load(ACCOUNTS, clean=True)

    first = accounting_lab.submit("sleep 600", "--account=vision", "--gres=gpu:8")
    second = accounting_lab.submit("sleep 600", "--account=vision", "--gres=gpu:1")

    accounting_lab.wait(lambda: accounting_lab.state(first) == "RUNNING", "the first to run")
    accounting_lab.wait(
        lambda: accounting_lab.run("squeue", "-h", "-j", second, "-o", "%r") == "AssocGrpGRES",
        "the second to wait for its account",
    )
