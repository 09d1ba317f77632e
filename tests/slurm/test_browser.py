"""From the form that adds a Slurm cluster to the cost of an eviction on it: a browser, curl, a slurmctld."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from apps.audit.models import Entry
from apps.backends.models import Cluster, Pool
from apps.jobs.models import Eviction, Job
from apps.ledger.prices import set_price
from apps.queues.models import ClusterPolicy, PriorityClass
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
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import SAVES

Open = Callable[..., Page]
pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE = 40.0
WHY = "the platform team has agreed to it"


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
