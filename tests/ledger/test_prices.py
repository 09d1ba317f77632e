"""Setting a price: validated, written down, and followed by reports of the past."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.common.errors import Invalid
from apps.ledger.models import Price
from apps.ledger.prices import set_price
from apps.ledger.rollup import roll_up, tally, tally_raw
from apps.ledger.selectors import five_parts
from tests.ledger.build import HOUR, World


def put(world: World, amount: str, *, at: float | None = None) -> Price:
    return set_price(
        world.pool,
        per_gpu_hour=Decimal(amount),
        from_at=None if at is None else world.when(at),
        by=None,
        now=world.start,
        reason="the new contract",
    )


@pytest.mark.parametrize("amount", ["-1", "NaN", "Infinity", "1000001", "0.0000001"])
def test_a_price_that_cannot_be_is_refused_and_nothing_is_written(
    world: World, amount: str
) -> None:
    with pytest.raises(Invalid) as refused:
        put(world, amount)

    assert refused.value.field == "per_gpu_hour"
    assert not Price.objects.exists()
    assert not Entry.objects.exists()


def test_an_instant_without_a_zone_is_refused(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        set_price(
            world.pool,
            per_gpu_hour=Decimal(1),
            from_at=world.start.replace(tzinfo=None),
            by=None,
            now=world.start,
        )

    assert refused.value.field == "from_at"


def test_a_price_is_written_down_with_who_and_why(world: World) -> None:
    put(world, "2.50")
    put(world, "2.50")
    put(world, "3")

    first, second = Entry.objects.order_by("id")
    assert first.verb == "priced"
    assert first.reason == "the new contract"
    assert first.changes["per_gpu_hour"] == [None, "2.5"]
    assert second.changes["per_gpu_hour"] == ["2.5", "3"]
    assert Price.objects.get().micros_per_gpu_hour == 3_000_000


def test_a_price_in_the_past_changes_past_reports(world: World) -> None:
    put(world, "2")
    world.run(world.job(gpus=5), [world.node(8)], at=0)
    roll_up(world.cluster, until_us=world.at(6 * HOUR))
    world.cluster.observed_at = world.when(6 * HOUR)

    put(world, "4", at=2.5 * HOUR + 7)
    put(world, "3", at=1 * HOUR)
    put(world, "1", at=5 * HOUR)

    whole = world.at(0), world.at(6 * HOUR)
    assert tally(world.cluster, *whole) == tally_raw(world.cluster, *whole)
    report = five_parts([world.cluster], *whole)
    seconds = 2 * HOUR + 3 * (1.5 * HOUR + 7) + 4 * (2.5 * HOUR - 7) + HOUR
    assert float(report.amount.money) == pytest.approx(8 * seconds / HOUR)
    assert report.adds_up()


def test_an_operator_sets_a_price_in_the_admin(world: World, client: Client) -> None:
    client.force_login(User.objects.create_superuser("root", password="x"))
    form: dict[str, Any] = {
        "pool": world.pool.pk,
        "per_gpu_hour": "2.5",
        "from_at_0": "",
        "from_at": "",
        "reason": "the new contract",
    }

    refused = client.post("/admin/ledger/price/add/", form | {"reason": "short"})
    accepted = client.post("/admin/ledger/price/add/", form)

    assert refused.status_code == 200
    assert accepted.status_code == 302
    assert Price.objects.get().micros_per_gpu_hour == 2_500_000
    assert Entry.objects.get().actor == User.objects.get()


@pytest.mark.parametrize("table", ["interval", "rollup", "usageaccount", "openingbalance", "price"])
def test_facts_are_read_only_in_the_admin(world: World, client: Client, table: str) -> None:
    client.force_login(User.objects.create_superuser("root", password="x"))
    world.price(2.5)
    world.run(world.job(), [world.node(8)], at=0)
    roll_up(world.cluster, until_us=world.at(2 * HOUR))

    shown = client.get(f"/admin/ledger/{table}/")
    added = client.get(f"/admin/ledger/{table}/add/")

    assert shown.status_code == 200
    assert added.status_code == (200 if table == "price" else 403)
