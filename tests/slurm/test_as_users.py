"""A job runs as the user who submitted it: by sudo for sbatch alone, or by a token signed for them."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from apps.backends.adapters.slurm.tokens import signed
from apps.backends.kinds import preflight
from apps.backends.port import Finding
from apps.common.sealing import seal, unseal
from tests.labs.slurm.lab import BIN, PATH, Lab
from tests.slurm.stage import SAVES, Stage, now

# Users that every system has; the first is the service user, the others submit.
SERVICE, ANA, EVE = "nobody", "games", "daemon"
SUDO = Path("/usr/bin/sudo")
SUDOERS = Path("/etc/sudoers.d")
TREE = (
    "Parent - 'root'",
    "Account - 'cv':Description='d':Organization='o':Fairshare=3",
    "Parent - 'cv'",
    f"User - '{SERVICE}':DefaultAccount='cv':AdminLevel='Operator':Fairshare=1",
    f"User - '{ANA}':DefaultAccount='cv':Fairshare=1",
    f"User - '{EVE}':DefaultAccount='cv':Fairshare=1",
)
OPTIONS = {"run_as": "sudo", "account": "cv", "users": {"ana@example.org": ANA, "eve": EVE}}


def whose(stage: Stage, uid: str) -> str:
    """Return user, account and state of an attempt's job."""
    return stage.lab.run(
        "squeue", "-h", "-t", "all", f"--name=train.{uid}", "-o", "%u %a %T"
    )  # fmt: skip


def be_nobody(folder: Path) -> None:
    """Lay Slurm's commands and sudo into a folder, such that all of them are run by ``SERVICE``."""
    folder.mkdir(exist_ok=True)
    for name in (
        "scontrol",
        "squeue",
        "sbatch",
        "scancel",
        "sacctmgr",
        "sshare",
        "sdiag",
        "sudo",
        "id",
    ):
        # What sudo starts is another user already.
        (folder / name).write_text(
            "#!/bin/sh\n"
            f"PATH={PATH}\n"
            f'[ "$(id -u)" = 0 ] || exec {name} "$@"\n'
            f'exec setpriv --reuid={SERVICE} --regid=nogroup --clear-groups {name} "$@"\n'
        )
        (folder / name).chmod(0o755)


@pytest.fixture
def lab(accounting_lab: Lab) -> Lab:
    if os.geteuid() != 0:
        pytest.skip("only root can run commands as somebody else, and give them a sudoers rule")
    if not SUDO.exists():
        pytest.skip("sudo is absent: make test ONLY=slurm installs it")
    if f"UserName={EVE}(" not in accounting_lab.run("scontrol", "show", "assoc_mgr", "flags=users"):
        accounting_lab.accounting.load(TREE, clean=True)
        accounting_lab.accounting.register()
    be_nobody(accounting_lab.dir / "as-nobody")
    return accounting_lab


@pytest.fixture
def rule(lab: Lab) -> Iterator[Path]:
    """The rule of docs/SLURM.md, and one line more: this slurm.conf is where Slurm would not look."""
    path = SUDOERS / f"rollcall-test-{uuid4().hex[:8]}"
    sbatch = lab.dir / "as-nobody" / "sbatch"
    path.write_text(
        f"{SERVICE} ALL=({ANA},{EVE}) NOPASSWD: {sbatch}\n"
        f'Defaults:{SERVICE} env_keep += "SLURM_CONF"\n'
    )
    path.chmod(0o440)
    try:
        subprocess.run(["/usr/sbin/visudo", "-c", "-q", "-f", str(path)], check=True)
        yield path
    finally:
        path.unlink()


@pytest.fixture
def stage(lab: Lab) -> Stage:
    return Stage(lab, changes={**OPTIONS, "bin": str(lab.dir / "as-nobody")})


