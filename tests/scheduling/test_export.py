"""A stored tick as a scenario file: played, it starts, evicts and holds the same again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from apps.backends.kinds import backend_of
from apps.backends.worlds import forget_world
from apps.engine import codec
from apps.jobs.models import Job
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.scheduling.leases import claim, renew
from apps.scheduling.models import Tick
from apps.scheduling.scenario import Answer, Scenario, failures, play, read
from apps.scheduling.scenario.answer import answer_of
from apps.scheduling.scenario.export import Exported, apart, export
from apps.scheduling.scenario.parse import read_text
from apps.scheduling.scenario.setup import set_up
from apps.scheduling.scenario.toml import value
from apps.scheduling.services import pass_once
from apps.tenants.models import Tenant
from apps.tenants.services import pause_tenant
from tests.factories import make_job
from tests.scheduling.playground import Playground

SCENARIOS = Path(__file__).parents[1] / "engine" / "scenarios"
# Starts, gangs, racks, trees, gates, classes, quotas, usage, and evictions of each kind.
PLAYED = (
    "archived-tenant", "ceilings-count-without-the-victims", "class-below-zero", "demoted-leaves-first",
    "depends-on-all", "golden-multifactor", "hold-and-release", "inner-tenant-with-own-jobs",
    "lent-and-borrowed", "never-fits", "nvlink-domains", "pack-fewest-nodes", "parents-guarantee",
    "placement-spread", "promised-room-is-not-backfilled", "reserved-for-until", "sibling-gives-not-the-neighbour",
    "shrinks-by-one-member", "usage-decides-the-order", "victims-of-one-rack", "weight-zero",
    "what-stays-is-within-the-guarantee",
)  # fmt: skip

NAMED = """
title = "Names that nobody else may read"
[policy]
preemption = "reclaim"
[[pools]]
name = "h100-secret"
[[nodes]]
name = "zeus[08-11]"
pool = "h100-secret"
gpus = 4
rack = "cellar"
[[tenants]]
name = "moonshot"
quota."h100-secret" = { guarantee = 4, ceiling = 12, weight = 2.5 }
[[tenants]]
name = "applied"
parent = "moonshot"
usage = 12.125
[[jobs]]
name = "gpt-next"
tenant = "applied"
pool = "h100-secret"
size = 8
state = "running"
started = "-90s"
limit = "1h"
on = ["zeus09", "zeus09", "zeus09", "zeus09", "zeus10", "zeus10", "zeus10", "zeus10"]
[[jobs]]
name = "whisper"
tenant = "moonshot"
pool = "h100-secret"
size = 2
priority = 7
submitted = "-30s"
[[jobs]]
name = "too-much"
tenant = "moonshot"
pool = "h100-secret"
size = 6
depends_on = ["gpt-next"]
"""
THEIRS = ("h100", "secret", "zeus", "cellar", "moonshot", "applied", "gpt", "whisper", "too-much")


@dataclass(frozen=True, slots=True)
class Ticked:
    """What came of a scenario's first tick, and the tick as a file."""

    answer: Answer
    exported: Exported


def tick_once(scenario: Scenario, *, keep_names: bool) -> Ticked:
    """Tick a scenario as production would and export the tick; leave nothing behind."""
    with transaction.atomic():
        point = transaction.savepoint()
        stage = set_up(scenario)
        lease = claim(stage.cluster, holder="test")
        assert lease is not None
        renew(lease, clock_now=scenario.now)
        stage.cluster.clock_now = scenario.now
        tick = pass_once(stage.cluster, backend_of(stage.cluster), lease, now=scenario.now)
        assert tick is not None
        found = Ticked(answer_of(stage, tick), export(tick, keep_names=keep_names))
        forget_world(stage.cluster)
        transaction.savepoint_rollback(point)
    return found


def decided(answer: Answer) -> dict[str, Any]:
    """Return what a decision was: where who starts, who leaves for whom, who holds, who waits why."""
    return {
        "starts": [(row["job"], row["members"]) for row in answer["starts"]],
        "reserves": [(row["job"], row["members"]) for row in answer["reserves"]],
        "evictions": [(e["job"], e["for"], e["mode"], e["rule"]) for e in answer["evictions"]],
        "order": answer["order"],
        "terms": {name: job["terms"] for name, job in answer["jobs"].items() if job["terms"]},
        "reasons": {name: job["reason"] for name, job in answer["jobs"].items() if job["reason"]},
        "pools": answer["pools"],
    }


