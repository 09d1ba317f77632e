"""Grade *advise* on a real Slurm: its line follows our order, by nice alone, and is given back."""

from __future__ import annotations

import getpass
import os
from contextlib import suppress
from subprocess import CalledProcessError
from typing import Any

import pytest
from django.utils import timezone

from apps.backends.adapters.slurm.runner import Runner
from apps.backends.kinds import preflight
from apps.backends.models import Cluster, Grade
from apps.backends.port import Finding
from apps.jobs.models import Job
from apps.scheduling import steps
from apps.scheduling.models import Advice, Nice, NiceState, Verdict
from apps.tenants.models import Tenant
from tests.labs.slurm.accounting import Association
from tests.labs.slurm.lab import Lab
from tests.slurm.play import Play

WHOLE = ("-N5", "--gres=gpu:8", "--time=60")
FIRST, SECOND = "cv", "nlp"


class Line:
    """A cluster that is full of work of the first account's, and jobs of both that wait for it."""

    def __init__(self, lab: Lab, **options: Any) -> None:
        self.lab = lab
        self.runs = self.submit(FIRST)
        lab.wait(lambda: lab.state(self.runs) == "RUNNING", "it to run")
        self.waits = [self.submit(name) for name in (FIRST, FIRST, FIRST, SECOND, SECOND, SECOND)]
        self.play = Play(lab, grade=Grade.OBSERVE, **options)
        # Rollcall has the second account's first, Slurm goes by age.
        Tenant.objects.filter(path=f"lab/{SECOND}").update(weight=100)
        self.play.tick()

    def submit(self, account: str, *more: str, script: str = "sleep 600") -> str:
        return self.lab.submit(script, *WHOLE, f"--account={account}", *more)

    def preflight(self) -> Finding:
        """What a preflight says of our right to change other people's nice."""
        found = preflight(Cluster.objects.get(), now=timezone.now())
        (one,) = [one for one in found if one.name == "rank"]
        return one

    def grade(self, grade: str) -> None:
        Cluster.objects.update(grade=grade)
        self.play.tick()

    @property
    def theirs(self) -> list[str]:
        """The jobs that wait in the order of Slurm's own priorities."""
        said = ("squeue", "-h", "-t", "PD", "--sort=-p,i", "-o", "%A %Q")
        return [line.split()[0] for line in self.lab.run(*said).splitlines() if line[-2:] != " 0"]

    @property
    def ours(self) -> list[str]:
        """The same in the order of Rollcall's plan."""
        rows = Verdict.objects.filter(job__held_at__isnull=True).order_by("position")
        return [
            ref.split(":")[1].rstrip("_[")
            for ref in rows.values_list("job__foreign_ref", flat=True)
        ]

    def nice(self) -> dict[str, int]:
        """The nice of each job that is not over."""
        out = self.lab.run("squeue", "-h", "-o", "%A %y").splitlines()
        return {one.split()[0]: int(one.split()[1]) for one in out}

    def row(self, job: str) -> Nice:
        return Nice.objects.get(job__foreign_ref__contains=f":{job}")

    def renice(self, job: str, nice: int) -> None:
        self.lab.run("scontrol", "update", f"JobId={job}", f"Nice={nice}")


@pytest.fixture
def line(lab: Lab, db: None) -> Line:
    return Line(lab)


def test_slurms_line_follows_our_order_and_who_is_first_starts_first(line: Line) -> None:
    before = line.theirs
    assert before == line.waits
    assert line.nice() == dict.fromkeys([line.runs, *line.waits], 0)

    line.grade(Grade.ADVISE)

    assert line.ours == [*line.waits[3:], *line.waits[:3]]
    assert line.theirs == line.ours
    # Those of one side alone had to move.
    assert sum(nice != 0 for nice in line.nice().values()) == 3
    assert Advice.objects.get().trouble == ""
    line.lab.run("scancel", line.runs)
    line.lab.wait(lambda: line.lab.state(line.ours[0]) == "RUNNING", "our first to run")
    assert [line.lab.state(job) for job in line.waits].count("RUNNING") == 1


def test_what_is_in_order_is_not_touched_again(line: Line) -> None:
    line.grade(Grade.ADVISE)
    (first,) = set(Nice.objects.values_list("asked_at", flat=True))
    nice = line.nice()

    for _ in range(3):
        line.play.tick()

    assert line.nice() == nice
    assert set(Nice.objects.values_list("asked_at", flat=True)) == {first}
    assert set(Nice.objects.values_list("state", flat=True)) == {NiceState.SET}


