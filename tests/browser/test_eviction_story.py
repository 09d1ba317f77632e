"""One eviction from the preview to the CSV, with both sides looking on, in a real browser and by curl."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from apps.backends.models import Cluster, Pool
from apps.backends.worlds import SimNode, forget_world, world_of
from apps.jobs.models import Eviction, Job
from apps.jobs.services import JobSpec, submit_job
from apps.ledger.prices import set_price
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.scheduling.services import tick
from tests.factories import secret_of

Open = Callable[..., Page]
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def busy(world: SimpleNamespace) -> Iterator[Cluster]:
    """A cluster of 16 GPUs, all of them under a job of vera's that ignores the signal."""
    now = timezone.now()
    cluster = Cluster.objects.create(
        name="busy", kind="simulator", grade="drive", created_at=now, options={"world": "memory"}
    )
    pool = Pool.objects.create(cluster=cluster, name="gpu")
    world_of(cluster).add_nodes([SimNode(f"n{k}", "gpu", 8) for k in range(2)], at=now)
    set_price(pool, per_gpu_hour=Decimal("2.50"), from_at=now, by=None, now=now, reason="test")
    ClusterPolicy.objects.create(
        cluster=cluster, preemption="priority", mode="checkpoint", grace_seconds=600
    )
    PriorityClass.objects.create(name="urgent", priority=100)
    submit_job(
        JobSpec(
            tenant=world.tenants["vision"], cluster=cluster, pool=pool, name="secret-sweep",
            size=2, gpus_per_member=8, limit_seconds=36_000,
            workload={"kind": "simulated", "checkpoint_takes": "never"},
        ),
        by=world.people["vera"], now=now,
    )  # fmt: skip
    again(cluster)
    yield cluster
    forget_world(cluster)


def again(cluster: Cluster) -> None:
    """Tick now, whenever the last one was."""
    Cluster.objects.filter(pk=cluster.pk).update(not_before=None)
    cluster.refresh_from_db()
    assert tick(cluster)


def fill(page: Page, name: str) -> None:
    for field, value in (("name", name), ("size", "2"), ("gpus_per_member", "8"), ("limit", "4h")):
        page.locator(f"#id_{field}").fill(value)
    for field, label in (("tenant", "nlp"), ("pool", "busy / gpu"), ("priority_class", "urgent")):
        page.locator(f"#id_{field}").select_option(label=label)


def curl(url: str, token: str, body: dict[str, Any], *, method: str = "POST") -> Any:
    """Send something as an automation does."""
    command = shutil.which("curl")
    assert command, "curl is not installed"
    done = subprocess.run(
        [command, "-sS", "-X", method, "--max-time", "20", "-H", f"Authorization: Bearer {token}",
         "-H", "Content-Type: application/json", "-d", json.dumps(body), url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def rows_of(page: Page) -> list[dict[str, str]]:
    """Return the rows of the CSV that the Evictions page links to."""
    page.goto("/evictions/")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    return list(csv.DictReader(io.StringIO(download.value.path().read_text("utf-8-sig"))))


def test_an_eviction_from_its_preview_to_the_row_in_the_csv(
    open_page: Open, busy: Cluster, world: SimpleNamespace, live_server: Any
) -> None:
    victim = Job.objects.get(name="secret-sweep")
    lead = open_page("/jobs/new/", who="alice")
    owner = open_page(f"/jobs/{victim.pk}/", who="vera")

    fill(lead, "urgent-gang")
    lead.get_by_role("button", name="Preview").click()
    preview = lead.locator("#preview")
    expect(lead.locator(".answer")).to_contain_text("It would evict 1 job, and likely start by")
    expect(preview).to_contain_text("a job of vision")
    expect(preview).not_to_contain_text("secret-sweep")
    assert (Job.objects.count(), Eviction.objects.count()) == (1, 0)

    lead.get_by_role("button", name="Submit 1 job").click()
    lead.wait_for_url("**/jobs/*/")
    again(busy)
    lead.reload()
    owner.reload()
    expect(lead.locator(".page-header")).to_contain_text("Waits for a job of vision to leave")
    expect(owner.locator("main .countdown").first).to_contain_text("left")
    expect(owner.locator("main")).not_to_contain_text("urgent-gang")

    told = curl(
        f"{live_server.url}/api/v1/jobs/{victim.pk}/confirm-checkpoint",
        secret_of(world.people["vera"]),
        {"attempt": 1},
    )
    assert told["confirmed_at"] is not None
    again(busy)
    again(busy)
    record = Eviction.objects.get()
    assert record.outcome == "checkpointed"
    assert Job.objects.get(name="urgent-gang").state == "RUNNING"

    lead.reload()
    expect(lead.locator("h1")).to_contain_text("RUNNING", ignore_case=True)
    lead.goto(f"/evictions/{record.pk}/")
    expect(lead.locator(".answer")).to_contain_text("a job of vision was evicted", ignore_case=True)
    expect(lead.locator("main")).not_to_contain_text("secret-sweep")
    owner.goto(f"/evictions/{record.pk}/")
    expect(owner.locator(".answer")).to_contain_text("secret-sweep was evicted")
    expect(owner.locator("main")).to_contain_text("a job of nlp")
    expect(owner.locator("main")).not_to_contain_text("urgent-gang")

    (gained,), (lost,) = rows_of(lead), rows_of(owner)
    assert (gained["victim"], gained["beneficiary"]) == ("a job of vision", "urgent-gang")
    assert (lost["victim"], lost["beneficiary"]) == ("secret-sweep", "a job of nlp")
    assert gained["outcome"] == lost["outcome"] == "checkpointed"
