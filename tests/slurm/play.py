"""A Slurm cluster in Rollcall's database, ticked by hand on wall time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from apps.backends.models import Cluster, Node, Pool
from apps.backends.pace import looks_every
from apps.backends.services import add_cluster
from apps.jobs.models import Attempt, Eviction, Job, Member
from apps.jobs.services import JobSpec, submit_job
from apps.queues.models import ClusterPolicy, PriorityClass
from apps.scheduling.services import tick
from apps.tenants.models import Tenant
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import GPUS, POOL, SLEEPS, options_of

PATIENCE = 40.0
PAUSE = 0.3


class Play:
    """The lab as the cluster ``lab``, looked at once."""

    def __init__(self, lab: Lab, *, grade: str = "drive", **options: Any) -> None:
        self.lab = lab
        self.cluster = add_cluster(
            "lab", kind="slurm", now=timezone.now(), grade=grade,
            options=options_of(lab, **options), tick_seconds=1,
        )  # fmt: skip
        self.tick()
        assert self.trouble == ""
        self.pool = Pool.objects.get(cluster=self.cluster, name=POOL)

    def tick(self) -> None:
        """Tick once, due or not."""
        Cluster.objects.filter(pk=self.cluster.pk).update(not_before=None, lease_until=None)
        self.cluster.refresh_from_db()
        assert tick(self.cluster)

    @property
    def trouble(self) -> str:
        return Cluster.objects.get(pk=self.cluster.pk).trouble

    def seconds_to_the_next(self) -> int:
        """Return how far apart looks are by now, as the last tick left it."""
        row = Cluster.objects.get(pk=self.cluster.pk)
        assert row.not_before is not None
        assert not row.lease_holder
        return round(looks_every(row))

    def policy(self, **columns: Any) -> None:
        """Set how the cluster evicts: at once unless said otherwise."""
        asked = {"preemption": "priority", "min_runtime_seconds": 0, "cooldown_seconds": 0}
        ClusterPolicy.objects.update_or_create(cluster=self.cluster, defaults=asked | columns)

    def submit(self, tenant: Tenant, size: int, *, priority: int = 0, **asked: Any) -> Job:
        """Submit a gang of so many whole nodes."""
        if priority:
            asked["priority_class"] = PriorityClass.objects.get_or_create(
                name=f"p{priority}", defaults={"priority": priority}
            )[0]
        asked = {"name": "train", "gpus_per_member": GPUS, "workload": SLEEPS} | asked
        spec = JobSpec(tenant=tenant, cluster=self.cluster, pool=self.pool, size=size, **asked)
        return submit_job(spec, by=None, now=timezone.now())[0]

    def until(self, so: Callable[[], bool], what: str) -> None:
        """Tick until something is so."""
        end = time.monotonic() + PATIENCE
        while not so():
            assert time.monotonic() < end, f"not {what} after {PATIENCE:g} s; {self.trouble}"
            self.tick()
            time.sleep(PAUSE)

    def until_state(self, job: Job, state: str) -> None:
        """Tick until a job is in a state."""
        self.until(lambda: self.state(job) == state, f"{state} but {self.state(job)}")

    @staticmethod
    def state(job: Job) -> str:
        return Job.objects.get(pk=job.pk).state

    @staticmethod
    def attempts(job: Job) -> list[Attempt]:
        return list(Attempt.objects.filter(job=job).order_by("number"))

    @staticmethod
    def planned(attempt: Attempt) -> list[str]:
        rows = Member.objects.filter(attempt=attempt).order_by("rank")
        return list(rows.values_list("node__name", flat=True))

    def eviction(self) -> Eviction:
        """Return the only eviction there is, once it is over."""
        self.until(lambda: Eviction.objects.filter(ended_at__isnull=False).exists(), "evicted")
        return Eviction.objects.get()

    def foreign(self) -> dict[str, int]:
        """Return the GPUs of running work that is not ours, by node; no other is in use."""
        assert not Node.objects.filter(cluster=self.cluster, foreign_gpus__gt=0).exists()
        rows = Member.objects.filter(attempt__ended_at__isnull=True).exclude(
            attempt__job__foreign_ref=""
        )
        gpus: Counter[str] = Counter()
        for name, each in rows.values_list("node__name", "attempt__job__gpus_per_member"):
            gpus[name] += each
        return dict(gpus)

    def in_slurm(self, attempt: Attempt) -> list[str]:
        """Return the jobs of an attempt in Slurm, whatever became of them: id, state, nodes."""
        out = self.lab.run("squeue", "-h", "-t", "all", "-o", "%A %T %N|%j")
        return [
            line.split("|")[0].strip()
            for line in out.splitlines()
            if line.endswith(f".{attempt.uid}")
        ]