def test_nothing_is_changed_on_a_cluster_that_is_only_observed(line: Line) -> None:
    line.play.tick()

    assert line.theirs != line.ours
    assert set(line.nice().values()) == {0}
    assert not Nice.objects.exists()


@pytest.mark.parametrize("grade", [Grade.OBSERVE, Grade.DRIVE])
def test_who_is_advised_no_longer_has_its_nice_back(line: Line, grade: str) -> None:
    modest = line.submit(SECOND, "--nice=70")
    held = line.submit(SECOND)
    line.grade(Grade.ADVISE)
    line.play.tick()
    assert line.theirs == line.ours
    assert line.row(modest).original == 70
    assert line.nice()[modest] != 70
    # One that is put on hold meanwhile is given its own back too, and stays on hold.
    assert line.nice()[held] != 0
    line.lab.run("scontrol", "hold", held)

    line.grade(grade)
    line.play.tick()

    assert line.nice() == dict.fromkeys([line.runs, *line.waits, held], 0) | {modest: 70}
    assert line.lab.run("squeue", "-h", "-j", held, "-o", "%T %Q %r") == "PENDING 0 JobHeldAdmin"
    assert not Nice.objects.exists()


def test_a_hand_wins(line: Line) -> None:
    line.grade(Grade.ADVISE)
    mine, fixed = line.waits[3], line.waits[4]
    line.renice(mine, 5_000)
    line.lab.run("scontrol", "update", f"JobId={fixed}", "Priority=77")
    late = line.submit(SECOND)

    for _ in range(3):
        line.play.tick()

    assert line.row(mine).state == NiceState.BY_HAND
    assert line.nice()[mine] == 5_000
    rest = [job for job in line.ours if job not in (mine, fixed)]
    assert [job for job in line.theirs if job not in (mine, fixed)] == rest
    assert late in rest
    line.grade(Grade.OBSERVE)
    line.play.tick()
    assert line.nice()[mine] == 5_000
    assert line.lab.run("squeue", "-h", "-j", fixed, "-o", "%Q") == "77"


def test_a_priority_that_somebody_set_stays(line: Line) -> None:
    fixed = line.waits[0]
    line.lab.run("scontrol", "update", f"JobId={fixed}", "Priority=5000")

    line.grade(Grade.ADVISE)
    for _ in range(3):
        line.play.tick()

    assert line.lab.run("squeue", "-h", "-j", fixed, "-o", "%Q %y") == "5000 0"
    assert [job for job in line.theirs if job != fixed] == [j for j in line.ours if j != fixed]


def test_what_is_on_hold_is_left_alone(line: Line) -> None:
    held = line.submit(SECOND, "--hold")

    line.grade(Grade.ADVISE)
    line.play.tick()

    assert line.nice()[held] == 0
    assert line.theirs == line.ours


def test_all_tasks_of_an_array_that_wait_move_at_once(line: Line) -> None:
    array = line.submit(SECOND, "--array=1-40%2")
    line.lab.run("scancel", f"{array}_3")

    line.grade(Grade.ADVISE)
    line.play.tick()

    assert line.theirs == line.ours
    assert Advice.objects.get().trouble == ""
    assert line.nice()[array] == line.row(array).asked != 0
    line.grade(Grade.OBSERVE)
    assert line.nice()[array] == 0


