"""The house rules that a machine can check: lengths, paths, words and the lists that must agree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from apps.config import env

ROOT = Path(__file__).resolve().parents[2]
LONGEST_FILE = 500


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def test_every_file_is_short_enough_to_be_read_whole():
    written = [
        path for path in tracked("*.py", "*.js", "*.css", "*.html", "*.sh") if path.is_file()
    ]

    long = {
        str(path.relative_to(ROOT)): lines
        for path in written
        if "migrations" not in path.parts
        and (lines := len(path.read_text().splitlines())) > LONGEST_FILE
    }

    assert len(written) > 100
    assert long == {}


def test_no_file_names_a_machine_or_a_place_to_download_from():
    # Spelled in pieces, or this file would be its own finding.
    words = ("/ work/", "/ root/", r"cdn \.", "un pkg", "js delivr", "google apis", r"pypi \.org",
             r"registry \.npmjs")  # fmt: skip
    bad = re.compile("|".join(word.replace(" ", "") for word in words))

    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path.suffix
        in {".py", ".html", ".js", ".css", ".md", ".toml", ".yml", ".yaml", ".sh", ""}
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if bad.search(line)
    ]

    assert found == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/OPERATIONS.md"])
def test_a_page_links_only_to_what_exists(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    links += re.findall(r'src="(?!https?:)([^"]+)"', page.read_text())

    missing = [link for link in links if not (page.parent / link).exists()]

    assert links
    assert missing == []


def test_the_readme_says_both_commands_on_its_first_screen():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])

    assert "make demo" in first
    assert "make test" in first


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/OPERATIONS.md"])
def test_every_make_and_manage_command_in_a_page_is_there(name):
    text = (ROOT / name).read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = {path.stem for path in tracked("apps/*/management/commands/*.py")}
    builtin = {"migrate", "createsuperuser", "changepassword", "collectstatic", "check", "shell",
               "clearsessions", "makemigrations", "dbshell"}  # fmt: skip

    said = set(
        re.findall(
            r"`?make ([a-z]+)", " ".join(re.findall(r"`[^`]+`|^    .*$|^make .*$", text, re.M))
        )
    )
    managed = set(re.findall(r"manage\.py ([a-z_]+)", text))

    assert said <= targets
    assert managed <= commands | builtin


def test_operations_names_every_setting_that_is_read():
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()

    unnamed = {name for name in env.NAMES if f"`{name}`" not in text}

    assert len(env.NAMES) > 15
    assert unnamed == set()


def test_requirements_are_pinned():
    lines = [
        line
        for name in ("requirements.txt", "requirements-dev.txt", "constraints.txt")
        for line in (ROOT / name).read_text().splitlines()
        if line and not line.startswith(("#", "-r "))
    ]

    assert [
        line for line in lines if not re.match(r"[A-Za-z0-9_.-]+(\[[a-z]+\])?==[\w.]+", line)
    ] == []


def test_scripts_are_sound_shell():
    for path in [*tracked("tools/*.sh"), ROOT / ".ci" / "run"]:
        shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
        answer = subprocess.run(
            [shell, "-n", str(path)], capture_output=True, text=True, check=False
        )

        assert answer.returncode == 0, answer.stderr
        assert path.stat().st_mode & 0o100, f"{path.name} is not executable"
