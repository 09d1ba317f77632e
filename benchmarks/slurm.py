"""What Rollcall's polling costs a real slurmctld at its usual rhythm, with 10,000 jobs waiting."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.labs.slurm.lab import Lab

ROOT = Path(__file__).resolve().parents[1]
NODES, PENDING, TIMES = 20, (1_000, 10_000), 20
LIMIT_SECONDS = 1.0
ACCOUNTS, PEOPLE = 100, 10
# Debian's own users, whose the jobs are, and one of whom Slurm has no job: Rollcall's.
OWNERS = ("daemon", "games", "man", "lp", "mail", "news", "uucp", "proxy")
SERVICE = "backup"
PATIENCE = 600.0
# Few passes of its own while it is filled and measured: a plan every 30 s, as Slurm has it by default.
CALM = "SchedulerParameters=defer,batch_sched_delay=20,sched_interval=3600,bf_interval=30"
BUSY = "SchedulerParameters=sched_interval=1,bf_interval=30"
# Threads of slurmctld that ask nobody: backfill, the scheduler, the decay of usage.
OWN_THREADS = ("bckfl", "sched", "decay")


class Cost(NamedTuple):
    """What a question costs: how long it takes, and slurmctld's time, by the system and by sdiag."""

    wall: float
    cpu: float
    sdiag: float


def _seconds(stat: Path) -> float:
    """Return the CPU time of a process or a thread, by its file in /proc."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _name(thread: Path) -> str:
    """Return what a thread calls itself; empty for one that is over."""
    try:
        return (thread / "comm").read_text().strip()
    except OSError:
        return ""


class Gauge:
    """Measures questions against a lab's slurmctld."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._process = Path(f"/proc/{lab.pid('slurmctld')}")

    def _cpu(self) -> float:
        """Return the seconds slurmctld worked so far, but for what it does by itself."""
        own = (
            _seconds(thread / "stat")
            for thread in (self._process / "task").iterdir()
            if _name(thread) in OWN_THREADS
        )
        return _seconds(self._process / "stat") - sum(own)

    def _told(self) -> float:
        """Return the seconds that sdiag counts for Rollcall's user."""
        from apps.backends.adapters.slurm.text import work_for

        work = work_for(self._lab.run("sdiag"), SERVICE)
        return work.microseconds / 1e6 if work else 0.0

    def cost(self, ask: Callable[[], object]) -> Cost:
        """Ask TIMES times, then for as long not at all, and return what asking once costs."""
        ask()
        told, cpu, began = self._told(), self._cpu(), time.perf_counter()
        walls = []
        for _ in range(TIMES):
            start = time.perf_counter()
            ask()
            walls.append(time.perf_counter() - start)
        busy, lasted = self._cpu() - cpu, time.perf_counter() - began
        told = self._told() - told
        cpu = self._cpu()
        time.sleep(lasted)
        idle = self._cpu() - cpu
        return Cost(statistics.median(walls), (busy - idle) / TIMES, told / TIMES)


def _lay_accounts(lab: Lab) -> None:
    """Make accounts with people in them; each owner of jobs is in one of a number of his own."""
    lines = ["Parent - 'root'"]
    lines += [f"Account - 'team{k}':Fairshare={1 + k % 7}" for k in range(ACCOUNTS)]
    for k in range(ACCOUNTS):
        owner = OWNERS[k % len(OWNERS)]
        lines += [f"Parent - 'team{k}'", f"User - '{owner}':DefaultAccount='team{k}':Fairshare=1"]
        lines += [f"User - 'person{k}x{n}':Fairshare=1" for n in range(PEOPLE)]
    lab.accounting.load(lines)
    lab.accounting.register()
    lab.clear(patience=PATIENCE)


def _submit(lab: Lab, count: int) -> None:
    """Submit jobs of all owners, alike in nothing: 300 a second, where nothing else runs."""

    def submit(number: int) -> None:
        teams = f"$((@ % {ACCOUNTS // len(OWNERS)} * {len(OWNERS)} + {number}))"
        asked = (
            f"sbatch --quiet --output=/dev/null --account=team{teams} --nodes=$((1 + @ % 4))"
            " --gres=gpu:$((1 + @ % 8)) --time=$((60 + @ % 600)) --nice=$((@ % 5)) --wrap=true"
        )
        each = f"seq {count // len(OWNERS)} | xargs -P 2 -I@ sh -c {shlex.quote('exec ' + asked)}"
        lab.run("sh", "-c", each, user=OWNERS[number], patience=PATIENCE)

    with ThreadPoolExecutor(len(OWNERS)) as pool:
        list(pool.map(submit, range(len(OWNERS))))


def _fill_nodes(lab: Lab) -> None:
    """Have a job run on all GPUs, so that everything else waits."""
    lab.configure(BUSY)
    full = ("--account=team0", f"--nodes={NODES}", "--gres=gpu:8", "--time=600")
    job = lab.submit("sleep 36000", *full, "--output=/dev/null", user=OWNERS[0])
    lab.wait(lambda: lab.state(job) == "RUNNING", "all nodes to be full", patience=PATIENCE)
    lab.configure()