@pytest.mark.parametrize("step", ["ranking", "ranked"])
def test_a_worker_that_dies_between_forgets_nothing(
    line: Line, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blow(Exception):
        pass

    def strike(name: str) -> None:
        if name == step:
            raise Blow

    with monkeypatch.context() as patch:
        patch.setattr(steps, "reached", strike)
        with pytest.raises(Blow):
            line.grade(Grade.ADVISE)

    line.play.tick()
    assert line.theirs == line.ours
    assert set(Nice.objects.values_list("original", "state")) == {(0, NiceState.SET)}
    line.grade(Grade.OBSERVE)
    assert set(line.nice().values()) == {0}


def test_what_slurm_forgot_in_a_crash_is_asked_again(line: Line) -> None:
    line.lab.remember()
    line.grade(Grade.ADVISE)
    assert line.theirs == line.ours

    line.lab.kill_controller(forget=True)
    line.lab.start_controller()
    assert line.theirs != line.ours
    for _ in range(2):
        line.play.tick()

    assert line.theirs == line.ours
    assert not Nice.objects.filter(state=NiceState.BY_HAND).exists()


def test_of_many_the_first_of_the_plan_come_first_and_few_a_tick(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.scheduling.advise.MOST_ASKED", 2)

    line.grade(Grade.ADVISE)
    assert Nice.objects.count() == 2
    assert line.theirs[:2] == line.ours[:2]

    line.play.tick()
    assert line.theirs == line.ours


def test_jobs_that_are_over_are_forgotten(line: Line) -> None:
    line.grade(Grade.ADVISE)
    assert Nice.objects.count() == 3

    line.lab.run("scancel", *line.waits[3:])
    line.play.until(lambda: not Nice.objects.exists(), "forgotten")

    assert Job.objects.filter(state="CANCELLED").count() == 3


# Whose right it is: commands as nobody, on a Slurm that keeps accounts

ACCOUNTS = (
    "Parent - 'root'",
    f"User - '{getpass.getuser()}':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1",
    "Account - 'cv':Description='d':Organization='o':Fairshare=1",
    "Account - 'nlp':Description='d':Organization='o':Fairshare=1",
    "Parent - 'cv'",
    f"User - '{getpass.getuser()}':Fairshare=1",
    "User - 'nobody':DefaultAccount='cv':Fairshare=1",
    "Parent - 'nlp'",
    f"User - '{getpass.getuser()}':Fairshare=1",
)
AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


@pytest.fixture
def plain(accounting_lab: Lab, db: None, monkeypatch: pytest.MonkeyPatch) -> Line:
    """A line whose jobs are others', and whose service user is the user nobody."""
    if os.geteuid() != 0:
        pytest.skip("only root can run commands as somebody else")
    kept = accounting_lab.accounting
    kept.load(ACCOUNTS, clean=True)
    with suppress(CalledProcessError):  # it is so already
        accounting_lab.run("sacctmgr", "-i", "modify", "user", "nobody", "set", "adminlevel=None")
    # By Slurm's own fair share the second account comes last.
    kept.seed_usage({Association(SECOND, getpass.getuser()): 1e7})
    kept.register()
    found = Runner._found
    monkeypatch.setattr(Runner, "_found", lambda self, command: [*AS_NOBODY, *found(self, command)])
    return Line(accounting_lab)


def test_without_the_right_it_says_what_grants_it_and_the_tick_goes_on(plain: Line) -> None:
    nice = plain.nice()

    plain.grade(Grade.ADVISE)

    command = "sacctmgr -i modify user nobody set adminlevel=Operator"
    given = Advice.objects.get()
    assert given.trouble == (
        "Slurm does not let nobody change the nice of other people's jobs. An administrator of Slurm"
        f" grants it: {command}."
    )
    assert plain.play.trouble == ""
    assert given.given_at is None
    assert plain.nice() == nice
    # It is not tried again at once, and the plan is made as before.
    planned = Verdict.objects.first().tick_id
    plain.play.tick()
    assert Verdict.objects.first().tick_id > planned
    assert Advice.objects.get().again_at == given.again_at
    assert (plain.preflight().state, plain.preflight().command) == ("missing", command)


def test_an_operator_may_and_what_it_takes_is_one_command(plain: Line) -> None:
    plain.grade(Grade.ADVISE)
    assert plain.theirs != plain.ours

    plain.lab.run(*plain.preflight().command.split())
    Advice.objects.update(again_at=None)
    for _ in range(2):
        plain.play.tick()

    assert plain.preflight().state == "ok"
    assert Advice.objects.get().trouble == ""
    assert plain.theirs == plain.ours
    who = plain.lab.run("squeue", "-h", "-o", "%u").split()
    assert set(who) == {getpass.getuser()} != {"nobody"}
    plain.grade(Grade.OBSERVE)
    assert set(plain.nice().values()) == {0}


def test_slurmrestd_gives_it_and_takes_it_back(rest_lab: Lab, db: None) -> None:
    if rest_lab.shape.accounting:
        for account in (FIRST, SECOND):
            rest_lab.run("sacctmgr", "-i", "add", "account", account)
            rest_lab.run("sacctmgr", "-i", "add", "user", getpass.getuser(), f"account={account}")
    line = Line(rest_lab, **rest_lab.rest.options())
    modest, eager = line.submit(SECOND, "--nice=70"), line.submit(FIRST)
    line.renice(eager, -340)

    line.grade(Grade.ADVISE)
    line.play.tick()

    assert Advice.objects.get().trouble == ""
    assert line.theirs == line.ours
    assert set(Nice.objects.values_list("state", flat=True)) == {NiceState.SET}
    assert line.row(modest).original == 70
    line.grade(Grade.OBSERVE)
    line.play.tick()
    assert line.nice() == dict.fromkeys([line.runs, *line.waits], 0) | {modest: 70, eager: -340}
