"""The preflight against a real Slurm: it says what is so, what grants what is not, and changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.backends.kinds import preflight
from apps.backends.port import Finding
from tests.labs.slurm.lab import Lab
from tests.labs.slurm.login import SSHD, Login, login_node
from tests.slurm.stage import Stage, now

NAMES = [
    "commands", "service_user", "version", "folder", "slurmctld", "clock", "partition", "gpus",
    "accounting", "submission", "requeue_exit", "kill_wait", "cred_expire", "private_data",
    "priority", "cost",
]  # fmt: skip


def found(lab: Lab, **changes: Any) -> dict[str, Finding]:
    """What a preflight of the lab finds, the last of each name."""
    return {one.name: one for one in preflight(Stage(lab, changes=changes).cluster, now=now())}


def test_all_is_well_and_nothing_is_left_behind(lab: Lab) -> None:
    told = preflight(Stage(lab).cluster, now=now())

    assert [one.name for one in told] == NAMES
    others = [one for one in told if one.name not in ("service_user", "version", "cost")]
    assert {one.state for one in others} == {"ok"}, others
    assert all(one.command == "" for one in others)
    # Only here are we root.
    (user,) = [one for one in told if one.name == "service_user"]
    assert user.state == ("warning" if os.geteuid() == 0 else "ok")
    assert lab.jobs() == []


def test_what_slurmctld_does_for_us_is_as_it_counts_itself(lab: Lab) -> None:
    preflight(Stage(lab).cluster, now=now())

    told = found(lab)["cost"].sentence

    matched = re.fullmatch(
        r"slurmctld has worked (\d+\.\d\d) s a minute for (\w+): ([\d,]+) requests in the"
        r" [\d,]+ min that it counts \(sdiag\)\.( Look less often.*)?",
        told,
    )
    assert matched, told
    assert int(matched[3].replace(",", "")) >= 10


def test_a_partition_that_is_misspelt_is_named_with_those_there_are(lab: Lab) -> None:
    told = found(lab, partition="mian")

    assert told["partition"].state == told["submission"].state == "missing"
    assert "no partition mian" in told["partition"].sentence
    assert "main, short" in told["partition"].sentence
    assert "partition" in told["submission"].sentence


def test_the_command_for_a_partition_that_is_down_brings_it_up(lab: Lab) -> None:
    lab.run("scontrol", "update", "PartitionName=main", "State=DOWN")

    down = found(lab)["partition"]
    lab.run(*down.command.split())

    assert (down.state, found(lab)["partition"].state) == ("missing", "ok")


def test_a_controller_that_is_down_ends_it_with_a_sentence(lab: Lab) -> None:
    lab.kill_controller()
    try:
        told = found(lab)
    finally:
        lab.start_controller()

    assert list(told)[-1] == "slurmctld"
    assert told["slurmctld"].state == "missing"
    assert "does not answer" in told["slurmctld"].sentence
    assert told["commands"].state == "ok"


def test_what_makes_things_slow_hidden_or_late_is_a_warning(lab: Lab) -> None:
    lab.configure("KillWait=90", "PrivateData=jobs", "RequeueExit=75")

    told = found(lab)

    assert told["kill_wait"].state == "warning"
    assert "90 s" in told["kill_wait"].sentence
    assert "names 75" in told["requeue_exit"].sentence
    assert "hides jobs" in told["private_data"].sentence


def test_a_clock_that_is_off_is_measured(lab: Lab) -> None:
    told = preflight(Stage(lab).cluster, now=now() - timedelta(seconds=120))

    (clock,) = [one for one in told if one.name == "clock"]
    assert clock.state == "warning"
    assert "ahead of Rollcall's" in clock.sentence


@pytest.fixture
def login(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    if not SSHD.exists():
        pytest.skip("sshd is absent: make test ONLY=slurm installs it")
    with login_node(tmp_path_factory.mktemp("login") / "node") as node:
        yield node


def test_over_ssh_the_same_is_found_and_a_login_node_that_is_not_known_is_told(
    lab: Lab, login: Login
) -> None:
    over = found(lab, **login.options)
    refused = found(lab, **login.options | {"host": "localhost"})

    assert list(over) == NAMES
    assert over["submission"].state == "ok"
    assert list(refused) == ["commands"]
    assert refused["commands"].state == "missing"
    assert "cannot be reached over SSH: Host key" in refused["commands"].sentence
    told = f"ssh-keyscan -p {login.port} localhost >> {login.known_hosts}"
    assert refused["commands"].command == told


def test_accounts_are_missed_and_the_commands_told_grant_them(accounting_lab: Lab) -> None:
    asked = {"account": "research", "accounts": {"vision": "Seen"}}

    before = preflight(Stage(accounting_lab, changes=asked).cluster, now=now())
    missing = [one for one in before if one.name in ("accounting", "account") and one.state != "ok"]
    for one in missing:
        accounting_lab.run("bash", "-c", one.command)
    # Another test may have had slurmdbd away: slurmctld comes back to it late, its nodes later.
    accounting_lab.accounting.register()
    after: list[Finding] = []

    def taken() -> bool:
        after[:] = preflight(Stage(accounting_lab, changes=asked).cluster, now=now())
        return [one.state for one in after if one.name == "submission"] == ["ok", "ok"]

    accounting_lab.wait(taken, "jobs to be taken in both accounts")

    assert {one.sentence for one in missing} == {
        "There is no account research.", "There is no account Seen."
    }  # fmt: skip
    assert [one.state for one in after if one.name == "account"] == ["ok", "ok"]
