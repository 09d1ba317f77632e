"""Accounts as sacctmgr and sshare print them, where no Slurm is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.backends.adapters.slurm.accounts import accounts_in, gpus_of, with_usage
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.backends.port import BackendError, SeenAccount
from tests.factories import NOW

CONFIG = """\
Configuration data as of 1796206519
AccountingStorageType   = accounting_storage/slurmdbd
BOOT_TIME               = 1796206000
ClusterName             = lab
"""
HEAD = "Account|User|RawShares|NormShares|RawUsage|NormUsage|EffectvUsage|FairShare|LevelFS"


def test_rows_of_other_clusters_and_of_names_with_a_bar_are_left_out() -> None:
    text = "lab|cv|root|||3|cpu=9,gres/gpu=8\nlab|cv||ana|a|1|\nlab|cv||ana|b|1|\n"
    odd = "far|cv|root|||9|\nlab|pi|pe|org|||1|\n\n"

    assert accounts_in(text + odd, "lab") == [SeenAccount("cv", "root", 3, 8, users=1)]


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
