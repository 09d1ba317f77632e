"""What people do to a Slurm cluster by a browser and curl, as a real slurmctld and slurmdbd see it.

From the form that adds it to the cost of an eviction on it; a guarantee and a weight from the form
to sacctmgr and sshare, and back as drift.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from apps.audit.models import Entry
from apps.backends.models import Cluster, Grade, Pool
from apps.backends.services import add_cluster
from apps.jobs.models import Eviction, Job
from apps.ledger.prices import set_price
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.quotas.accounts import keep_accounts
from apps.quotas.models import AccountsLook
from apps.scheduling.services import tick
from tests.browser.conftest import (  # noqa: F401  fixtures
    as_user,
    browser,
    make_job,
    now,
    open_page,
    world,
)
from tests.browser.test_eviction_story import curl
from tests.factories import secret_of
from tests.labs.slurm.accounting import CLUSTER
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import SAVES, options_of

Open = Callable[..., Page]
pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE = 40.0
WHY = "the platform team has agreed to it"
ME = getpass.getuser()


def again(cluster: Cluster) -> None:
    """Tick now, whenever the last one was."""
    Cluster.objects.filter(pk=cluster.pk).update(not_before=None, lease_until=None)
    cluster.refresh_from_db()
    assert tick(cluster)


def until(cluster: Cluster, so: Callable[[], bool], what: str) -> None:
    """Tick until something is so."""
    end = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < end, f"not {what}: {cluster.trouble}"
        again(cluster)
        time.sleep(0.3)


def state_of(name: str) -> str:
    return Job.objects.get(name=name).state


def add(page: Page, lab: Lab) -> Cluster:
    """Add the lab as an admin does: what works is asked before anything is saved."""
    page.get_by_role("link", name="Add a cluster").click()
    page.locator("#id_name").fill("boreas")
    for option, value in (
        ("conf", str(lab.conf)), ("partition", "mian"), ("directory", str(lab.dir / "jobs")),
        ("settle_seconds", "0"), ("accounts", "nlp = language"),
    ):  # fmt: skip
        page.locator(f"[name='options.{option}']").fill(value)
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".answer")).to_contain_text("missing")
    expect(page.locator(".findings")).to_contain_text("There is no partition mian")
    assert not Cluster.objects.filter(name="boreas").exists()

    page.locator("[name='options.partition']").fill("main")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator(".answer")).to_contain_text("Nothing is missing")
    page.get_by_role("button", name="Add 1 cluster").click()
    page.wait_for_url("**/clusters/boreas/**")
    expect(page.locator(".findings")).to_contain_text("slurmctld answers")
    return Cluster.objects.get(name="boreas")


def drive(page: Page, cluster: Cluster) -> None:
    """Raise the grade, with a reason."""
    page.goto(f"/clusters/{cluster.name}/")
    page.get_by_role("link", name="Change the grade").click()
    page.locator("input[value=drive]").check()
    page.locator("#id_reason").fill(WHY)
    page.get_by_role("button", name="Change the grade").click()
    page.wait_for_url("**/clusters/boreas/")
    expect(page.locator("main")).to_contain_text("boreas is driven from now on")
    assert Entry.objects.get(verb="changed").reason == WHY


def test_a_cluster_is_added_watched_and_driven_and_a_gang_on_it_evicted(
    lab: Lab,
    open_page: Open,  # noqa: F811  the fixture
    world: SimpleNamespace,  # noqa: F811  the fixture
    live_server: Any,
) -> None:
    theirs = lab.run("sbatch", "--parsable", "-o", "/dev/null", "-J", "somebody's", "-N", "2",
                     "--gres=gpu:h100:8", "-t", "30", "--wrap", "sleep 600").strip()  # fmt: skip
    lab.run("sbatch", "-o", "/dev/null", "--array=1-99", "--gres=gpu:h100:8", "-t", "5",
            "--wrap", "sleep 600")  # fmt: skip
    lab.wait(lambda: len(lab.jobs()) == 5, "foreign work to fill it")

    # Watched: its pages fill from what others run.
    admin = open_page("/clusters/", who="admin")
    cluster = add(admin, lab)
    again(cluster)
    admin.goto("/clusters/boreas/")
    expect(admin.locator(".answer")).to_contain_text("40 of 40 GPUs are up")
    expect(admin.locator("#rows")).to_contain_text(f"Slurm job {theirs}")
    admin.goto("/queue/?cluster=boreas")
    expect(admin.locator("#rows, main").first).to_contain_text("_[4-99]")
    assert len(lab.jobs()) == 5

    # Driven, by a reason; others' work has gone.
    lab.clear()
    again(cluster)
    drive(admin, cluster)
    pool = Pool.objects.get(cluster=cluster)
    set_price(pool, per_gpu_hour=Decimal("2.50"), from_at=timezone.now(), by=None,
              now=timezone.now(), reason="test")  # fmt: skip
    ClusterPolicy.objects.create(
        cluster=cluster, preemption="priority", mode="checkpoint", grace_seconds=60,
        min_runtime_seconds=0, cooldown_seconds=0,
    )  # fmt: skip
    PriorityClass.objects.create(name="urgent", priority=100)

    # A lead submits a gang by form, and sees it start.
    lead = open_page("/jobs/new/", who="alice")
    for field, value in (("name", "by-form"), ("size", "4"), ("gpus_per_member", "8"),
                         ("limit", "1h"), ("script", SAVES["script"])):  # fmt: skip
        lead.locator(f"#id_{field}").fill(value)
    for field, label in (
        ("tenant", "nlp"),
        ("pool", "boreas / h100"),
        ("checkpoint_signal", "USR1"),
    ):
        lead.locator(f"#id_{field}").select_option(label=label)
    lead.get_by_role("button", name="Submit 1 job").click()
    lead.wait_for_url("**/jobs/*/")
    until(cluster, lambda: state_of("by-form") == "RUNNING", "running")
    lead.reload()
    expect(lead.locator("h1")).to_contain_text("running", ignore_case=True)

    # Another comes by curl; the first saves its work, exits 75 and makes way.
    told = curl(
        f"{live_server.url}/api/v1/jobs",
        secret_of(world.people["alice"]),
        {
            "name": "by-curl", "tenant": "nlp", "cluster": "boreas", "pool": "h100", "size": 4,
            "gpus_per_member": 8, "limit_seconds": 3_600, "priority_class": "urgent",
            "workload": SAVES,
        },
    )  # fmt: skip
    until(cluster, lambda: state_of("by-curl") == "RUNNING", "running in its place")
    record = Eviction.objects.get()
    assert (record.outcome, record.beneficiary_id) == ("checkpointed", told["id"])

    # What it was, and what it cost.
    lead.reload()
    expect(lead.locator("h1")).to_contain_text("attempt 2")
    lead.goto(f"/evictions/{record.pk}/")
    expect(lead.locator(".answer")).to_contain_text("by-form was evicted")
    lead.goto("/evictions/?cluster=boreas")
    row = lead.locator("#rows tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("$")
    lead.goto(f"/jobs/{told['id']}/waterfall/")
    expect(lead.locator(".answer")).to_contain_text("GPU-s")
    lead.goto("/idle/?cluster=boreas")
    expect(lead.locator(".answer")).to_contain_text("$")


TREE = (
    "Parent - 'root'",
    f"User - '{ME}':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1",
    "Account - 'org':Description='d':Organization='o':Fairshare=1",
    "Parent - 'org'",
    "Account - 'language':Description='room 3':Organization='o':Fairshare=30:GrpTRES=gres/gpu=8",
    "Account - 'cv':Description='d':Organization='o':Fairshare=50",
)


@pytest.fixture
def kept_lab(accounting_lab: Lab) -> Lab:
    """A lab with accounts, and this tree in them; slurmctld is told of changes."""
    accounting_lab.accounting.load(TREE, clean=True)
    accounting_lab.accounting.register()
    return accounting_lab


@pytest.fixture
def boreas(kept_lab: Lab, world: SimpleNamespace) -> Cluster:  # noqa: F811  the fixture
    """The lab, driven: nlp and vision, of weight 1 each, submit to its two accounts."""
    options = options_of(kept_lab, accounts={"nlp": "language", "vision": "cv"})
    cluster = add_cluster("boreas", kind="slurm", grade=Grade.DRIVE, now=timezone.now(),
                          options=options)  # fmt: skip
    tick(cluster)
    keep(cluster)
    return cluster


def keep(cluster: Cluster) -> None:
    """Do what a worker does each minute."""
    assert keep_accounts(cluster, now=timezone.now())
    assert AccountsLook.objects.get(cluster=cluster).trouble == ""


def there(lab: Lab) -> tuple[str, str, str]:
    """Return the account's shares, limits and description as sacctmgr prints them."""
    shares = lab.run("sacctmgr", "-nP", "show", "assoc", "account=language", "user=",
                     "format=share,grptres").strip()  # fmt: skip
    described = lab.run("sacctmgr", "-nP", "show", "account", "language", "format=descr").strip()
    share, limits = shares.split("|")
    return share, limits, described