def test_it_runs_as_its_user_and_does_all_that_others_do(stage: Stage, rule: Path) -> None:
    request = stage.gang("gpu1", "gpu2", workload=SAVES, user="ana@example.org")

    running = stage.start(request)
    again = stage.backend.launch(request, now=now())
    foreign = stage.look().foreign
    # Slurm drops a signal to a script that it has yet to start.
    said = (stage.lab.dir / "jobs").glob
    stage.wait(
        lambda: any("ready" in out.read_text() for out in said(f"*{request.uid}.out")), "its script"
    )
    at = now()
    stage.backend.demote(request.uid, now=at)
    stage.backend.ask_to_leave(request.uid, until=at, now=at)
    seen = stage.until(request.uid, "ended")

    assert running.nodes == ("gpu1", "gpu2")
    assert again.outcome == "exists"
    assert foreign is not None
    assert [one for one in foreign if one.state != "ended"] == []
    assert whose(stage, request.uid).startswith(f"{ANA} cv ")
    assert (seen.outcome, seen.checkpoint_at is None) == ("stopped", False)


def test_it_is_stopped_and_finds_its_environment(stage: Stage, rule: Path) -> None:
    out = stage.lab.dir / "jobs" / f"{uuid4().hex}.out"
    script = (
        '#!/bin/bash\necho "$(id -un) $ROLLCALL_TENANT $ROLLCALL_UID $ROLLCALL_MEMBERS"; sleep 60\n'
    )
    workload = {"script": script, "output": str(out)}
    request = stage.gang("gpu1", workload=workload, user="eve", tenant="vision/seg")
    stage.start(request)
    stage.wait(lambda: out.exists() and out.read_text() != "", "its first words")

    stage.backend.stop(request.uid, now=now())

    assert stage.until(request.uid, "ended").outcome == "stopped"
    assert out.read_text().strip().split("\n")[0] == f"{EVE} vision/seg {request.uid} 1"


def test_without_the_rule_it_is_refused_in_words(stage: Stage) -> None:
    request = stage.gang("gpu1", user="eve")

    answer = stage.backend.launch(request, now=now())

    assert answer.outcome == "refused"
    assert f"does not let the service user run sbatch as {EVE}" in answer.detail
    assert stage.lab.jobs() == []


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("", "submitted by nobody in particular"),
        ("root", "as whom nothing of Rollcall's ever runs"),
        ("a b", "cannot be the name of a user there"),
        ("-u#0", "cannot be the name of a user there"),
        ("bin", "does not let the service user run sbatch as bin"),
    ],
)
def test_nobody_else_is_run_as(stage: Stage, rule: Path, user: str, words: str) -> None:
    answer = stage.backend.launch(stage.gang("gpu1", user=user), now=now())

    assert answer.outcome == "refused"
    assert words in answer.detail


def test_a_users_own_job_does_not_pass_for_an_attempt(stage: Stage, rule: Path) -> None:
    request = stage.gang("gpu1", user="ana@example.org")
    stage.start(request)
    (comment,) = stage.lab.run(
        "squeue", "-h", f"--name=train.{request.uid}", "-o", "%k"
    ).splitlines()  # fmt: skip
    forged = f"x\n0|1|{comment}"

    for said in (comment, comment.replace("sig=", "sig=x"), forged):
        stage.lab.submit(
            "sleep 600", "--gres=gpu:h100:1", "--account=cv", f"--comment={said}",
            f"--job-name=a|b\n{said}", user=EVE,
        )  # fmt: skip
    seen = stage.look()

    assert [one.uid for one in seen.attempts] == [request.uid]
    assert stage.attempt(request.uid).nodes == ("gpu1",)
    assert seen.foreign is not None
    others = [one.user for one in seen.foreign if one.state != "ended"]
    assert others == [EVE, EVE, EVE]


def test_the_preflight_says_what_is_missing_and_grants_it(stage: Stage) -> None:
    def found() -> dict[str, Finding]:
        return {one.name: one for one in preflight(stage.cluster, now=now())}

    before = found()
    stage.lab.run("sacctmgr", "-i", "modify", "user", SERVICE, "set", "adminlevel=None")
    try:
        plain = found()
        stage.lab.run(*shlex.split(plain["operator"].command))
    finally:
        stage.lab.run("sacctmgr", "-i", "modify", "user", SERVICE, "set", "adminlevel=Operator")

    assert before["run_as"].state == "missing"
    assert f"{SERVICE} ALL=(%USERS) NOPASSWD: /usr/bin/sbatch" in before["run_as"].command
    assert (before["operator"].state, plain["operator"].state) == ("ok", "missing")
    assert found()["operator"].state == "ok"