def exported_from(tick: Tick, *arguments: str) -> tuple[str, str]:
    """Return what the command writes to stdout and to stderr."""
    out, err = StringIO(), StringIO()
    call_command("export_scenario", str(tick.pk), *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.mark.django_db
@pytest.mark.parametrize("name", PLAYED)
def test_an_exported_tick_is_decided_the_same_again(name: str) -> None:
    before = tick_once(read(SCENARIOS / f"{name}.toml"), keep_names=True)

    again = play(read_text(before.exported.text, "exported.toml"))

    assert before.exported.left_out == []
    assert decided(again.first) == decided(before.answer)
    for tenant, stands in before.answer["tenants"].items():
        assert again.first["tenants"][tenant]["factor"] == stands["factor"]
        assert again.first["tenants"][tenant]["pools"] == stands["pools"]


@pytest.mark.django_db
@pytest.mark.parametrize("name", [*PLAYED[:6], "victims-of-one-rack"])
def test_what_the_tick_answered_is_expected_and_holds_under_other_names(name: str) -> None:
    before = tick_once(read(SCENARIOS / f"{name}.toml"), keep_names=False)
    scenario = read_text(before.exported.text, "exported.toml")

    again = play(scenario)

    assert failures(scenario, again) == []
    assert len(scenario.expect["starts"]) == len(before.answer["starts"])
    assert len(scenario.expect["evicts"]) == len(before.answer["evictions"])
    codes = sorted(j["reason"]["code"] for j in before.answer["jobs"].values() if j["reason"])
    assert sorted(scenario.expect["waits"].values()) == codes
    assert len(scenario.expect["order"]) == len(before.answer["order"])


@pytest.mark.django_db
def test_replaced_names_tell_nothing_and_kept_ones_all() -> None:
    scenario = read_text(NAMED, "named.toml")
    hidden = tick_once(scenario, keep_names=False).exported.text
    named = tick_once(scenario, keep_names=True).exported.text

    assert [word for word in THEIRS if word in hidden.lower()] == []
    assert "n[1-4]" in hidden
    kept = read_text(named, "kept.toml")
    assert [node["name"] for node in kept.nodes] == [["zeus08"], ["zeus09"], ["zeus10"], ["zeus11"]]
    assert kept.tenants[0]["quota"] == scenario.tenants[0]["quota"]
    assert kept.tenants[1]["usage"] == 12.125
    assert [job.name for job in kept.jobs] == ["gpt-next", "whisper", "too-much"]
    assert kept.jobs[0].started == scenario.jobs[0].started
    assert kept.jobs[2].depends_on == ["gpt-next"]
    assert failures(kept, play(kept)) == []


@pytest.mark.django_db
def test_the_highest_class_counts_though_no_job_of_the_tick_has_it(
    play: Playground, vision: Tenant
) -> None:
    half = PriorityClass.objects.create(name="half", priority=50)
    PriorityClass.objects.create(name="whole", priority=100)
    make_job(vision, play.pool, size=1, priority_class=half)
    tick = play.tick(0)

    exported = read_text(exported_from(tick)[0], "exported.toml")

    assert [job.values["priority"] for job in exported.events[0].value] == [100]


@pytest.mark.django_db
def test_a_tenant_that_is_paused_is_paused_in_the_file(play: Playground, vision: Tenant) -> None:
    make_job(vision, play.pool, size=1)
    pause_tenant(vision, by=None, now=play.at(0))
    tick = play.tick(0)

    exported = read_text(exported_from(tick)[0], "exported.toml")

    assert [(event.what, event.value) for event in exported.events] == [("pause", "t1")]
    assert exported.expect["waits"] == {"j1": "paused"}


@pytest.mark.django_db
def test_what_a_file_cannot_say_is_told_in_it_and_on_stderr(
    play: Playground, vision: Tenant
) -> None:
    urgent = PriorityClass.objects.create(name="urgent", priority=100)
    ClusterPolicy.objects.create(
        cluster=play.cluster, preemption="priority", mode="checkpoint", grace_seconds=300
    )
    stubborn = {"kind": "simulated", "checkpoint_takes": "never"}
    make_job(vision, play.pool, size=6, workload=stubborn, limit_seconds=36_000)
    play.tick(0)
    make_job(vision, play.pool, size=8, minutes=1, priority_class=urgent, limit_seconds=3_600)
    play.tick(60)
    tick = play.tick(90)

    text, warned = exported_from(tick)

    told = [
        "1 reservation that stood is left out",
        "1 promise of room that others were leaving is left out",
        "1 job that was asked to leave is given as one that was not",
    ]
    assert [f"# Other than in the tick: {one}." in text.splitlines() for one in told] == [True] * 3
    assert warned.splitlines() == [
        "The plan may differ when it is played:", *(f"  {one}" for one in told)
    ]  # fmt: skip
    scenario = read_text(text, "exported.toml")
    assert scenario.expect["waits"] == {"j2": "leaving"}
    assert scenario.expect["reserves"] == ["j2"]
    assert scenario.expect["evicts"] == []


@pytest.mark.django_db
def test_nothing_is_warned_of_where_nothing_is_left_out(play: Playground, vision: Tenant) -> None:
    make_job(vision, play.pool, size=1)
    tick = play.tick(0)

    text, warned = exported_from(tick)

    assert warned == ""
    assert "Other than" not in text


@pytest.mark.django_db
def test_foreign_work_is_taken_off_its_node_and_told(play: Playground, vision: Tenant) -> None:
    make_job(vision, play.pool, size=4)
    tick = play.tick(0)
    snapshot, policy = codec.decode_snapshot(bytes(tick.snapshot or b""))
    nodes = replace(snapshot.nodes, foreign=np.array([3, 4]))
    tick.snapshot = codec.encode_snapshot(replace(snapshot, nodes=nodes), policy)
    tick.save()

    found = export(tick)

    assert found.left_out == ["7 GPUs used by work that is not ours are taken off their nodes"]
    exported = read_text(found.text, "exported.toml")
    assert [(node["name"], node["gpus"]) for node in exported.nodes] == [(["n1"], 1)]


@pytest.mark.django_db
def test_who_waits_for_a_job_that_failed_waits_for_another(
    play: Playground, vision: Tenant
) -> None:
    failed, runs = make_job(vision, play.pool, size=1), make_job(vision, play.pool, size=1)
    play.tick(0)
    Job.objects.filter(pk=failed.pk).update(state="FAILED")
    after = make_job(vision, play.pool, size=1)
    after.depends_on.add(failed)
    tick = play.tick(30)
    snapshot, policy = codec.decode_snapshot(bytes(tick.snapshot or b""))
    assert snapshot.running.id.tolist()[-1] == runs.pk
    only = {name: column[:0] for name, column in _columns(snapshot.running).items()}
    gone = replace(snapshot.running, **only, member_offsets=np.zeros(1, dtype=np.int64))
    alone = Tick(pk=tick.pk, cluster=tick.cluster, plan=tick.plan)
    alone.snapshot = codec.encode_snapshot(replace(snapshot, running=gone), policy)

    with_others, without = export(tick), export(alone)

    assert read_text(with_others.text, "x.toml").jobs[-1].depends_on != []
    assert read_text(without.text, "x.toml").jobs[-1].held is True
    assert without.left_out == ["1 waiting for what is not in the tick: given as held"]


def _columns(table: Any) -> dict[str, Any]:
    return {name: getattr(table, name) for name in table.__slots__ if name != "member_offsets"}


@pytest.mark.django_db
def test_a_tick_that_is_not_there_or_was_thinned_out_is_an_error(
    play: Playground, vision: Tenant
) -> None:
    tick = play.tick(0)
    Tick.objects.filter(pk=tick.pk).update(snapshot=None)

    with pytest.raises(CommandError, match=f"Tick {tick.pk} keeps no snapshot any more"):
        exported_from(tick)
    with pytest.raises(CommandError, match=f"There is no tick {tick.pk + 1}"):
        call_command("export_scenario", str(tick.pk + 1))
    with pytest.raises(CommandError, match="invalid int value: 'first'"):
        call_command("export_scenario", "first")

    Tick.objects.filter(pk=tick.pk).update(snapshot=b"none of ours")
    with pytest.raises(CommandError, match=f"Tick {tick.pk} cannot be read"):
        exported_from(tick)


def test_names_that_occur_twice_are_told_apart_and_keep_their_order() -> None:
    assert apart(["n1", "n1", "n10", "n1-a", "root"]) == ["n1", "n1!2", "n10", "n1-a", "root!2"]
    assert sorted(["n1-a", "n10", "n1!2", "n1"]) == ["n1", "n1!2", "n1-a", "n10"]


@pytest.mark.parametrize(
    "name", ['say "no"', "back\\slash", "tab\there", "line\nbreak", "d\x7fl", "ü😀"]
)
def test_any_name_is_written_as_toml_reads_it(name: str) -> None:
    text = f"title = {value(name)}\n[[pools]]\nname = {value(name)}"

    assert read_text(text, "x.toml").pools[0]["name"] == name
