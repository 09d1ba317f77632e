"""What sacct prints is read right, and its silence is not believed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.backends.adapters.slurm.history import (
    Ground,
    gpus_of,
    ground,
    members_on,
    read_history,
    rows_in,
)
from apps.backends.adapters.slurm.own import Clock
from apps.backends.adapters.slurm.recall import recall
from apps.backends.adapters.slurm.runner import Answer
from apps.backends.port import BackendError, History, Recalled

UID = "00000000-0000-4000-8000-000000000001"
SINCE = datetime(2026, 12, 2, tzinfo=UTC)
AT = int(SINCE.timestamp())
TRES = "billing=2,cpu=2,gres/gpu:h100=16,gres/gpu=16,mem=200M,node=2"
RAN = f"7|7|{AT}|{AT + 10}|{AT + 70}|COMPLETED|vision|ada|main|{TRES}|2|gpu[1-2]|60"
OURS = RAN.replace("|ada|", "|rollcall|")
GROUND = Ground("lab", Clock(), "rollcall", {f"gpu{k}": ("h100",) for k in range(1, 6)})


ENDED = OURS + "|0:0"


class Said:
    """Runs no command: what each of them prints is given."""

    def __init__(self, *answers: str | Answer) -> None:
        self.answers = [one if isinstance(one, Answer) else Answer(0, one, "") for one in answers]
        self.asked: list[Sequence[str]] = []

    def read(self, *commands: Sequence[str], patience: float | None = None) -> list[Answer]:
        self.asked += commands
        return [self.answers.pop(0) for _ in commands]


def read(said: Said, known: Ground = GROUND, partition: str = "") -> History:
    return read_history(said, known, SINCE, SINCE + timedelta(days=1), partition)  # type: ignore[arg-type]


def test_a_run_is_read_as_it_would_have_been_seen() -> None:
    (work,) = read(Said(RAN)).works

    assert (work.ref, work.run) == (f"lab:7:{AT}", str(AT + 10))
    assert (work.pool, work.size, work.gpus_per_member) == ("h100", 2, 8)
    assert (work.account, work.user, work.limit_seconds) == ("vision", "ada", 3_600)
    assert (work.started_at, work.ended_at) == (
        SINCE + timedelta(seconds=10), SINCE + timedelta(seconds=70)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (RAN, "succeeded"),
        (RAN.replace("COMPLETED", "CANCELLED by 1000"), "cancelled"),
        (RAN.replace("COMPLETED", "TIMEOUT"), "timed_out"),
        (RAN.replace("COMPLETED", "NODE_FAIL"), "failed"),
        (RAN.replace("COMPLETED", "REQUEUED"), "cancelled"),
        (RAN.replace("COMPLETED", "SOMETHING_NEW"), "failed"),
    ],
)
def test_how_it_ended(line: str, outcome: str) -> None:
    assert [work.outcome for work in read(Said(line)).works] == [outcome]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (RAN.replace("gres/gpu:h100=16,gres/gpu=16,", ""), "asked for no GPUs"),
        (f"7|7|{AT}|None|{AT + 9}|CANCELLED by 0|vision|ada|main||0|None assigned|60", "never ran"),
        (f"7|7|{AT}|Unknown|{AT + 9}|CANCELLED|vision|ada|main||0|None assigned|60", "never ran"),
        (RAN.replace("gres/gpu=16", "gres/gpu:a100=4,gres/gpu=20"), "had GPUs of several types"),
    ],
)
def test_what_is_left_out_is_counted(line: str, why: str) -> None:
    found = read(Said(line))
    assert (found.works, dict(found.left_out)) == ([], {why: 1})


def test_what_runs_or_waits_is_no_history() -> None:
    lines = [
        RAN.replace(f"|{AT + 70}|COMPLETED", "|Unknown|RUNNING"),
        f"9|9_[1-3]|{AT}|Unknown|Unknown|PENDING|vision|ada|main||1|None assigned|UNLIMITED",
    ]
    found = read(Said("\n".join(lines)))
    assert (found.works, dict(found.left_out)) == ([], {})


def test_another_partition_is_somebody_elses() -> None:
    found = read(Said(RAN), partition="gpu")
    assert (found.works, dict(found.left_out)) == ([], {"ran in another partition": 1})


def test_a_range_is_asked_for_in_utc_on_slurms_clock() -> None:
    said = Said(RAN)
    late = Ground("lab", Clock(120), "rollcall", GROUND.kinds)

    (work,) = read(said, late).works

    assert said.asked[0][6:9] == ["2026-12-02T00:02:00", "-E", "2026-12-03T00:02:01"]
    assert work.started_at == SINCE + timedelta(seconds=10 - 120)
    assert work.run == str(AT + 10)


def test_silence_is_believed_the_third_time() -> None:
    said = Said("", "", RAN)
    assert len(read(said).works) == 1
    assert read(Said("", "", "")).works == []


def test_a_word_of_failure_is_believed_at_once() -> None:
    with pytest.raises(BackendError) as told:
        read(Said(Answer(0, RAN, "sacct: error: slurmdbd: Getting response to message type 1444")))
    assert told.value.retry
    with pytest.raises(BackendError, match="storage is disabled"):
        read(Said(Answer(1, "", "Slurm accounting storage is disabled")))


@pytest.mark.parametrize(
    "line", ["7|7|1", RAN + "|more", RAN.replace("7|7", "seven|7"), "sacct: hm"]
)
def test_a_line_of_another_shape_is_refused(line: str) -> None:
    with pytest.raises(BackendError, match="not understood"):
        list(rows_in(line))


class TestOurs:
    def test_a_job_of_the_service_user_is_known_by_its_name(self) -> None:
        said = Said(OURS, f"7|{AT}|train.{UID}\n9|{AT}|by-hand\nx|y")
        assert dict(read(said).own) == {f"lab:7:{AT}": UID}
        assert said.asked[1][-4:] == ["-u", "rollcall", "-o", "JobIDRaw,Submit,JobName"]

    def test_a_job_by_hand_is_not(self) -> None:
        assert dict(read(Said(OURS, f"7|{AT}|by hand")).own) == {}

    def test_nothing_is_asked_where_there_is_none(self) -> None:
        said = Said(RAN)
        assert dict(read(said).own) == {}
        assert len(said.asked) == 1

    def test_ours_must_be_told_of(self) -> None:
        with pytest.raises(BackendError, match="all jobs of ours"):
            read(Said(OURS, f"9|{AT}|train.{UID}"))


class TestGPUs:
    @pytest.mark.parametrize(
        ("tres", "gpus"),
        [
            (TRES, {"h100": 16}),
            ("cpu=2,gres/gpu=3", {"gpu": 3}),
            ("gres/gpu:h100=2,gres/gpu=5", {"h100": 2, "gpu": 3}),
            ("gres/gpu:a100=2,gres/gpu:h100=1,gres/gpu=3", {"a100": 2, "h100": 1}),
            ("cpu=2,gres/shard=4,gres/gpumem=80G", {}),
            ("", {}),
        ],
    )
    def test_by_type(self, tres: str, gpus: dict[str, int]) -> None:
        assert gpus_of(tres) == gpus

    def test_without_a_type_they_are_of_the_nodes(self) -> None:
        line = RAN.replace("gres/gpu:h100=16,", "")
        assert [work.pool for work in read(Said(line)).works] == ["h100"]
        mixed = Ground("lab", Clock(), "", {"gpu1": ("h100",), "gpu2": ("h100",), "a1": ("a100",)})
        assert [work.pool for work in read(Said(line), mixed).works] == ["h100"]
        elsewhere = line.replace("gpu[1-2]", "old[1-2]")
        assert [work.pool for work in read(Said(elsewhere), mixed).works] == ["gpu"]

    @given(st.integers(1, 40), st.integers(1, 200))
    def test_the_sum_is_exact_and_nodes_differ_by_one_at_most(self, count: int, gpus: int) -> None:
        nodes = tuple(f"n{number}" for number in range(count))
        members = members_on(nodes, gpus)
        each = gpus // len(members)
        assert each * len(members) == gpus
        on = [members.count(name) * each for name in nodes]
        assert sum(on) == gpus
        assert max(on) - min(on) <= 1


class TestGround:
    CONFIG = "Configuration data as of {}\nAccountingStorageType   = {}\nAccountingStorageTRES = {}\nBOOT_TIME = 1\nClusterName = lab\n"

    def told(self, storage: str, tres: str) -> Ground:
        config = self.CONFIG.format(AT, storage, tres)
        node = "NodeName=gpu1 Gres=gpu:h100:8 State=IDLE\n"
        return ground(Said(config, node, "rollcall\n"), SINCE)  # type: ignore[arg-type]

    def test_it_is_known_who_asks_and_of_what(self) -> None:
        known = self.told("accounting_storage/slurmdbd", "cpu,mem,gres/gpu,gres/gpu:h100")
        assert (known.slurm, known.user, dict(known.kinds)) == (
            "lab", "rollcall", {"gpu1": ("h100",)}
        )  # fmt: skip

    def test_without_a_database_there_is_no_history(self) -> None:
        with pytest.raises(BackendError, match="no accounting database"):
            self.told("accounting_storage/none", "cpu")

    def test_a_database_that_keeps_no_gpus_is_told_of(self) -> None:
        with pytest.raises(BackendError, match="lacks gres/gpu"):
            self.told("accounting_storage/slurmdbd", "cpu,mem,gres/gpumem")


# What vanished from squeue


def recalled(said: Said, known: Ground = GROUND) -> Recalled:
    own = {f"lab:7:{AT}": UID}
    return recall(said, known, "", [f"lab:8:{AT}"], own, patience=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "outcome", "words"),
    [
        (ENDED, "succeeded", ""),
        (ENDED.replace("COMPLETED", "FAILED").replace("0:0", "3:0"), "failed", "exit status 3"),
        (ENDED.replace("COMPLETED", "FAILED").replace("0:0", "0:9"), "failed", "killed by signal 9"),
        (ENDED.replace("COMPLETED", "REQUEUED").replace("0:0", "75:0"), "stopped",
         "exited 75: it saved its work"),
        (ENDED.replace("COMPLETED", "REQUEUED"), "lost", "Slurm laid it back in line"),
        (ENDED.replace("COMPLETED", "NODE_FAIL"), "lost", "a node failed under it"),
        (ENDED.replace("COMPLETED", "TIMEOUT"), "timed_out", ""),
        (ENDED.replace("COMPLETED", "CANCELLED by 1000"), "stopped", ""),
        (ENDED.replace("COMPLETED", "CANCELLED by 0"), "cancelled", "somebody cancelled it in Slurm"),
    ],
)  # fmt: skip
def test_how_an_attempt_of_ours_ended_that_vanished(line: str, outcome: str, words: str) -> None:
    (attempt,) = recalled(Said(line, "1000\n"), replace(GROUND, clock=Clock(120))).attempts

    assert (attempt.uid, attempt.outcome, attempt.detail) == (UID, outcome, words)
    assert attempt.started_at == SINCE + timedelta(seconds=10 - 120)
    assert attempt.ended_at == SINCE + timedelta(seconds=70 - 120)
    saved = attempt.ended_at if "exited 75" in words else None
    assert attempt.checkpoint_at == saved


def test_only_what_was_asked_for_and_is_over_is_told_of_what_vanished() -> None:
    theirs = ENDED.replace("7|7|", "8|8|")
    lines = [
        theirs,
        theirs.replace(f"8|8|{AT}", f"8|8|{AT - 900}"),  # the id was given out before
        ENDED.replace(f"|{AT + 70}|COMPLETED", "|Unknown|RUNNING"),
    ]
    said = Said("\n".join(lines))

    found = recalled(said)

    assert said.asked[0][6:8] == ["-j", "7,8"]
    assert ([work.ref for work in found.works], found.attempts) == ([f"lab:8:{AT}"], [])
