"""History from a real slurmdbd: what sacct and sreport say is what the ledger says, to the second."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.db.models import F, Sum
from django.utils import timezone

from apps.backends.models import Cluster, Node
from apps.common.time import HOUR_US, MICROSECOND, from_us, to_us
from apps.jobs.models import Attempt, Job, Member, Move
from apps.ledger.models import Interval, RollUp
from apps.ledger.rollup import tally, tally_raw
from apps.ledger.selectors import five_parts
from apps.ledger.usage import rebuild_usage
from apps.scheduling.history import go_on, start_history_import
from apps.scheduling.models import HistoryImport
from tests.conftest import FULL
from tests.faults.stage import Stage, wait_until
from tests.labs.slurm.accounting import PastJob
from tests.labs.slurm.lab import Lab
from tests.slurm.pasts import Past, lay, told_by_sacct, told_by_sreport
from tests.slurm.play import Play
from tests.slurm.stage import options_of

pytestmark = pytest.mark.django_db

JOBS = 20_000
HOUR, DAY = 3_600, 86_400
OLD = ("old1", "old2")


def now() -> int:
    return int(time.time())


def made(lab: Lab, count: int, days: float = 6) -> tuple[Past, list[PastJob]]:
    """Lay so many jobs of some days into the lab; return them."""
    random = Random(f"{os.environ['HYPOTHESIS_SEED']}/{count}")
    until = now() - 60
    since = (until - round(days * DAY)) // HOUR * HOUR
    past = Past(random, since, until, count, (*lab.nodes, *OLD))
    return past, lay(lab, past)


def imported(cluster: Cluster, since: int) -> HistoryImport:
    """Import all of the history; it must come to its end."""
    job = start_history_import(
        cluster, since=from_us(since * MICROSECOND), by=None, now=timezone.now()
    )
    assert go_on(job.pk, holder="test")
    job.refresh_from_db()
    assert (job.state, job.problem) == ("done", "")
    return job


def used(cluster: Cluster) -> dict[str, int]:
    """Return the GPU-seconds of each tenant that is an account, from intervals."""
    rows = Interval.objects.filter(cluster=cluster, kind="member", end_us__isnull=False)
    sums = (
        rows.order_by()
        .values_list("tenant__name")
        .annotate(total=Sum(F("gpus") * (F("end_us") - F("start_us"))))
    )
    return {name: total // MICROSECOND for name, total in sums if total}


def written(cluster: Cluster) -> list[Any]:
    """Return all that an import wrote, but for keys."""
    of = {"attempt__job__cluster": cluster}
    intervals = Interval.objects.filter(cluster=cluster).order_by(
        "kind", "start_us", "end_us", "attempt__uid", "rank", "node__name"
    )
    return [
        sorted(Job.objects.filter(cluster=cluster).values_list("foreign_ref", "state", "outcome", "size")),
        sorted(Attempt.objects.filter(job__cluster=cluster).values_list("uid", "started_at", "ended_at")),
        sorted(Member.objects.filter(**of).values_list("attempt__uid", "rank", "node__name")),
        Move.objects.filter(job__cluster=cluster).count(),
        sorted(Node.objects.filter(cluster=cluster).values_list("name", "gpus")),
        list(intervals.values_list("kind", "state", "node__name", "attempt__uid", "rank", "gpus", "start_us", "end_us")),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def history_lab(running_accounting_lab: Lab) -> Iterator[Lab]:
    """The lab with accounts; what was laid into its database is taken out at the end."""
    running_accounting_lab.clear()
    yield running_accounting_lab
    running_accounting_lab.accounting.forget_jobs()


def test_20_000_jobs_are_what_sacct_and_sreport_say_and_twice_the_same(history_lab: Lab) -> None:
    past, jobs = made(history_lab, JOBS)
    assert len(jobs) == JOBS
    play = Play(history_lab, grade="observe")
    began = time.perf_counter()

    first = imported(play.cluster, past.since - DAY)

    took = time.perf_counter() - began
    print(f"\n{first.runs:,} runs of {len(jobs):,} in {took:.1f} s")
    cluster = Cluster.objects.get(pk=play.cluster.pk)
    theirs = told_by_sacct(history_lab, past.since - DAY, now())
    assert used(cluster) == theirs
    assert first.runs == sum(1 for job in jobs if job.start and job.gpus)
    assert first.left_out == {
        "asked for no GPUs": sum(1 for job in jobs if job.start and not job.gpus),
        "never ran": sum(1 for job in jobs if not job.start),
    }
    # By whole hours, as it stands in the roll-ups: what the pages show.
    until = past.until // HOUR * HOUR
    shown: Counter[str] = Counter()
    names = dict(Job.objects.values_list("tenant_id", "tenant__name"))
    for one in tally(cluster, past.since * MICROSECOND, until * MICROSECOND):
        if one.tenant_id is not None:
            shown[names[one.tenant_id]] += one.gpu_us
    hours = {name: total // MICROSECOND for name, total in shown.items()}
    assert hours == told_by_sreport(history_lab, past.since, until)
    assert RollUp.objects.filter(cluster=cluster, quarter_us=past.since * MICROSECOND).exists()

    before = written(cluster)
    again = imported(cluster, past.since - DAY)
    assert (again.runs, again.known) == (0, first.runs)
    assert written(cluster) == before
    assert max(abs(row.gpu_hours) for row in rebuild_usage(cluster)) == 0


def test_the_parts_of_the_past_add_up_to_an_assumed_capacity(history_lab: Lab) -> None:
    past, _ = made(history_lab, 300, days=2)
    play = Play(history_lab, grade="observe")

    imported(play.cluster, past.since)

    cluster = Cluster.objects.get(pk=play.cluster.pk)
    assert cluster.known_from == from_us(past.since * MICROSECOND)
    span = past.since * MICROSECOND, past.until * MICROSECOND
    report = five_parts([cluster], *span)
    assert report.assumed == report.capacity
    parts = [one for one in tally_raw(cluster, *span) if one.state != "excess"]
    assert sum(one.gpu_us for one in parts) == report.capacity.gpu_hours * HOUR_US
    # The lab's five nodes all the time, the old ones as long as anything ran on them.
    least = 5 * 8 * (past.until - past.since) / HOUR
    assert least <= float(report.capacity.gpu_hours) <= least * 7 / 5
    gone = Node.objects.filter(cluster=cluster, name__in=OLD)
    assert gone.count() == 2
    assert not gone.filter(gone_at__isnull=True).exists()
    play.tick()
    assert not gone.filter(gone_at__isnull=True).exists()


def test_workers_killed_in_the_middle_and_one_in_another_zone_write_the_same(
    history_lab: Lab, tmp_path: Path
) -> None:
    past, _ = made(history_lab, 2_000 if FULL else 300, days=3)
    since = from_us((past.since - DAY) * MICROSECOND).isoformat()
    calm = Stage(tmp_path / "calm")
    calm.migrate()
    calm.run("-m", "tests.slurm.importer", "set-up", json.dumps(options_of(history_lab)))
    shutil.copytree(calm.home, tmp_path / "struck")
    struck = Stage(tmp_path / "struck", extra={"TZ": "Asia/Kolkata"})
    out = calm.run("manage.py", "import_history", "lab", "--since", since)
    assert out.startswith("Runs written: ")

    struck.run("-m", "tests.slurm.importer", "begin", since)
    for at in (1, 2, 2):
        # Who was killed counts as alive for 2 s.
        wait_until(partial(died, struck, at), "a worker that dies", seconds=20)
    wait_until(lambda: came_to_its_end(struck), "the import to end", seconds=30)

    ask = ("-m", "tests.slurm.importer", "ledger")
    mine, theirs = json.loads(struck.run(*ask)), json.loads(calm.run(*ask))
    assert [len(rows) > 0 for rows in mine] == [True] * len(mine)
    assert mine == theirs


def died(stage: Stage, at: int) -> bool:
    """Let a worker import until it kills itself; False: it found another at it."""
    return stage.start("-m", "tests.slurm.importer", "die", str(at)).wait(60) == -signal.SIGKILL


def came_to_its_end(stage: Stage) -> bool:
    stage.start("manage.py", "import_history", "lab").wait(60)
    return bool(stage.ask("SELECT state = 'done' FROM scheduling_historyimport")[0])


def test_a_job_that_ran_at_the_first_look_is_counted_once_and_from_its_start(
    history_lab: Lab,
) -> None:
    lab = history_lab
    lab.accounting.load(TREE_OF_ME)
    lab.accounting.forget_jobs()
    lab.stop_controller()  # it need not have heard of the accounts
    lab.start_controller()
    since = now() - 60
    over = lab.submit("true", "--account=vision", "--gres=gpu:2")
    lab.wait(lambda: lab.state(over) == "COMPLETED", "the first to end")
    runs = [
        lab.submit("sleep 4", "--account=vision", "--gres=gpu:2"),
        lab.submit("sleep 4", "--account=vision", "--gpus=3", "--nodes=2"),
    ]
    lab.wait(lambda: all(lab.state(job) == "RUNNING" for job in runs), "both to run")
    time.sleep(2)
    play = Play(lab, grade="observe")
    look = play.cluster.first_look_at
    assert look is not None
    play.until(lambda: not lab.jobs(), "all to end")
    play.tick()

    first = imported(play.cluster, since)

    cluster = Cluster.objects.get(pk=play.cluster.pk)
    rows = sacct_rows(lab)
    assert (first.runs, Job.objects.count()) == (1, 3)
    for number, gpus in zip(runs, (2, 3), strict=True):
        pieces = Interval.objects.filter(
            job__foreign_ref__contains=f":{number}:", kind="member"
        ).order_by("start_us")
        booked = pieces.values_list("start_us", "end_us").annotate(gpus=Sum("gpus"))
        start, end = rows[number]
        assert list(booked) == [(start, to_us(look), gpus), (to_us(look), end, gpus)]
    assert max(abs(row.gpu_hours) for row in rebuild_usage(cluster)) == 0
    before = written(cluster)
    assert imported(cluster, since - DAY).runs == 0
    assert [row for row in written(cluster)[5] if row[0] != "node"] == [
        row for row in before[5] if row[0] != "node"
    ]


TREE_OF_ME = (
    "Parent - 'root'",
    "User - 'root':DefaultAccount='root':Fairshare=1",
    "Account - 'vision':Description='d':Organization='o'",
    "Parent - 'vision'",
    "User - 'root':Fairshare=1",
)


def sacct_rows(lab: Lab) -> dict[str, tuple[int, int]]:
    """Return start and end of each job in microseconds, as sacct has them."""
    out = lab.run(
        "env", "TZ=UTC", "SLURM_TIME_FORMAT=%s", "sacct", "-a", "-X", "-n", "-P",
        "-S", (timezone.now() - timedelta(days=1)).strftime("%Y-%m-%d"), "-o", "JobID,Start,End",
    )  # fmt: skip
    found = (line.split("|") for line in out.splitlines())
    return {
        job: (int(start) * MICROSECOND, int(end) * MICROSECOND)
        for job, start, end in found
        if end.isdigit()
    }
