"""Slurm's own line as sprio and squeue print it, where no Slurm is needed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from apps.backends import lines
from apps.backends.adapters.slurm.sprio import terms_in
from apps.backends.kinds import backend_of
from apps.backends.lines import line_look_of, look_at_line, places_of
from apps.backends.models import Cluster, LineLook
from apps.backends.port import BackendError
from apps.backends.services import add_cluster
from apps.common.time import from_us, to_us
from apps.quotas.models import AccountsLook
from apps.quotas.tasks import keep_cluster_accounts
from tests.factories import NOW

AT = to_us(NOW) // 1_000_000
CONFIG = f"""\
Configuration data as of {AT}
BOOT_TIME               = {AT - 500}
ClusterName             = lab
"""
SPRIO = """\
7|4700|2500|1000|cpu=100,gres/gpu=350|700|0|-50|0|0|0
8|900|0|0||900|0|0|0|0|0
8|950|0|0||950|0|0|0|0|0
8|925|0|0||925|0|0|0|0|0
"""
SQUEUE = f"""\
7|7|{AT - 60}|{AT + 3600}|gpu[1-4]
8|8_[3-9]|{AT - 50}|N/A|(null)
9|9|{AT - 40}|N/A|(null)
"""


def slurm(folder: Path, **said: str) -> dict[str, str]:
    """Return the options of a Slurm whose commands print this; what begins with ! fails."""
    for name, text in ({"scontrol": CONFIG, "sprio": SPRIO, "squeue": SQUEUE} | said).items():
        bad = text.startswith("!")
        body = f"cat {'>&2 ' if bad else ''}<<'END'\n{text.lstrip('!')}END\nexit {int(bad)}\n"
        (folder / name).write_text(f"#!/bin/sh\n{body}")
        (folder / name).chmod(0o755)
    return {"bin": str(folder)}


def test_terms_have_our_names_and_signs_and_a_job_its_best_partition() -> None:
    found = terms_in(SPRIO)

    assert found[7] == {
        "priority": 4700, "fair_share": 2500, "age": 1000, "size": 450, "queue": 700, "class": 0,
        "nice": 50, "job_size": 0, "association": 0, "site": 0,
    }  # fmt: skip
    assert found[8]["priority"] == 950


@pytest.mark.parametrize(
    "text", ["7|x|0|0|0|0|0|0|0|0|0\n", "7|1\n", "seven|1|0|0|0|0|0|0|0|0|0\n"]
)
def test_a_row_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BackendError, match="sprio printed a job in a way not understood"):
        terms_in(text)


def kept(cluster: Cluster) -> LineLook:
    look = line_look_of(cluster.pk)
    assert look is not None
    return look


@pytest.fixture
def boreas(db: None, tmp_path: Path) -> Cluster:
    return add_cluster("boreas", kind="slurm", now=NOW, options=slurm(tmp_path))


def test_what_waits_is_kept_by_what_never_names_two_jobs(boreas: Cluster) -> None:
    assert look_at_line(boreas, now=NOW)

    look = kept(boreas)
    seven, eight = f"lab:7:{AT - 60}", f"lab:8_[:{AT - 50}"
    found = places_of(look, [seven, eight, f"lab:9:{AT - 40}", f"lab:7:{AT - 61}"])
    assert look.read_at == NOW
    assert set(found) == {seven, eight}  # of the third there is nothing to tell
    assert found[seven].planned_at == from_us((AT + 3600) * 1_000_000)
    assert found[seven].planned_nodes == "gpu[1-4]"
    assert found[seven].terms["priority"] == 4700
    assert (found[eight].planned_at, found[eight].terms) == (None, {"queue": 950, "priority": 950})


def test_a_clock_that_is_off_is_set_right(boreas: Cluster) -> None:
    assert look_at_line(boreas, now=NOW - timedelta(seconds=90))

    (place,) = places_of(kept(boreas), [f"lab:7:{AT - 60}"]).values()
    assert place.planned_at == from_us((AT + 3600 - 90) * 1_000_000)


def test_it_is_asked_at_most_twice_a_minute(boreas: Cluster) -> None:
    assert look_at_line(boreas, now=NOW)
    assert not look_at_line(boreas, now=NOW + timedelta(seconds=29))
    assert look_at_line(boreas, now=NOW + timedelta(seconds=30))


def test_of_too_many_the_first_are_kept(boreas: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_PLACES", 1)

    assert look_at_line(boreas, now=NOW)

    assert list(LineLook.objects.get().places) == [f"lab:7:{AT - 60}"]


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        ({"squeue": "!Access denied\n"}, "Slurm refused to answer: Access denied."),
        ({"squeue": "7|7|soon|N/A|\n"}, "Slurm listed a job in a way not understood: 7|7|soon"),
        ({"sprio": "what?\n"}, "sprio printed a job in a way not understood: what?."),
    ],
)
def test_what_fails_is_told_and_what_was_read_stays(
    boreas: Cluster, tmp_path: Path, said: dict[str, str], trouble: str
) -> None:
    look_at_line(boreas, now=NOW)
    slurm(tmp_path, **said)

    assert not look_at_line(boreas, now=NOW + timedelta(minutes=1))

    look = kept(boreas)
    assert look.trouble.startswith(trouble)
    assert look.read_at == NOW
    assert places_of(look, [f"lab:7:{AT - 60}"])


def test_without_priorities_plans_are_still_told(boreas: Cluster, tmp_path: Path) -> None:
    slurm(tmp_path, sprio="!sprio: Only 'priority/multifactor' is supported.\n")

    assert look_at_line(boreas, now=NOW)

    look = kept(boreas)
    assert look.no_terms == "sprio says: sprio: Only 'priority/multifactor' is supported."
    (place,) = places_of(look, [f"lab:7:{AT - 60}"]).values()
    assert (place.terms, place.planned_nodes) == ({}, "gpu[1-4]")


def test_by_rest_alone_it_says_what_would_help(db: None) -> None:
    options = {"way": "rest", "url": "http://127.0.0.1:1", "user": "nobody", "token": "x.y.z"}
    cluster = add_cluster("far", kind="slurm", now=NOW, options=options)

    assert not look_at_line(cluster, now=NOW)

    assert "line" not in backend_of(cluster).capabilities().can
    assert kept(cluster).trouble.startswith("slurmrestd does not tell the terms")
    assert kept(cluster).read_at is None


def test_a_simulated_cluster_has_no_line_of_its_own(db: None) -> None:
    cluster = add_cluster("sim", kind="simulator", now=NOW)

    assert not look_at_line(cluster, now=NOW)

    assert line_look_of(cluster.pk) is None


def test_it_is_read_with_the_accounts_and_fails_apart_from_them(boreas: Cluster) -> None:
    keep_cluster_accounts(cluster_id=boreas.pk)

    assert kept(boreas).trouble == ""
    assert AccountsLook.objects.get().trouble.startswith("This Slurm keeps no accounts")
