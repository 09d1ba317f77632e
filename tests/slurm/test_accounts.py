"""Slurm's accounts as Rollcall reads and writes them, held against sacctmgr and sshare."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import User
from apps.backends.models import Cluster, Grade, Pool
from apps.backends.port import NO_LIMIT, BackendError, SeenAccount, SeenQos
from apps.backends.services import add_cluster
from apps.quotas.accounts import keep_accounts, settle_account
from apps.quotas.models import AccountsLook, AccountValue
from apps.quotas.services import set_quota
from apps.scheduling.account_rows import account_rows, accounts_visible_to
from apps.scheduling.services import tick
from apps.tenants.models import Tenant
from apps.tenants.services import set_weight
from tests.factories import make_tenant, secret_of
from tests.labs.slurm.accounting import CLUSTER, Association
from tests.labs.slurm.lab import PATH, Lab
from tests.slurm.stage import Stage, now, options_of

ME = getpass.getuser()
TREE = (
    "Parent - 'root'",
    f"User - '{ME}':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1",
    "Account - 'org':Description='d':Organization='o':Fairshare=3",
    "Parent - 'org'",
    "Account - 'cv':Description='d':Organization='o':Fairshare=30:GrpTRES=gres/gpu=8,cpu=100",
    "Account - 'nlp':Description='d':Organization='o':Fairshare=50",
    "Account - 'odd x':Description='d':Organization='o':Fairshare=parent",
    "Parent - 'cv'",
    f"User - '{ME}':Fairshare=1",
    "User - 'ana':Fairshare=2:GrpTRES=gres/gpu=4:MaxTRESPerJob=gres/gpu=2",
    "Parent - 'nlp'",
    "User - 'bo':Fairshare=parent",
)
USAGE = {Association("cv", "ana"): 600.0, Association("nlp", "bo"): 200.0}


@pytest.fixture
def lab(accounting_lab: Lab) -> Lab:
    """The lab with this tree in it."""
    accounting_lab.accounting.load(TREE, clean=True)
    return accounting_lab


def accounts(stage: Stage) -> dict[str, SeenAccount]:
    return {one.name: one for one in stage.backend.accounts(now=now())}


def shown(lab: Lab, account: str) -> str:
    """Return an account's shares and limits as sacctmgr prints them."""
    out = lab.run(
        "sacctmgr", "-nP", "show", "assoc", f"account={account}", "user=", "format=share,grptres"
    )
    return out.split("\n")[0]


def described(lab: Lab, account: str) -> str:
    """Return an account's description as sacctmgr prints it."""
    out = lab.run("sacctmgr", "-nP", "show", "account", account, "format=account,descr")
    return out.rstrip("\n").partition("|")[2]


def describe(lab: Lab, account: str, text: str) -> None:
    """Change an account's description as an operator does."""
    lab.run("sacctmgr", "-i", "modify", "account", account, "set", f"description={text}")


def shared(lab: Lab) -> dict[str, list[str]]:
    """Return what sshare prints of each account."""
    out = lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in out]
    return {row[0]: row for row in rows if not row[1]}


def test_the_tree_is_read_as_sacctmgr_and_sshare_have_it(lab: Lab) -> None:
    lab.accounting.seed_usage(USAGE)
    found = accounts(Stage(lab, Grade.OBSERVE))

    told: dict[str, Any] = {
        name: (one.parent, one.shares, one.gpu_limit, one.users) for name, one in found.items()
    }
    assert told == {
        "root": ("", 1, None, 1),
        "org": ("root", 3, None, 0),
        "cv": ("org", 30, 8, 2),
        "nlp": ("org", 50, None, 1),
        "odd x": ("org", None, None, 0),
    }
    assert (found["cv"].raw_usage, found["nlp"].raw_usage, found["org"].raw_usage) == (
        600,
        200,
        800,
    )
    for name, row in shared(lab).items():
        one = found[name]
        assert [one.norm_shares, one.effective_usage, one.level] == [
            float(row[at]) if row[at] else None for at in (3, 6, 8)
        ]
    assert found["cv"].effective_usage == 0.75
    assert found["cv"].fair_share == max(
        float(row.split("|")[7])
        for row in lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
        if row.strip().startswith("cv|") and row.split("|")[1]
    )


