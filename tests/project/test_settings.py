"""What the settings refuse, and what they promise in production."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRODUCTION = {
    "ROLLCALL_MODE": "production",
    "SECRET_KEY": "k7-Qz9_wB" * 9,
    "ALLOWED_HOSTS": "rollcall.example.com",
    "DATABASE_URL": "postgres://rollcall:hush@db.example.com:5432/rollcall",
    "REDIS_URL": "redis://redis.example.com:6379/0",
}


def manage(*arguments: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env={**kept, "ROLLCALL_DATA": str(tmp_path), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"ROLLCALL_MODE": "prod"}, "ROLLCALL_MODE must be one of development, demo, production"),
        ({"ROLLCALL_MOOD": "demo"}, "ROLLCALL_MOOD is not a setting of Rollcall"),
        ({"DEBUG": "maybe"}, "DEBUG must be yes or no, not 'maybe'"),
        ({"TICK_SECONDS": "0"}, "TICK_SECONDS must be a whole number of at least 1"),
        ({"TICK_SECONDS": "2.5"}, "TICK_SECONDS must be a whole number"),
        ({"TICK_SECONDS": "20", "LEASE_SECONDS": "10"}, "LEASE_SECONDS must not be below"),
        ({"REPORT_ZONE": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"DATABASE_URL": "mysql://h/n"}, "DATABASE_URL must be postgres://"),
        ({"DATABASE_URL": "nonsense"}, "DATABASE_URL must be postgres://"),
        ({"REDIS_URL": "http://h"}, "REDIS_URL must start with redis://"),
        ({"TRUST_PROXY": "yes"}, "TRUST_PROXY mean nothing with HTTPS=no"),
        ({**PRODUCTION, "SECRET_KEY": ""}, "SECRET_KEY must be set in production"),
        ({**PRODUCTION, "SECRET_KEY": "short"}, "SECRET_KEY must have 50 characters"),
        ({**PRODUCTION, "DEBUG": "yes"}, "DEBUG must not be on in production"),
        ({**PRODUCTION, "ALLOWED_HOSTS": "*"}, "ALLOWED_HOSTS must name the hosts"),
        ({**PRODUCTION, "ALLOWED_HOSTS": ""}, "ALLOWED_HOSTS must name the hosts"),
        ({**PRODUCTION, "DATABASE_URL": ""}, "DATABASE_URL must be set in production"),
    ],
)
def test_a_wrong_environment_is_refused_in_one_sentence(environment, sentence, tmp_path):
    answer = manage("check", tmp_path=tmp_path, **environment)

    assert answer.returncode == 1
    assert sentence in answer.stderr
    assert answer.stderr.startswith("Rollcall: ")
    assert "Traceback" not in answer.stderr


def test_production_passes_djangos_checklist(tmp_path):
    answer = manage("check", "--deploy", "--fail-level", "WARNING", tmp_path=tmp_path, **PRODUCTION)

    assert answer.returncode == 0, answer.stderr


def test_production_lays_out_its_static_files_with_hashed_names(tmp_path):
    answer = manage(
        "collectstatic",
        "--noinput",
        tmp_path=tmp_path,
        STATIC_ROOT=str(tmp_path / "s"),
        **PRODUCTION,
    )

    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "s" / "staticfiles.json").exists()


def test_the_demos_key_is_made_once_and_is_its_owners_alone(tmp_path):
    read = [
        "shell",
        "--no-imports",
        "-c",
        "from django.conf import settings; print(settings.SECRET_KEY)",
    ]

    first = manage(*read, tmp_path=tmp_path, ROLLCALL_MODE="demo").stdout
    second = manage(*read, tmp_path=tmp_path, ROLLCALL_MODE="demo").stdout

    assert first == second
    assert len(first.strip()) > 50
    assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600


def test_the_demo_refuses_to_run_outside_its_mode(tmp_path):
    answer = manage("demo", tmp_path=tmp_path)

    assert answer.returncode == 1
    assert "type: make demo" in answer.stderr
