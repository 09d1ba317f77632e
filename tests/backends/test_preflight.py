"""The preflight where no Slurm is needed: it never raises, and never repeats a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.backends.adapters.slurm.options import read_options
from apps.backends.kinds import KINDS, option_fields, preflight
from apps.backends.models import Cluster
from apps.common.errors import Invalid
from tests.factories import NOW, make_cluster


def slurm(**options: object) -> Cluster:
    return Cluster(name="atlas", kind="slurm", options=options)


def test_a_simulated_cluster_says_what_is_in_its_world(db: None) -> None:
    (only,) = preflight(make_cluster(), now=NOW)

    assert (only.name, only.state) == ("world", "warning")
    assert "no nodes yet" in only.sentence


def test_options_that_cannot_be_are_a_finding() -> None:
    (only,) = preflight(slurm(way="smoke"), now=NOW)

    assert (only.name, only.state) == ("options", "missing")
    assert only.sentence.startswith("options.way must be local, ssh or rest")


def test_a_login_node_that_hangs_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexec sleep 30\n")
    (tmp_path / "scontrol").chmod(0o755)

    (only,) = preflight(slurm(bin=str(tmp_path), timeout_seconds=1), now=NOW)

    assert (only.name, only.state) == ("commands", "missing")
    assert "no answer within 1 s" in only.sentence


def test_a_key_that_was_pasted_where_its_path_belongs_is_not_repeated() -> None:
    with pytest.raises(Invalid) as refusal:
        read_options({"way": "ssh", "host": "login", "key": "BEGIN-PRIVATE-KEY"})

    assert refusal.value.field == "options.key"
    assert "PRIVATE" not in refusal.value.message


def test_a_form_has_every_option_once_with_what_it_is_by_itself() -> None:
    fields = {field.name: field for field in option_fields("slurm")}

    assert set(KINDS) >= {"simulator", "slurm"}
    assert len(fields) == len(option_fields("slurm"))
    assert (fields["way"].default, fields["port"].default) == ("local", "22")
    assert option_fields("simulator") == ()