def test_the_users_are_read_as_sacctmgr_and_sshare_have_them(lab: Lab) -> None:
    lab.accounting.seed_usage(USAGE)
    found = accounts(Stage(lab, Grade.OBSERVE))

    told = {
        (name, one.name): (one.shares, one.gpu_limit, one.gpus_per_job)
        for name, account in found.items()
        for one in account.people
    }
    assert told == {
        ("root", ME): (1, None, None),
        ("cv", ME): (1, None, None),
        ("cv", "ana"): (2, 4, 2),
        ("nlp", "bo"): (None, None, None),
    }
    out = lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in out]
    printed = {(row[0], row[1]): row for row in rows if row[1]}
    assert printed.keys() == told.keys()
    for (name, user), row in printed.items():
        (one,) = (one for one in found[name].people if one.name == user)
        assert [one.norm_shares, one.raw_usage, one.effective_usage, one.fair_share] == [
            float(row[at]) if row[at] else None for at in (3, 4, 6, 7)
        ]
    (ana,) = (one for one in found["cv"].people if one.name == "ana")
    assert (ana.raw_usage, ana.effective_usage) == (600, 1)


def test_a_user_with_an_association_a_partition_is_one_user(lab: Lab) -> None:
    lab.accounting.register()
    for partition, shares in (("main", 2), ("other", 3)):
        lab.run("sacctmgr", "-i", "add", "user", "cy", "account=nlp", f"partition={partition}",
                f"fairshare={shares}")  # fmt: skip

    def printed() -> list[list[str]]:
        out = lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
        rows = [[cell.strip() for cell in line.split("|")] for line in out]
        return [row for row in rows if row[:2] == ["nlp", "cy"]]

    lab.wait(lambda: len(printed()) == 2, "sshare to show both")
    nlp = accounts(Stage(lab, Grade.OBSERVE))["nlp"]

    assert [one.name for one in nlp.people].count("cy") == 1
    assert nlp.users == 2
    (cy,) = (one for one in nlp.people if one.name == "cy")
    assert (cy.shares, cy.raw_usage) == (5, 0)
    assert cy.norm_shares == pytest.approx(sum(float(row[3] or 0) for row in printed()))


def test_the_qos_are_read_as_sacctmgr_has_them(lab: Lab) -> None:
    backend = Stage(lab, Grade.OBSERVE).backend
    lab.run("sacctmgr", "-i", "add", "qos", "low", "set", "priority=5")
    try:
        lab.run(
            "sacctmgr", "-i", "add", "qos", "high", "set", "priority=10", "preempt=low",
            "preemptmode=requeue", "gracetime=90", "flags=DenyOnLimit", "grptres=gres/gpu=16,cpu=99",
            "maxtrespu=gres/gpu=8", "maxtresperjob=gres/gpu=4", "maxwall=2-00:00:00",
        )  # fmt: skip
        found = {one.name: one for one in backend.qos(now=now())}
    finally:
        lab.run("sacctmgr", "-i", "delete", "qos", "high,low")

    assert list(found) == ["high", "low", "normal"]
    assert found["high"] == SeenQos(
        "high", 10, ("DenyOnLimit",), ("low",), "requeue", 90, "cpu=99,gres/gpu=16", "gres/gpu=8",
        "gres/gpu=4", 172_800,
    )  # fmt: skip
    assert (found["low"].priority, found["low"].preempts, found["low"].longest_seconds) == (
        5,
        (),
        None,
    )
    assert [one.name for one in backend.qos(now=now())] == ["normal"]


@pytest.fixture
def boreas(lab: Lab, db: None) -> Cluster:
    """The lab as a cluster that is driven, looked at once; its accounts are tenants."""
    cluster = add_cluster(
        "boreas", kind="slurm", grade=Grade.DRIVE, now=now(), options=options_of(lab)
    )
    tick(cluster)
    make_tenant("boreas")
    for name in ("cv", "nlp", "odd x"):
        make_tenant(f"boreas/{name}")
    assert keep_accounts(cluster, now=now())
    return cluster


def weigh(path: str, weight: float, by: User) -> None:
    """Change a tenant's weight as an admin does."""
    set_weight(Tenant.objects.get(path=path), weight, by=by, now=now(), reason="grew")


def value(name: str, what: str = "shares") -> AccountValue:
    return AccountValue.objects.get(account__name=name, what=what)


