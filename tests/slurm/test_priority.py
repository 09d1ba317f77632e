"""Priority against a real slurmctld: each term that sprio prints is the engine's, and so is the sum.

sprio prints a term as a whole number and again as a factor of seven digits, and cuts the sum off to
a whole number. The weights here are large, so that seven digits of each term are compared.

What is which: *age* counts from submission, Slurm's from when a job may start: of these, which nobody
held, that is the same second or the next, and the engine is given Slurm's; *size* is Slurm's TRES term for gres/gpu, the part of the
partition's GPUs that a job asks for (its job-size term counts nodes and CPUs, and ours does not, by
design); *queue* is the partition's PriorityJobFactor and *class* the priority of the QOS, each
divided by the highest; *nice* is nice. Slurm has no *boost* for broken gangs, Rollcall no
association and no site factor. A job on hold has no terms in Slurm, and has them in Rollcall.
"""

from __future__ import annotations

import getpass
import os
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest

from apps.backends.adapters.slurm.sprio import COLUMNS, terms_in
from apps.backends.models import Grade
from apps.common.time import MICROSECOND, to_us
from apps.engine.cycle import schedule
from apps.engine.types import TERMS, Policy, Snapshot, Weights
from tests.conftest import FULL
from tests.engine.build import snapshot_of
from tests.labs.slurm.accounting import Association
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import POOL, Stage
from tests.slurm.trees import ROOT, Tree, grow, leaf

ME = getpass.getuser()
JOBS = 1_000
ACCOUNTS, USERS = 40, 120
AGE_MINUTES = 1  # Slurm counts it in whole minutes
WEIGHTS = Weights(
    age=9_000_000, fair_share=70_000_000, size=30_000_000, queue=5_000_000, class_=11_000_000
)
QOS = {"normal": 0, "urgent": 13, "low": 3, "high": 7}
PARTITIONS = {"main": 1, "wide": 70, "narrow": 41}
CONF = (
    f"PriorityMaxAge=00:{AGE_MINUTES:02}:00",
    "PriorityCalcPeriod=00:01:00",
    f"PriorityWeightAge={WEIGHTS.age}",
    f"PriorityWeightFairshare={WEIGHTS.fair_share}",
    f"PriorityWeightTRES=gres/gpu={WEIGHTS.size}",
    f"PriorityWeightPartition={WEIGHTS.queue}",
    f"PriorityWeightQOS={WEIGHTS.class_}",
)
SAME = ("age", "fair_share", "size", "queue", "class", "nice")
FACTORS = {"age": "%a", "fair_share": "%f", "queue": "%p", "class": "%q"}
WEIGHT = {name: getattr(WEIGHTS, "class_" if name == "class" else name) for name in FACTORS}


@dataclass(frozen=True)
class Asked:
    """What a job is submitted with."""

    account: str
    qos: str
    partition: str
    nodes: int
    gpus: int
    nice: int

    def submit(self, lab: Lab) -> str:
        """Submit it and return its id."""
        return lab.submit(
            "true", f"--account={self.account}", f"--qos={self.qos}", f"--nice={self.nice}",
            f"--partition={self.partition}", f"--nodes={self.nodes}", f"--gres=gpu:{self.gpus}",
        )  # fmt: skip


@pytest.fixture
def priority_lab(accounting_lab: Lab) -> Iterator[Lab]:
    """The lab with accounts, in which all weights count and nothing can start."""
    lab = accounting_lab
    nodes = f"gpu[1-{len(lab.nodes)}]"
    partitions = [
        f"PartitionName={name} Nodes={nodes} DefaultTime=60 PriorityJobFactor={factor}"
        for name, factor in PARTITIONS.items()
        if name != "main"  # which is there, with Slurm's own factor of 1
    ]
    lab.configure(*CONF, *partitions)
    lab.run("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=nothing starts")
    for name, priority in QOS.items():
        if name != "normal":
            lab.run("sacctmgr", "-i", "add", "qos", name, f"priority={priority}")
    yield lab
    lab.clear()


def test_the_terms_that_sprio_prints_are_ours(priority_lab: Lab) -> None:
    lab, random = priority_lab, Random(os.environ["HYPOTHESIS_SEED"])
    tree = _with_me_everywhere(grow(random, "p", ACCOUNTS, USERS, ties=False))
    tree.theirs(lab, qos=QOS)
    asked = _submit(lab, random, [who.account for who in tree.users if who.user == ME])
    # A slurmctld that starts works priorities out anew: of jobs whose age it has begun to count.
    lab.wait(lambda: "N/A" not in lab.run("squeue", "-h", "-O", "AccrueTime"), "ages")
    lab.stop_controller()
    lab.start_controller()

    ran = _compare(lab, tree, asked)
    if FULL:
        lab.wait(lambda: _last_run(lab) > ran, "priorities of a minute later", patience=90)
        assert _compare(lab, tree, asked) >= ran + AGE_MINUTES * 60  # so that all are of full age


