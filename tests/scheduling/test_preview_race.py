"""A tick between two reads of a preview, and what it would say without reading as of one instant."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Thread
from typing import Any

import pytest
from django.db import connections

from apps.accounts.models import User
from apps.jobs.specs import JobSpec
from apps.scheduling import snapshot
from apps.scheduling.preview import Preview, preview
from apps.tenants.models import Tenant
from tests.factories import make_job
from tests.scheduling.playground import Playground

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def torn(play: Playground, vision: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tick start a gang on all GPUs, between a preview's look at what runs and what waits."""
    play.tick(0)
    make_job(vision, play.pool, name="first", size=8, limit_seconds=600)
    look = snapshot.alive_on
    ticked: list[None] = []

    def tick() -> None:
        try:
            play.tick(10)
        finally:
            connections.close_all()

    def look_and_tick(*given: Any) -> Any:
        found = look(*given)
        if not ticked:
            ticked.append(None)
            thread = Thread(target=tick)
            thread.start()
            thread.join(60)
        return found

    monkeypatch.setattr(snapshot, "alive_on", look_and_tick)


def ask(play: Playground, vision: Tenant, root: User) -> Preview:
    """Preview a gang of eight, all GPUs there are."""
    wanted = JobSpec(
        tenant=vision, cluster=play.cluster, pool=play.pool, name="try", size=8,
        gpus_per_member=1, limit_seconds=600,
    )  # fmt: skip
    return preview(wanted, by=root, now=play.at(10))


@pytest.mark.usefixtures("torn")
def test_a_tick_meanwhile_makes_no_room_that_is_not_there(
    play: Playground, vision: Tenant, root: User
) -> None:
    found = ask(play, vision, root)

    assert not found.starts
    assert (found.facts["code"], found.position, found.waiting) == ("capacity", 2, 2)


@pytest.mark.usefixtures("torn")
def test_read_at_several_instants_a_gang_that_starts_is_on_neither_side(
    play: Playground, vision: Tenant, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.scheduling.preview.at_one_instant", nullcontext)

    found = ask(play, vision, root)

    assert found.starts
    assert found.waiting == 1