def _settle(lab: Lab) -> None:
    """Wait until backfill has planned starts, and slurmdbd was told of every job."""
    planned = ("squeue", "-h", "-t", "PENDING", "-o", "%Y")
    lab.wait(lambda: "gpu" in lab.run(*planned), "a planned start", patience=120)
    told = "DBD Agent queue size: 0"
    lab.wait(lambda: told in lab.run("sdiag"), "slurmdbd to be told", patience=120)


def _as_service(lab: Lab) -> str:
    """Return a folder of Slurm's commands that run as another user than root.

    To root squeue answers ``--me`` by all jobs of everybody, which no service user is told.
    """
    who, folder = pwd.getpwnam(SERVICE), lab.dir / "service"
    folder.mkdir()
    for name in ("scontrol", "squeue", "sprio", "sshare", "sacctmgr"):
        path = folder / name
        path.write_text(
            f"#!/bin/sh\nexec setpriv --reuid={who.pw_uid} --regid={who.pw_gid} --clear-groups"
            f' /usr/bin/{name} "$@"\n'
        )
        path.chmod(0o755)
    return str(folder)


def _measure() -> list[dict[str, Any]]:
    import django

    django.setup()
    from django.utils.timezone import now

    from apps.backends.adapters.slurm import SlurmBackend
    from apps.backends.kinds import KINDS
    from apps.backends.models import Cluster
    from tests.labs.slurm.conf import Shape
    from tests.labs.slurm.lab import Lab

    weights = ("PriorityWeightFairshare=10000", "PriorityWeightTRES=gres/gpu=20000")
    shape = Shape(nodes=NODES, accounting=True, extra=("MaxJobCount=20000", CALM, *weights))
    looks = 60 / KINDS["slurm"].tick_seconds
    rows: list[dict[str, Any]] = []
    with Lab(shape) as lab:
        _lay_accounts(lab)
        _fill_nodes(lab)
        options = {"conf": str(lab.conf), "bin": _as_service(lab), "timeout_seconds": 60}
        backend = SlurmBackend(
            Cluster(name="bench", kind="slurm", grade="observe", options=options)
        )
        gauge, there = Gauge(lab), 0
        for pending in PENDING:
            _submit(lab, pending - there)
            there = pending
            _settle(lab)
            seen = len(backend.observe("", now=now()).foreign or ())
            assert seen == pending + 1, f"{seen} jobs are seen, not {pending + 1}"
            costs = {
                "a look": gauge.cost(lambda: backend.observe("", now=now())),
                "the line": gauge.cost(lambda: backend.line(now=now())),
                "the accounts": gauge.cost(
                    lambda: (backend.accounts(now=now()), backend.qos(now=now()))
                ),
            }
            rows += rows_of(
                pending, costs, looks, limit=LIMIT_SECONDS if pending == max(PENDING) else None
            )
    return rows


def rows_of(
    pending: int, costs: dict[str, Cost], looks: float, *, limit: float | None
) -> list[dict[str, Any]]:
    """Return the figures of so many jobs: each question's, and the sum a minute of ``looks`` looks."""
    rows = []
    for what, cost in costs.items():
        head = f"slurm: {pending:,} jobs, {what}"
        rows += [
            _row(f"{head}, median of {TIMES}", cost.wall * 1e3, "ms"),
            _row(f"{head}, CPU time of slurmctld", cost.cpu * 1e3, "ms"),
            _row(f"{head}, as sdiag counts it", cost.sdiag * 1e3, "ms"),
        ]
    minute = sum(cost.cpu * (looks if what == "a look" else 1) for what, cost in costs.items())
    name = f"slurm: {pending:,} jobs, slurmctld a minute: {looks:g} looks, line, accounts"
    return [*rows, _row(name, minute, "s", limit)]


def _row(name: str, value: float, unit: str, limit: float | None = None) -> dict[str, Any]:
    ok = limit is None or value <= limit
    return {"name": name, "value": round(value, 3), "unit": unit, "limit": limit, "ok": ok}


def run() -> list[dict[str, Any]]:
    """Return the figures, measured in a process of its own."""
    from tests.labs.slurm.accounting import Accounting
    from tests.labs.slurm.lab import missing

    reason = missing(*Accounting.PROGRAMS)
    if not reason and os.geteuid() != 0:
        reason = "only root can submit other people's jobs: sudo make bench ONLY=slurm"
    if reason:
        sys.exit(f"Rollcall: the benchmark slurm measured nothing: {reason}")
    with tempfile.TemporaryDirectory(prefix="rollcall-bench-") as home:
        settings = {"ROLLCALL_DATA": home, "DJANGO_SETTINGS_MODULE": "apps.config.settings"}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.slurm"],
            cwd=ROOT,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


if __name__ == "__main__":
    print(json.dumps(_measure()))
