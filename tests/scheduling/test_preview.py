"""What a preview says is what the tick then does, and nothing is written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps as installed

from apps.accounts.models import User
from apps.backends.models import Pool
from apps.common.errors import Conflict, Invalid
from apps.jobs.models import Attempt, Eviction, Job, Member
from apps.jobs.services import submit_job
from apps.jobs.specs import JobSpec
from apps.ledger.prices import set_price
from apps.queues.models import ClusterPolicy, PriorityClass, Queue
from apps.quotas.services import set_quota
from apps.scheduling.frame import StaleFrame
from apps.scheduling.models import Verdict
from apps.scheduling.preview import Basis, Preview, preview
from apps.tenants.models import Tenant
from tests.factories import NOW, make_job
from tests.scheduling.playground import Playground


@pytest.fixture
def urgent(db: None) -> PriorityClass:
    return PriorityClass.objects.create(name="urgent", priority=100)


@pytest.fixture
def root(db: None) -> User:
    return User.objects.create(username="root", is_admin=True)


def spec(play: Playground, tenant: Tenant, **asked: Any) -> JobSpec:
    """A gang of 8 GPUs, all there are, unless it says otherwise."""
    asked = {"name": "try", "size": 8, "gpus_per_member": 1, "limit_seconds": 3_600} | asked
    return JobSpec(tenant=tenant, cluster=play.cluster, pool=play.pool, **asked)


def everything() -> dict[str, list[Any]]:
    """Every row of every table."""
    return {
        model._meta.label: list(model._base_manager.order_by("pk").values())
        for model in installed.get_models()
    }


def ask(play: Playground, wanted: JobSpec, root: User, seconds: float) -> Preview:
    """Preview at so many seconds, and hold it against what is written: nothing."""
    before = everything()
    play.cluster.clock_now = play.at(seconds)
    found = preview(wanted, by=root, now=play.at(seconds))
    assert everything() == before
    return found


def really(play: Playground, wanted: JobSpec, root: User, seconds: float) -> Job:
    """Submit it, and tick."""
    job, _ = submit_job(wanted, by=root, now=play.at(seconds))
    play.tick(seconds)
    job.refresh_from_db()
    return job


def evict_by(play: Playground, mode: str, **policy: Any) -> None:
    ClusterPolicy.objects.create(
        cluster=play.cluster,
        **{"preemption": "priority", "mode": mode, "grace_seconds": 60} | policy,
    )


def test_what_would_start_says_where_and_starts_there(
    play: Playground, vision: Tenant, root: User
) -> None:
    make_job(vision, play.pool, size=3, limit_seconds=600)
    play.tick(0)
    wanted = spec(play, vision, size=5)

    found = ask(play, wanted, root, 10)
    job = really(play, wanted, root, 10)

    members = Member.objects.filter(attempt__job=job).order_by("rank")
    assert found.starts
    assert (found.facts["code"], found.likely, found.basis) == ("starts", play.at(10), Basis.NOW)
    assert list(found.nodes) == [member.node.name for member in members]
    assert job.state == "RUNNING"


@pytest.mark.parametrize("grade", ["observe", "advise"])
def test_where_rollcall_only_watches_nothing_would_start(
    play: Playground, vision: Tenant, root: User, grade: str
) -> None:
    play.tick(0)
    play.cluster.grade = grade
    play.cluster.save(update_fields=["grade"])
    wanted = spec(play, vision)

    found = ask(play, wanted, root, 10)
    job = really(play, wanted, root, 10)

    assert not found.starts
    assert (found.nodes, found.likely, found.basis) == ((), None, Basis.UNKNOWN)
    assert found.facts["code"] == Verdict.objects.get(job=job).code == "watched"


def test_what_would_wait_says_why_after_whom_and_until_when(
    play: Playground, vision: Tenant, root: User
) -> None:
    make_job(vision, play.pool, size=8, limit_seconds=600)
    play.tick(0)
    first = make_job(vision, play.pool, size=6, limit_seconds=300, minutes=0.1)
    play.tick(10)
    wanted = spec(play, vision)

    found = ask(play, wanted, root, 20)
    job = really(play, wanted, root, 20)

    verdict = Verdict.objects.get(job=job)
    assert not found.starts
    assert found.nodes == ()
    assert found.facts["code"] == verdict.code
    assert (found.facts["needed"], found.facts["available"]) == (8, 0)
    assert (found.position, found.waiting) == (verdict.position + 1, 2)
    assert [one.pk for one in found.ahead] == [first.pk]
    assert found.ahead_count == 1
    # The running job ends by 600 at the latest, the one ahead 300 later.
    assert (found.likely, found.basis) == (play.at(900), Basis.LIMITS)


@pytest.mark.parametrize("mode", ["kill", "checkpoint", "demote"])
def test_whom_it_would_evict_is_evicted(
    mode: str, play: Playground, vision: Tenant, root: User, urgent: PriorityClass
) -> None:
    evict_by(play, mode)
    set_price(play.pool, per_gpu_hour=Decimal("2.50"), from_at=NOW, by=None, now=NOW, reason="test")
    low = make_job(vision, play.pool, size=8, limit_seconds=36_000)
    play.tick(0)
    wanted = spec(play, vision, priority_class=urgent)

    found = ask(play, wanted, root, 600)
    job = really(play, wanted, root, 600)

    record = Eviction.objects.get()
    (victim,) = found.victims
    assert (victim.job.pk, victim.mode, victim.rule) == (low.pk, record.mode, record.rule)
    assert (victim.members, victim.gpus) == (record.members, record.gpus) == (8, 8)
    assert victim.leave_by == record.leave_by
    assert float(victim.lost.gpu_hours) == pytest.approx(8 * 600 / 3600)
    assert float(victim.lost.money) == pytest.approx(8 * 600 / 3600 * 2.5)
    assert found.facts["code"] == Verdict.objects.get(job=job).code
    assert record.beneficiary_id == job.pk
    if mode != "demote":
        assert (found.likely, found.basis) == (record.leave_by, Basis.VICTIMS)


def test_who_only_shrinks_loses_nothing_as_its_record_says(
    play: Playground, vision: Tenant, root: User, urgent: PriorityClass
) -> None:
    evict_by(play, "checkpoint")
    set_price(play.pool, per_gpu_hour=Decimal("2.50"), from_at=NOW, by=None, now=NOW, reason="test")
    make_job(vision, play.pool, size=8, min_size=4, limit_seconds=36_000)
    play.tick(0)
    wanted = spec(play, vision, size=2, priority_class=urgent)

    found = ask(play, wanted, root, 600)
    really(play, wanted, root, 600)
    play.tick(660)
    play.tick(670)

    record, (victim,) = Eviction.objects.get(), found.victims
    assert (victim.mode, victim.members) == (record.mode, record.members) == ("shrink", 2)
    assert record.outcome == "shrunk"
    assert victim.lost.gpu_hours == record.lost_gpu_us == 0
    assert victim.lost.money == record.lost_micros == 0


def test_nobody_is_evicted_for_what_is_only_tried(
    play: Playground, vision: Tenant, root: User, urgent: PriorityClass
) -> None:
    evict_by(play, "kill")
    make_job(vision, play.pool, size=8, limit_seconds=36_000)
    play.tick(0)
    ask(play, spec(play, vision, priority_class=urgent), root, 600)

    play.tick(610)

    assert not Eviction.objects.exists()
    assert Attempt.objects.get().ended_at is None


def test_a_team_and_a_class_that_never_were_here_are_tried_without_a_trace(
    play: Playground, vision: Tenant, root: User
) -> None:
    play.tick(0)
    assert not Queue.objects.exists()
    assert not PriorityClass.objects.exists()

    found = ask(play, spec(play, vision), root, 10)

    assert found.starts


def test_what_its_tenant_may_not_pass_is_told(play: Playground, vision: Tenant, root: User) -> None:
    set_quota(
        vision, play.pool, guarantee=0, ceiling=8, weight=None, by=None, now=NOW, reason="test"
    )
    make_job(vision, play.pool, size=4, limit_seconds=600)
    Pool.objects.filter(pk=play.pool.pk).update(idle_grace_seconds=60)
    play.tick(0)
    set_quota(
        vision, play.pool, guarantee=0, ceiling=6, weight=None, by=None, now=NOW, reason="test"
    )

    late = ask(play, spec(play, vision, size=4), root, 10)
    never = ask(play, spec(play, vision, size=7), root, 10)

    assert (late.facts["code"], late.facts["tenant"]) == ("ceiling", "vision")
    assert late.never_fits is None
    assert never.facts["code"] == "never_fits"
    assert never.never_fits is not None
    assert (never.never_fits.needed, never.never_fits.most) == (7, 6)


def test_what_is_held_or_depends_waits_for_that(
    play: Playground, vision: Tenant, root: User
) -> None:
    needed = make_job(vision, play.pool, name="first", size=1, limit_seconds=600)
    play.tick(0)

    held = ask(play, spec(play, vision, size=1, held=True), root, 10)
    after = ask(play, spec(play, vision, size=1, depends_on=(needed,)), root, 10)
    begins = ask(play, spec(play, vision, size=1, begin_at=play.at(500)), root, 10)

    assert held.facts["code"] == "held"
    assert (after.facts["code"], after.facts["what"]) == ("dependency", ["first"])
    assert begins.facts["code"] == "begin_time"
    assert not any(one.starts for one in (held, after, begins))


def test_what_a_submission_is_refused_for_a_preview_is_refused_for(
    play: Playground, vision: Tenant, root: User
) -> None:
    before = everything()
    with pytest.raises(Invalid) as refused:
        preview(spec(play, vision, size=0), by=root, now=NOW)
    with pytest.raises(Invalid) as unknown:
        preview(spec(play, vision, workload={"kind": "moon"}), by=root, now=NOW)

    assert refused.value.field == "size"
    assert (unknown.value.field or "").startswith("workload")
    assert everything() == before


def test_before_the_first_look_nothing_is_said(
    play: Playground, vision: Tenant, root: User
) -> None:
    with pytest.raises(Conflict) as refused:
        preview(spec(play, vision), by=root, now=NOW)

    assert refused.value.code == "not_seen_yet"


def test_what_the_engine_refuses_to_decide_by_is_told_by_name(
    play: Playground, vision: Tenant, root: User
) -> None:
    play.tick(0)
    ClusterPolicy.objects.create(cluster=play.cluster, backfill="conservative")

    with pytest.raises(Conflict) as refused:
        preview(spec(play, vision), by=root, now=play.at(10))

    assert (refused.value.field, refused.value.code) == ("cluster", "policy_refused")
    assert refused.value.message == (
        "play cannot decide by its policy: backfill = 'conservative': is not built yet."
    )


def test_tables_that_change_at_each_look_are_looked_at_later(
    play: Playground, vision: Tenant, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.tick(0)

    def changes(*_: Any, **__: Any) -> None:
        raise StaleFrame

    monkeypatch.setattr("apps.scheduling.preview.decide", changes)

    with pytest.raises(Conflict) as refused:
        preview(spec(play, vision), by=root, now=play.at(10))

    assert refused.value.code == "moving"
