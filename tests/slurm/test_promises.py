"""Ceilings and guarantees on a real Slurm: who waits for which, and who leaves for whom."""

from __future__ import annotations

from django.utils import timezone

from apps.jobs.models import Eviction, Job
from apps.ledger.models import Interval, IntervalKind
from apps.quotas.services import set_quota
from apps.scheduling.models import Tick, Verdict
from apps.tenants.models import Tenant
from tests.conftest import FULL
from tests.slurm.play import Play
from tests.slurm.stage import GPUS, SAVES


def promise(play: Play, tenant: Tenant, guarantee: int = 0, ceiling: int | None = None) -> None:
    set_quota(
        tenant, play.pool, guarantee=guarantee, ceiling=ceiling, weight=None, by=None,
        now=timezone.now(), reason="",
    )  # fmt: skip


def test_a_job_above_its_tenants_ceiling_waits_for_that_and_not_for_room(
    slurm: Play, vision: Tenant, nlp: Tenant
) -> None:
    promise(slurm, vision, ceiling=2 * GPUS)
    within = slurm.submit(vision, 2)
    slurm.until_state(within, "RUNNING")

    above, others = slurm.submit(vision, 1), slurm.submit(nlp, 2)
    slurm.until_state(others, "RUNNING")

    verdict = Verdict.objects.get(job=above)
    assert (verdict.code, verdict.detail["tenant"]) == ("ceiling", vision.pk)
    assert (verdict.needed, verdict.available) == (GPUS, 0)
    # There is a node free, and Slurm has not even heard of it.
    assert slurm.state(above) == "PENDING"
    assert len(slurm.lab.jobs()) == 2


def test_what_was_lent_is_reclaimed_by_checkpoint_and_the_work_done_is_counted(
    slurm: Play, vision: Tenant, nlp: Tenant
) -> None:
    promise(slurm, vision, guarantee=4 * GPUS)
    slurm.policy(preemption="reclaim", mode="checkpoint", grace_seconds=60)
    borrower = slurm.submit(nlp, 5, workload=SAVES)
    slurm.until_state(borrower, "RUNNING")

    owner = slurm.submit(vision, 4)
    slurm.until_state(owner, "RUNNING")

    row = slurm.eviction()
    (attempt,) = slurm.attempts(borrower)
    assert (row.rule, row.outcome, row.lost_gpu_us) == ("reclaim", "checkpointed", 0)
    members = Interval.objects.filter(attempt=attempt, kind=IntervalKind.MEMBER)
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    ran = (attempt.ended_at - attempt.started_at).total_seconds()
    assert ran > 0
    # Five nodes for as long as Slurm says it ran, to the microsecond.
    counted = sum((one.end_us - one.start_us) * one.gpus for one in members if one.end_us)
    assert counted == round(ran * 1_000_000) * 5 * GPUS


def test_who_was_demoted_and_is_still_in_the_way_after_the_grace_leaves_by_checkpoint(
    slurm: Play, vision: Tenant, nlp: Tenant
) -> None:
    slurm.policy(mode="demote", grace_seconds=4)
    victim = slurm.submit(vision, 5, workload=SAVES)
    slurm.until_state(victim, "RUNNING")

    taker = slurm.submit(nlp, 4, priority=100)
    slurm.until_state(taker, "RUNNING")

    first, second = Eviction.objects.order_by("pk")
    assert [first.outcome, second.outcome] == ["demoted", "checkpointed"]
    assert first.beneficiary_id == second.beneficiary_id == taker.pk
    assert (second.at - first.at).total_seconds() >= 4
    # Demoted it was on hold in Slurm; back in line it is Rollcall's to start, by a new submission.
    assert Job.objects.get(pk=victim.pk).state in ("PENDING", "RESERVING")
    assert len(slurm.lab.jobs()) == 1


def test_a_gang_of_four_whole_nodes_runs_within_2_s_of_the_tick_that_starts_it(
    slurm: Play, vision: Tenant
) -> None:
    job = slurm.submit(vision, 4)

    slurm.until_state(job, "RUNNING")

    (attempt,) = slurm.attempts(job)
    planned = Tick.objects.filter(cluster=slurm.cluster, starts__gt=0).earliest("at")
    assert attempt.started_at is not None
    # Slurm tells whole seconds, cut off; a machine that is shared may take its time.
    assert -1 <= (attempt.started_at - planned.at).total_seconds() <= (2 if FULL else 20)
    assert slurm.planned(attempt) == ["gpu1", "gpu2", "gpu3", "gpu4"]