def test_a_ceiling_and_a_weight_are_read_back(boreas: Cluster, lab: Lab, root: User) -> None:
    lab.accounting.register()
    client, pool = APIClient(), Pool.objects.get()
    client.default_format = "json"
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret_of(root)}")
    asked = {"guarantee": 8, "ceiling": 24, "weight": None, "reason": "paid for"}
    quota = client.put(f"/api/v1/tenants/boreas/org/cv/quotas/boreas/{pool.name}", asked)
    weight = client.put("/api/v1/tenants/boreas/org/cv/weight", {"weight": 45, "reason": "grew"})
    assert (quota.status_code, weight.status_code) == (200, 200)

    assert keep_accounts(boreas, now=now())

    assert shown(lab, "cv") == "45|cpu=100,gres/gpu=24"
    assert described(lab, "cv") == f"d [rollcall guarantee gres/gpu:{pool.name}=8 on {CLUSTER}]"
    lab.wait(lambda: shared(lab)["cv"][2] == "45", "sshare to show it")
    assert keep_accounts(boreas, now=now())
    told = client.get("/api/v1/clusters/boreas/accounts").json()
    (cv,) = [one for one in told["accounts"] if one["name"] == "cv"]
    assert (told["trouble"], cv["state"], cv["tenant"]) == ("", "in_step", "boreas/org/cv")
    assert [(one["theirs"], one["ours"], one["state"]) for one in cv["values"]] == [
        (45, 45, "in_step"), (24, 24, "in_step"), (8, 8, "in_step"),
    ]  # fmt: skip
    assert cv["theirs"]["share"] == float(shared(lab)["cv"][3])
    assert shown(lab, "nlp") == "50|"


def test_somebodys_edit_is_drift_and_is_left_alone(boreas: Cluster, lab: Lab, root: User) -> None:
    weigh("boreas/org/cv", 45, root)
    keep_accounts(boreas, now=now())
    lab.run("sacctmgr", "-i", "modify", "account", "name=cv", "set", "fairshare=5")
    at = now()
    keep_accounts(boreas, now=at)

    assert (value("cv").state, value("cv").drifted_at) == ("drifted", at)
    assert shown(lab, "cv").startswith("5|")
    (row,) = [
        one
        for one in account_rows(boreas, accounts_visible_to(root, boreas))
        if one.name == "cv"
    ]  # fmt: skip
    assert row.values[0].sentence == (
        "Somebody changed it on boreas: it has 5 shares; wanted here is 45 shares."
    )


@pytest.mark.parametrize(
    "before",
    [
        "", "the vision team, room 3 | ext. 12", "(a) {b} <c> & $x `y`; back\\slash", "Ünï öüé",
        "cv [rollcall guarantee gres/gpu:h100=4 on elsewhere]", "-x=1 +y", "x" * 400,
    ],
)  # fmt: skip
def test_a_guarantee_is_noted_behind_any_description(lab: Lab, before: str) -> None:
    describe(lab, "cv", before)
    backend, kept = Stage(lab).backend, described(lab, "cv")
    assert kept.casefold() == before.casefold()

    backend.set_account("cv", guarantees={"h100": 12, "a100": 4})
    note = f"[rollcall guarantee gres/gpu:a100=4,gres/gpu:h100=12 on {CLUSTER}]"
    assert described(lab, "cv") == (f"{kept} {note}" if kept else note)
    assert accounts(Stage(lab))["cv"].guarantees == {"h100": 12, "a100": 4}

    backend.set_account("cv", shares=31, guarantees={"h100": 0, "a100": 0})
    assert (described(lab, "cv"), accounts(Stage(lab))["cv"].guarantees) == (kept, {})
    assert shown(lab, "cv").startswith("31|")


def test_a_note_that_somebody_edits_or_deletes_is_drift(
    boreas: Cluster, lab: Lab, root: User
) -> None:
    cv, pool = Tenant.objects.get(path="boreas/org/cv"), Pool.objects.get()
    how: dict[str, Any] = {"ceiling": 8, "weight": None, "by": root, "now": now(), "reason": "paid"}
    set_quota(cv, pool, guarantee=8, **how)
    keep_accounts(boreas, now=now())
    mine = value("cv", "guarantee")
    assert (mine.state, mine.seen) == ("in_step", 8)

    describe(lab, "cv", described(lab, "cv").replace("=8", "=6"))
    keep_accounts(boreas, now=now())
    edited = value("cv", "guarantee")
    describe(lab, "cv", "the vision team")
    keep_accounts(boreas, now=now())
    deleted = value("cv", "guarantee")

    assert (edited.state, edited.seen, edited.wanted) == ("drifted", 6, 8)
    assert (deleted.state, deleted.seen, deleted.drifted_at) == ("drifted", None, edited.drifted_at)
    settle_account(boreas, "cv", keep="ours", by=root, now=now(), reason="agreed")
    keep_accounts(boreas, now=now())
    assert described(lab, "cv") == (
        f"the vision team [rollcall guarantee gres/gpu:{pool.name}=8 on {CLUSTER}]"
    )
    set_quota(cv, pool, guarantee=0, **how)
    keep_accounts(boreas, now=now())
    assert (described(lab, "cv"), value("cv", "guarantee").state) == ("the vision team", "in_step")