def _compare(lab: Lab, tree: Tree, asked: dict[int, Asked]) -> int:
    """Assert that all terms are the same; return the instant that the ages count to."""
    ran, theirs = _sprio(lab)
    snapshot, policy = _seen(lab, tree, asked, now=ran)
    ours = schedule(snapshot, policy).verdicts
    rows = [theirs[number] for number in snapshot.pending.id.tolist()]
    assert len(rows) == len(theirs) == JOBS
    for name in SAME:
        said = np.array([row[name] for row in rows])
        term = ours.terms[:, TERMS.index(name)]
        assert np.abs(term - said).max() <= 0.5 + 1e-6, name
    for name, weight in WEIGHT.items():
        said = np.array([row[f"{name} factor"] for row in rows])
        factor = ours.terms[:, TERMS.index(name)] / weight
        assert np.abs(factor - said).max() <= 0.5e-7 + 1e-12, name
    more = ours.priority - np.array([row["priority"] for row in rows])
    assert -1e-6 < more.min() <= more.max() < 1 + 1e-6
    # Jobs that all had the same terms would show little.
    kinds = dict(zip(TERMS, (len(set(column)) for column in ours.terms.T.tolist()), strict=True))
    assert min(kinds[name] for name in ("fair_share", "size", "queue", "class", "nice")) >= 3
    assert ours.terms[:, TERMS.index("age")].min() > 0
    assert ours.priority.min() == 1
    return ran


def _with_me_everywhere(tree: Tree) -> Tree:
    """Call one user of each account by the name of the user who runs the tests: jobs are theirs."""
    mine: set[str] = {"root"}
    users = {}
    for who, amounts in tree.users.items():
        name = who.user if who.account in mine else ME
        mine.add(who.account)
        users[Association(who.account, name) if who != ROOT else who] = amounts
    return Tree(tree.accounts, users)


def _submit(lab: Lab, random: Random, accounts: list[str]) -> dict[int, Asked]:
    """Submit jobs that differ in all that counts; return what was asked by id."""
    jobs = [
        Asked(
            account=random.choice(accounts), qos=random.choice(list(QOS)),
            partition=random.choice(list(PARTITIONS)), nodes=random.randint(1, len(lab.nodes)),
            gpus=random.randint(1, 8), nice=random.choice([-50, 0, 0, 1, 100, 20_000_001]),
        )
        for _ in range(JOBS - 1)
    ]  # fmt: skip
    jobs.append(replace(jobs[0], nice=2_000_000_000))
    with ThreadPoolExecutor(4) as pool:
        ids = pool.map(lambda one: one.submit(lab), jobs)
        return {int(number): job for number, job in zip(ids, jobs, strict=True)}


def _last_run(lab: Lab) -> int:
    """Return when slurmctld last worked priorities out: to it, that was now."""
    path = lab.dir / "state" / "priority_last_decay_ran"
    (at,) = struct.unpack("!Q", path.read_bytes()[:8])
    return int(at)


def _sprio(lab: Lab) -> tuple[int, dict[int, dict[str, float]]]:
    """Return the instant that the ages count to, and by job what sprio prints."""
    started = lab.conf.stat().st_mtime
    lab.wait(lambda: started < _last_run(lab) > time.time() - 50, "priorities that are new")
    ran = _last_run(lab)
    rows = terms_in(lab.run("sprio", "-h", "-o", COLUMNS))
    names = [f"{name} factor" for name in FACTORS]
    for line in lab.run("sprio", "-h", "-o", "|".join(["%i", *FACTORS.values()])).splitlines():
        number, *cells = line.split("|")
        rows[int(number)] |= dict(zip(names, map(float, cells), strict=True))
    assert _last_run(lab) == ran
    return ran, rows


def _seen(lab: Lab, tree: Tree, asked: dict[int, Asked], *, now: int) -> tuple[Snapshot, Policy]:
    """Return what the engine is given: the jobs as the adapter sees them on the lab."""
    found = Stage(lab, Grade.OBSERVE, changes={"partition": ""}).look().foreign or ()
    jobs = [(int(work.ref.split(":")[1]), work) for work in found if work.state == "waiting"]
    jobs = [(number, work) for number, work in jobs if number in asked]
    scenario = {
        "pools": [{"name": POOL}],
        "nodes": [{"name": name, "pool": POOL, "gpus": 8} for name in lab.nodes],
        "tenants": tree.tenants(),
        "jobs": [
            {
                "name": work.ref, "tenant": leaf(Association(work.account, work.user)),
                "pool": work.pool, "size": work.size, "gpus_per_member": work.gpus_per_member,
                "priority": QOS[asked[number].qos], "nice": asked[number].nice,
            }
            for number, work in jobs
        ],
    }  # fmt: skip
    snapshot, policy = snapshot_of(scenario)
    factors = [PARTITIONS[asked[number].partition] / max(PARTITIONS.values()) for number, _ in jobs]
    since = _aging_since(lab)
    pending = replace(
        snapshot.pending,
        id=np.array([number for number, _ in jobs]),
        submitted=np.array([since[number] * MICROSECOND for number, _ in jobs]),
        queue_factor=np.array(factors),
    )
    submitted = np.array([to_us(work.submitted_at) for _, work in jobs])
    assert (pending.submitted >= submitted).all()
    policy = replace(
        policy, weights=WEIGHTS, max_age=AGE_MINUTES * 60 * MICROSECOND, max_class=max(QOS.values())
    )
    return replace(snapshot, now=now * MICROSECOND, pending=pending), policy


def _aging_since(lab: Lab) -> dict[int, int]:
    """Return since when each job ages, in Slurm's seconds."""
    columns = "JobID:12,AccrueTime:20"
    out = lab.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-O", columns)
    return {int(line.split()[0]): int(line.split()[1]) for line in out.splitlines()}
