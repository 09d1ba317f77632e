"""The preflight by slurmrestd: whose token until when, what is spoken, and what it cannot tell."""

from __future__ import annotations

import time
from typing import Any

import pytest

from apps.backends.adapters.slurm.tokens import signed
from apps.backends.kinds import preflight
from apps.backends.port import Finding
from tests.labs.slurm.lab import Lab
from tests.slurm.stage import Stage, now

ALONE = [
    "token", "slurmrestd", "service_user", "version", "slurmctld", "clock", "partition", "gpus",
    "accounting", "submission", "settings", "signal",
]  # fmt: skip


@pytest.fixture
def lab(rest_lab: Lab) -> Lab:
    return rest_lab


def found(lab: Lab, **changes: Any) -> dict[str, Finding]:
    """What a preflight of the lab by slurmrestd finds, the last of each name."""
    options = lab.rest.options() | changes
    return {one.name: one for one in preflight(Stage(lab, changes=options).cluster, now=now())}


def test_all_that_slurmrestd_tells_is_told(lab: Lab) -> None:
    told = found(lab, token=signed(lab.rest.key.read_bytes(), lab.rest.user, now=time.time() + 1e7))

    assert list(told) == ALONE
    cannot = {"submission", "settings", "signal", "service_user", "version"}
    assert {one.state for name, one in told.items() if name not in cannot} == {"ok"}, told
    assert "v0.0.38" in told["slurmrestd"].sentence
    assert f"The token of {lab.rest.user} is valid until 20" in told["token"].sentence
    assert "5 nodes with 40 h100; 5 of them up" in told["gpus"].sentence
    assert lab.jobs() == []


def test_with_commands_beside_it_the_rest_is_asked_of_them(lab: Lab) -> None:
    told = found(lab, conf=str(lab.conf))

    assert list(told)[:2] == ["token", "slurmrestd"]
    assert {"commands", "submission", "kill_wait", "priority"} <= set(told)
    assert told["submission"].state == "ok"


def test_a_token_is_said_when_it_ends_soon_has_ended_or_is_another_s(lab: Lab) -> None:
    key, user = lab.rest.key.read_bytes(), lab.rest.user
    soon = found(lab)["token"]
    ended = found(lab, token=signed(key, user, now=time.time() - 900))
    other = found(lab, token=signed(key, "nobody", now=time.time()))
    wrong = found(lab, token=signed(b"0" * 32, user, now=time.time()))

    assert soon.state == "warning"
    assert list(ended) == list(other) == ["token"]
    assert "ended at 20" in ended["token"].sentence
    assert "is for nobody" in other["token"].sentence
    assert list(wrong)[-1] == "slurmctld"
    assert wrong["slurmctld"].state == "missing"
    assert ended["token"].command == soon.command
    assert lab.run(*soon.command.split()).startswith("SLURM_JWT=")


def test_a_slurmrestd_that_is_down_ends_it_with_a_command(lab: Lab) -> None:
    options = lab.rest.options()
    lab.end("slurmrestd")

    told = found(lab, **options)

    assert list(told)[-1] == "slurmrestd"
    assert (told["slurmrestd"].state, told["slurmrestd"].command) == (
        "missing", "systemctl start slurmrestd",
    )  # fmt: skip


def test_accounts_that_are_missing_are_named(lab: Lab) -> None:
    told = found(lab, account="research", accounts={"vision": "nowhere"})
    nobody = found(
        lab, user="nobody", token=lab.rest.token("nobody"), account="research",
    )  # fmt: skip

    assert (told["account"].state, told["account"].sentence) == (
        "missing", "There is no account nowhere.",
    )  # fmt: skip
    assert (nobody["account"].state, nobody["accounting"].state) == ("ok", "ok")


def test_an_unknown_partition_is_named_with_those_there_are(lab: Lab) -> None:
    told = found(lab, partition="mian")["partition"]

    assert told.state == "missing"
    assert "main, short" in told.sentence
