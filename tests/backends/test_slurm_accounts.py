"""Accounts as sacctmgr and sshare print them, where no Slurm is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.backends.adapters.slurm.accounts import accounts_in, gpus_of, qos_in, with_usage
from apps.backends.adapters.slurm.notes import noted, with_note
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.backends.port import BackendError, SeenAccount, SeenQos, SeenUser
from tests.factories import NOW

CONFIG = """\
Configuration data as of 1796206519
AccountingStorageType   = accounting_storage/slurmdbd
BOOT_TIME               = 1796206000
ClusterName             = lab
"""
HEAD = "Account|User|RawShares|NormShares|RawUsage|NormUsage|EffectvUsage|FairShare|LevelFS"


def test_rows_of_other_clusters_and_of_names_with_a_bar_are_left_out() -> None:
    text = "lab|cv|root|||3|cpu=9,gres/gpu=8|\nlab|cv||ana||2|gres/gpu=4|gres/gpu=1\n"
    odd = "far|cv|root|||9||\nfar|cv||bo||9||\nlab|pi|pe|org|||1||\n\n"

    ana = SeenUser("ana", 2, 4, 1)
    assert accounts_in(text + odd, "lab") == [
        SeenAccount("cv", "root", 3, 8, users=1, people=(ana,))
    ]


def test_a_user_with_an_association_a_partition_is_one_user() -> None:
    text = "lab|cv|root|||3||\nlab|cv||ana|a|1|gres/gpu=4|\nlab|cv||ana|b|2|gres/gpu=4|gres/gpu=1\n"
    used = "cv|ana|1|0.25|12|0.5|0.5|0.3|1\ncv|ana|2|0.5|6|0.25|0.25|0.7|2\ncv||3|1|18|1|1||1\n"

    (cv,) = with_usage(accounts_in(text, "lab"), f"{HEAD}\n{used}")

    assert (cv.users, cv.fair_share) == (1, 0.7)
    assert cv.people == (SeenUser("ana", 3, 4, None, 18, 0.75, 0.75, 0.7),)


def test_a_qos_is_read_with_its_lists_and_times() -> None:
    text = "low|5|||cluster|00:00:00||||\nbent|row\nhigh|10|DenyOnLimit,NoDecay|low,scav|requeue|"
    more = "00:01:30|cpu=9,gres/gpu=16|gres/gpu=8|gres/gpu=4|2-00:00:00\n"

    assert qos_in(text + more) == [
        SeenQos("high", 10, ("DenyOnLimit", "NoDecay"), ("low", "scav"), "requeue", 90,
                "cpu=9,gres/gpu=16", "gres/gpu=8", "gres/gpu=4", 172_800),
        SeenQos("low", 5, preempt_mode="cluster"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [("", None), ("cpu=8", None), ("gres/gpu:h100=4", None), ("gres/gpu=0", 0), ("a=1,gres/gpu=7", 7)],
)  # fmt: skip
def test_a_limit_of_gpus_is_the_one_without_a_type(limits: str, gpus: int | None) -> None:
    assert gpus_of(limits) == gpus


def test_an_account_that_slurmctld_does_not_know_yet_has_no_figures() -> None:
    known, new = SeenAccount("cv", "root", 3, None), SeenAccount("nlp", "root", 1, None)

    first, second = with_usage([known, new], f"{HEAD}\n cv||3|0.75|12|1.0|1.000000||nan\n")

    assert (first.norm_shares, first.effective_usage, first.level) == (0.75, 1.0, None)
    assert second == new


def test_columns_that_are_none_are_refused() -> None:
    with pytest.raises(BackendError):
        with_usage([], "Account|User\n")


def test_silence_is_not_believed(tmp_path: Path) -> None:
    said = {"scontrol": CONFIG, "sacctmgr": "", "sshare": f"{HEAD}\n"}
    for name, text in said.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        (tmp_path / name).chmod(0o755)
    backend = backend_of(Cluster(name="atlas", kind="slurm", options={"bin": str(tmp_path)}))

    with pytest.raises(BackendError, match="slurmdbd lists no accounts of lab") as refusal:
        backend.accounts(now=NOW)  # type: ignore[attr-defined]

    assert refusal.value.retry
    with pytest.raises(BackendError, match="slurmdbd lists no QOS") as refusal:
        backend.qos(now=NOW)  # type: ignore[attr-defined]
    assert refusal.value.retry


@pytest.mark.parametrize(
    ("before", "guarantees", "after"),
    [
        ("", {"h100": 12}, "[rollcall guarantee gres/gpu:h100=12 on lab]"),
        ("the cv team", {"h100": 12}, "the cv team [rollcall guarantee gres/gpu:h100=12 on lab]"),
        ("cv [rollcall guarantee gres/gpu:h100=12 on lab]", {"h100": 0}, "cv"),
        (
            "cv [rollcall guarantee gres/gpu:h100=12 on lab]",
            {"H100": 9, "a100": 2, "gpu": 1},
            "cv [rollcall guarantee gres/gpu:a100=2,gres/gpu=1,gres/gpu:h100=9 on lab]",
        ),
        # Another cluster's, and what is no note, stay where they are.
        (
            "cv [rollcall guarantee gres/gpu:h100=4 on far] [x] since may",
            {"h100": 1},
            "cv [rollcall guarantee gres/gpu:h100=4 on far] [x] since may"
            " [rollcall guarantee gres/gpu:h100=1 on lab]",
        ),
        (
            "[rollcall guarantee gres/gpu:h100=4 on lab] since may",
            {"h100": 5},
            " since may [rollcall guarantee gres/gpu:h100=5 on lab]",
        ),
    ],
)
def test_a_note_changes_nothing_else_of_a_description(
    before: str, guarantees: dict[str, int], after: str
) -> None:
    assert with_note(before, "lab", guarantees) == after
    wanted = {pool.lower(): count for pool, count in guarantees.items() if count}
    assert noted(after, "lab").items() >= wanted.items()
    assert with_note(after, "lab", guarantees) == after


@pytest.mark.parametrize(
    "text",
    [
        "", "rollcall guarantee gres/gpu:h100=4 on lab", "[rollcall guarantee 4 on lab]",
        "[rollcall guarantee gres/gpu:h100=-4 on lab]", "[rollcall guarantee gres/gpu:h100=4]",
    ],
)  # fmt: skip
def test_what_is_no_note_of_ours_says_nothing(text: str) -> None:
    assert noted(text, "lab") == {}


@pytest.mark.parametrize("text", ["it's", 'a "team"', "two\tcells", "not utf-8 \ufffd"])
def test_a_description_that_sacctmgr_would_change_is_left_alone(text: str) -> None:
    with pytest.raises(BackendError, match="noted by hand") as refusal:
        with_note(text, "lab", {"h100": 1})

    assert not refusal.value.retry


@pytest.mark.parametrize("pool", ["a,b", "a b", "x]", "", "a=1"])
def test_a_pool_that_a_note_cannot_spell_is_refused(pool: str) -> None:
    with pytest.raises(BackendError, match="cannot spell"):
        with_note("cv", "lab", {pool: 1})
