"""The scripts behind make: what each says when something is missing, and what it then leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "cat", "cksum", "df", "awk", "grep", "rm", "tail", "touch", "dirname", "flock",
         "ls", "mktemp", "fc-list", "date", "env")  # fmt: skip


class Place:
    """A checkout with nothing but the scripts, and a PATH with nothing but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "rollcall"
        shutil.copytree(ROOT / "tools", self.home / "tools")
        for name in ("requirements.txt", "requirements-dev.txt", "constraints.txt"):
            (self.home / name).write_text("")
        self.path = folder / "bin"
        self.path.mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            if found:
                (self.path / name).symlink_to(found)
        self.program("id", "echo 1000")

    def program(self, name: str, body: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.path / name).chmod(0o755)

    def run(self, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"tools/{script}", *words], cwd=self.home, capture_output=True, text=True, check=False,
            env={"PATH": str(self.path), "MAKE_TARGET": "demo", **environment},
        )  # fmt: skip

    def refusal(self, script: str, *words: str, **environment: str) -> str:
        answer = self.run(script, *words, **environment)
        assert answer.returncode == 1, answer.stderr
        return answer.stderr.strip().splitlines()[-1]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# Answers as a python3 does: its version, whether it is new enough, whether it can make a venv.
FAKE = """
case "$*" in
  *version_info*3,\\ 11*) exit {too_old} ;;
  *version_info*) echo 3.11 ;;
  *ensurepip*) exit {no_venv} ;;
  "-V") echo "Python 3.{minor}.2" ;;
  "-m venv .venv") mkdir -p .venv/bin; cp fake-venv-python .venv/bin/python ;;
esac
"""


def test_no_python_at_all_says_what_to_type(place):
    assert place.refusal("venv.sh") == (
        "Rollcall: needs Python 3.11 or newer; type: sudo apt-get install python3 python3-venv"
    )


def test_an_old_python_is_named_with_what_to_type(place):
    place.program("python3", FAKE.format(too_old=1, no_venv=0, minor=9))

    sentence = place.refusal("venv.sh")

    assert (
        "needs Python 3.11 or newer, and Python 3.9.2 is what is here; type: sudo apt" in sentence
    )


def test_a_python_without_venv_is_named_and_nothing_half_made_is_left(place):
    place.program("python3", FAKE.format(too_old=0, no_venv=1, minor=11))

    sentence = place.refusal("venv.sh")

    assert sentence.endswith("lacks its venv module; type: sudo apt-get install python3.11-venv")
    assert not (place.home / ".venv").exists()


def test_a_small_disk_is_told_before_anything_is_made(place):
    place.program("df", "echo head; echo fs 100 90 10 90% /")

    sentence = place.refusal("venv.sh")

    assert "10 MB are free; free some space, then type: make demo" in sentence
    assert not (place.home / ".venv").exists()


def test_a_disk_that_fills_up_under_pip_is_one_sentence_and_the_next_run_begins_anew(place):
    for name in ("mkdir", "cp"):
        (place.path / name).symlink_to(shutil.which(name))
    (place.home / "fake-venv-python").write_text(
        '#!/bin/sh\ncase "$*" in *install*) echo "[Errno 28] No space left on device"; exit 1 ;; esac\n'
    )
    (place.home / "fake-venv-python").chmod(0o755)
    place.program("python3", FAKE.format(too_old=0, no_venv=0, minor=11))

    sentence = place.refusal("venv.sh")
    again = place.run("venv.sh").stderr

    assert sentence.startswith("Rollcall: the disk is full; free some space under")
    assert sentence.endswith("then type: make demo")
    assert "making a virtual environment" in again


def test_an_environment_is_made_once_and_a_half_made_one_again(place):
    (place.path / "python3").symlink_to(os.path.realpath(sys.executable))
    made = place.run("venv.sh")
    quick = place.run("venv.sh")
    marker = place.home / ".venv" / "stale"
    marker.touch()
    (place.home / ".venv" / "rollcall-unfinished").touch()

    again = place.run("venv.sh")

    assert made.returncode == 0, made.stderr
    assert "making a virtual environment" in made.stderr
    assert (quick.returncode, quick.stderr) == (0, "")
    assert again.returncode == 0
    assert not marker.exists()


def test_who_may_not_install_is_told_what_is_missing(place):
    sentence = place.refusal("system.sh", "unit", "browser")

    assert "type: sudo apt-get install" in sentence
    assert "redis-server" in sentence
    assert "chromium" in sentence
    assert "postgresql" not in sentence


def test_only_the_benchmark_of_slurm_needs_one_and_no_browser(place):
    (place.home / "tools/system.sh").write_text(
        (ROOT / "tools/system.sh").read_text().replace("/usr/sbin/", "/nowhere/")
    )

    sentence = place.refusal("system.sh", "bench", "bench-slurm")

    assert "slurmctld" not in place.refusal("system.sh", "bench", "bench-engine")
    assert "slurmctld" in sentence
    assert "slurm-client" in sentence
    assert "chromium" not in sentence


def test_a_leg_that_is_none_is_named(place):
    answer = place.run("test.sh", ONLY="unti")

    assert answer.returncode == 2
    assert "there is no leg 'unti'" in answer.stderr


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("pytest.skip('../shared is absent')", 0),
        ("pytest.skip('no time today')", 1),
        ("pytest.xfail('known')", 1),
        ("assert True", 0),
    ],
)
def test_ci_fails_on_a_skip_that_nobody_allowed(line, status, tmp_path):
    test = tmp_path / "test_one.py"
    test.write_text(f"import pytest\n\ndef test_one():\n    {line}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:django",
               "-p", "tests.skips", str(test)]  # fmt: skip

    in_ci = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "CI": "true"}, capture_output=True, text=True, check=False
    )  # fmt: skip
    at_home = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "CI": ""}, capture_output=True, text=True, check=False
    )  # fmt: skip

    assert in_ci.returncode == status, in_ci.stdout + in_ci.stderr
    assert ("NOT ALLOWED TO SKIP" in in_ci.stdout) == (status == 1)
    assert at_home.returncode == 0