def raw_shares(lab: Lab) -> str:
    """Return the account's shares as sshare prints them."""
    out = lab.run("sshare", "-a", "-l", "-n", "-P").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in out]
    return next(row[2] for row in rows if row[:2] == ["language", ""])


def noted(count: int) -> str:
    return f"room 3 [rollcall guarantee gres/gpu:h100={count} on {CLUSTER}]"


def fill(page: Page, **values: str) -> None:
    for name, value in values.items():
        page.locator(f"#id_{name}").fill(value)


def row_of(page: Page) -> Any:
    """Return the account's row of the page *Accounts*."""
    page.goto("/clusters/boreas/accounts/")
    return page.locator("tr", has=page.locator("th", has_text="language"))


def test_a_guarantee_and_a_weight_are_read_back_and_somebodys_edit_is_drift(
    kept_lab: Lab,
    boreas: Cluster,
    open_page: Open,  # noqa: F811  the fixture
    world: SimpleNamespace,  # noqa: F811  the fixture
    live_server: Any,
) -> None:
    lab = kept_lab
    # By form: what it writes is said before, and nothing is changed by that.
    page = open_page("/clusters/boreas/accounts/", who="admin")
    row_of(page).get_by_role("link", name="Change its quota on h100").click()
    expect(page.locator("#preview")).to_contain_text("boreas has 30 shares")
    fill(page, guarantee="12", ceiling="24", weight="2")
    page.get_by_role("button", name="Preview").click()
    for words in ("Fairshare 30 → 100", "GrpTRES=gres/gpu 8 → 24", "guarantee of h100 none → 12"):
        expect(page.locator("#preview")).to_contain_text(words)
    keep(boreas)
    assert there(lab) == ("30", "gres/gpu=8", "room 3")

    fill(page, reason=WHY)
    page.get_by_role("button", name="Save 1 quota").click()
    page.wait_for_url("**/clusters/boreas/accounts/")
    expect(page.locator("main")).to_contain_text("guarantee 0 → 12")
    expect(row_of(page)).to_contain_text("it is written within a minute")
    keep(boreas)
    assert there(lab) == ("100", "gres/gpu=24", noted(12))
    lab.wait(lambda: raw_shares(lab) == "100", "sshare to show the shares")
    expect(row_of(page)).to_contain_text("in step")
    assert Entry.objects.filter(reason=WHY, actor=world.people["admin"]).count() == 2

    # By the API.
    address, token = f"{live_server.url}/api/v1/tenants/nlp", secret_of(world.people["admin"])
    asked = {"guarantee": 16, "ceiling": 24, "weight": None, "reason": WHY}
    curl(f"{address}/quotas/boreas/h100", token, asked, method="PUT")
    curl(f"{address}/weight", token, {"weight": 1.5, "reason": WHY}, method="PUT")
    keep(boreas)
    assert there(lab) == ("75", "gres/gpu=24", noted(16))
    lab.wait(lambda: raw_shares(lab) == "75", "sshare to show the shares")

    # Somebody edits it in Slurm: shown with both numbers, and left alone until it is decided on.
    lab.run("sacctmgr", "-i", "modify", "account", "language", "set", "fairshare=5",
            f"description={noted(4)}")  # fmt: skip
    for _ in range(2):
        keep(boreas)
    assert there(lab) == ("5", "gres/gpu=24", noted(4))
    row = row_of(page)
    for words in (
        "drifted",
        "it has 5 shares; wanted here is 75 shares.",
        "it has a guarantee of 4 noted for h100; wanted here is a guarantee of 16 noted for h100.",
    ):
        expect(row).to_contain_text(words)
    row.get_by_role("link", name="Decide on language").click()
    expect(page.locator("main")).to_contain_text("wanted here is a guarantee of 16")
    page.locator("input[value=ours]").check()
    fill(page, reason=WHY)
    page.get_by_role("button", name="Decide on 1 account").click()
    page.wait_for_url("**/clusters/boreas/accounts/")
    keep(boreas)
    assert there(lab) == ("75", "gres/gpu=24", noted(16))
    lab.wait(lambda: raw_shares(lab) == "75", "sshare to show the shares")
    expect(row_of(page)).to_contain_text("in step")