@pytest.mark.parametrize("grade", [Grade.OBSERVE, Grade.ADVISE])
def test_in_other_grades_nothing_is_written(
    grade: str, boreas: Cluster, lab: Lab, root: User
) -> None:
    def all_of_it() -> str:
        return lab.run("sacctmgr", "-nP", "show", "assoc") + lab.run(
            "sacctmgr", "-nP", "show", "txn", "format=action,info"
        )

    Cluster.objects.update(grade=grade)
    boreas.refresh_from_db()
    before = all_of_it()
    weigh("boreas/org/cv", 45, root)

    assert keep_accounts(boreas, now=now())

    assert all_of_it() == before
    assert (value("cv").state, value("cv").wanted) == ("waiting", 45)
    with pytest.raises(BackendError, match=f"in grade {grade}"):
        Stage(lab, grade).backend.set_account("cv", shares=45)


def test_without_slurmdbd_it_says_so_and_ticks_go_on(boreas: Cluster, lab: Lab, root: User) -> None:
    weigh("boreas/org/cv", 45, root)
    Cluster.objects.update(not_before=None)
    with lab.accounting.away():
        assert keep_accounts(boreas, now=now())
        trouble = AccountsLook.objects.get().trouble
        assert tick(boreas)
        boreas.refresh_from_db()

    assert trouble.startswith("Slurm's accounting does not answer (")
    assert trouble.endswith("Where slurmdbd runs: systemctl start slurmdbd.")
    assert boreas.trouble == ""
    assert keep_accounts(boreas, now=now())
    assert (AccountsLook.objects.get().trouble, value("cv").state) == ("", "in_step")


def test_a_name_is_never_taken_for_more_than_a_name(lab: Lab) -> None:
    lab.run("sacctmgr", "-i", "add", "account", "name=-i", "parent=org")
    backend, before = Stage(lab).backend, shown(lab, "cv")

    for name in ("cv,nlp", "cv' 'nlp", "=cv", "", "cv\nnlp", "c[v-w]", "cv|x", "'cv'"):
        with pytest.raises(BackendError, match="can only be changed by hand"):
            backend.set_account(name, shares=1)
        with pytest.raises(BackendError, match="can only be changed by hand"):
            backend.set_account(name, guarantees={"h100": 1})
    for name in ("cv set fairshare", "cv where", "; touch x", "--help", "-i -i"):
        with pytest.raises(BackendError, match="no such account"):
            backend.set_account(name, shares=1)
    backend.set_account("odd x", shares=3, gpu_limit=4)
    backend.set_account("-i", shares=2)

    assert (shown(lab, "cv"), shown(lab, "nlp")) == (before, "50|")
    assert (shown(lab, "odd x"), shown(lab, "-i")) == ("3|gres/gpu=4", "2|")
    backend.set_account("odd x", gpu_limit=NO_LIMIT)
    assert shown(lab, "odd x") == "3|"
    assert accounts(Stage(lab))["odd x"].gpu_limit is None


def test_without_the_right_it_says_what_grants_it(lab: Lab) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run commands as somebody else")
    folder: Path = lab.dir / "accounts-as-nobody"
    folder.mkdir(exist_ok=True)
    for name in ("scontrol", "sacctmgr"):
        (folder / name).write_text(
            f"#!/bin/sh\nPATH={PATH}\n"
            f'exec setpriv --reuid=nobody --regid=nogroup --clear-groups {name} "$@"\n'
        )
        (folder / name).chmod(0o755)
    backend = Stage(lab, changes={"bin": str(folder)}).backend

    with pytest.raises(BackendError, match="set adminlevel=Operator") as refusal:
        backend.set_account("cv", shares=1)

    assert not refusal.value.retry
    assert shown(lab, "cv").startswith("30|")
    lab.run("sacctmgr", "-i", "add", "user", "nobody", "account=cv", "adminlevel=Operator")
    backend.set_account("cv", shares=1)
    assert shown(lab, "cv").startswith("1|")


def test_a_slurm_without_accounts_says_what_brings_them(running_lab: Lab) -> None:
    with pytest.raises(BackendError, match="AccountingStorageType=accounting_storage/slurmdbd"):
        Stage(running_lab).backend.accounts(now=now())