def test_the_preflight_believes_the_rule(stage: Stage, rule: Path) -> None:
    (told,) = [one for one in preflight(stage.cluster, now=now()) if one.name == "run_as"]
    rule.write_text(rule.read_text() + f"{SERVICE} ALL=(ALL) NOPASSWD: /bin/ls\n")
    (more,) = [one for one in preflight(stage.cluster, now=now()) if one.name == "run_as"]

    assert (told.state, told.command) == ("ok", "")
    assert f"as {ANA}, {EVE}" in told.sentence
    assert more.state == "warning"
    assert "/bin/ls" in more.sentence


class TestTokens:
    """By slurmrestd: a token that is signed for a job's user, or that the user has entered."""

    @pytest.fixture
    def options(self, rest_lab: Lab) -> dict[str, Any]:
        if BIN:
            pytest.skip("the next Slurm's lab has no slurmdbd, so no operators")
        if not rest_lab.run("sacctmgr", "-nP", "show", "assoc", f"user={ANA}"):
            rest_lab.run("sacctmgr", "-i", "add", "user", f"{ANA},{EVE}", "account=research")
            rest_lab.run("sacctmgr", "-i", "modify", "user", SERVICE, "set", "adminlevel=Operator")
        told = rest_lab.rest.options() | {"token": rest_lab.rest.token(SERVICE), "user": SERVICE}
        return told | {"run_as": "token", "users": {"ana": ANA, "eve": EVE}}

    def test_one_that_is_signed_for_them(self, rest_lab: Lab, options: dict[str, Any]) -> None:
        stage = Stage(rest_lab, changes=options | {"token": "", "jwt_key": str(rest_lab.rest.key)})
        request = stage.gang("gpu1", user="ana")

        stage.start(request)
        whose_it_is = whose(stage, request.uid)
        stage.backend.stop(request.uid, now=now())

        assert whose_it_is == f"{ANA} research RUNNING"
        assert stage.until(request.uid, "ended").outcome == "stopped"

    def test_one_that_they_have_entered(self, rest_lab: Lab, options: dict[str, Any]) -> None:
        stage = Stage(rest_lab, changes=options)
        token = seal(rest_lab.rest.token(ANA))
        request = stage.gang("gpu1", user="ana", token=token, workload=SAVES)

        stage.start(request)
        whose_it_is = whose(stage, request.uid)
        stage.backend.ask_to_leave(request.uid, until=now(), now=now())

        assert "user_tokens" in stage.backend.capabilities().can
        assert whose_it_is == f"{ANA} research RUNNING"
        assert stage.until(request.uid, "ended").checkpoint_at is not None
        assert token not in repr(request)

    def test_one_that_slurm_does_not_take_is_its_users_trouble_alone(
        self, rest_lab: Lab, options: dict[str, Any]
    ) -> None:
        stage = Stage(rest_lab, changes=options)
        forged = seal(signed(b"not the key", ANA, now=now().timestamp()))
        stage.look()

        answer = stage.backend.launch(stage.gang("gpu1", user="ana", token=forged), now=now())
        other = stage.gang("gpu2", user="eve", token=seal(rest_lab.rest.token(EVE)))
        stage.start(other)

        assert answer.outcome == "refused"
        assert ANA in answer.detail
        assert unseal(forged) not in answer.detail
        assert [one.uid for one in stage.look().attempts] == [other.uid]

    @pytest.mark.parametrize(
        ("token", "said"),
        [
            ("", "ana has entered no token for it, which is done on the page Profile"),
            (signed(b"key", EVE, now=0), f"The token is for {EVE}, not for {ANA}"),
            (signed(b"key", ANA, now=0), "The token ended at 1970-01-01 00:05:00 UTC"),
            ("sealed:by another key", "cannot be read any more; it is to be entered again"),
        ],
    )
    def test_one_that_cannot_do_is_not_even_sent(
        self, rest_lab: Lab, options: dict[str, Any], token: str, said: str
    ) -> None:
        stage = Stage(rest_lab, changes=options)

        answer = stage.backend.launch(stage.gang("gpu1", user="ana", token=token), now=now())

        assert answer.outcome == "refused"
        assert said in answer.detail
        assert rest_lab.jobs() == []
