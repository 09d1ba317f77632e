"""What Slurm prints is read right, as recorded from the lab."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.backends.adapters.slurm.look import Look, clock_of, observation
from apps.backends.adapters.slurm.marks import Mark, job_name, mark_of
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.own import ALIVE, Clock, detail_in, one_each, own_in, seen
from apps.backends.adapters.slurm.text import (
    config_of,
    expand,
    gpus_in,
    nodes_in,
    rows_in,
    seconds_of,
    split_list,
    state_of,
    tasks_of,
)
from apps.backends.port import BackendError

DATA = Path(__file__).parent / "data" / "slurm" / "22.05.8"
UID = "00000000-0000-4000-8000-00000000000"
AS_OF = 1796206519


def text(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def recorded(cluster: str = "atlas") -> Look:
    found, spare = one_each(own_in(text("own"), cluster))
    return Look(
        slurm="rollcall-lab",
        booted=AS_OF - 8,
        as_of=AS_OF,
        clock=Clock(),
        nodes=nodes_in(text("node")),
        rows=rows_in(text("every")),
        own=found,
        spare=spare,
        details={6: detail_in(text("job-failed")), 7: detail_in(text("job-saved"))},
    )


def told(look: Look, known: frozenset[str] = frozenset()):
    at = datetime.fromtimestamp(AS_OF, UTC)
    return observation(look, known, Options(), now=at, cost_ms=1)


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("gpu1", ("gpu1",)),
        ("gpu[1-3,7]", ("gpu1", "gpu2", "gpu3", "gpu7")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]n[1,3]-ib,login", ("r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib", "login")),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_a_list_of_nodes_is_spelled_out(short, names):
    assert expand(short) == names


@given(st.integers(0, 999), st.integers(0, 200), st.integers(1, 4))
def test_a_range_of_nodes_is_spelled_out_with_its_zeros(low, more, width):
    names = expand(f"n[{low:0{width}}-{low + more:0{width}}]")

    assert names == tuple(f"n{number:0{width}}" for number in range(low, low + more + 1))


@pytest.mark.parametrize("bad", ["n[1-999999999]", "n[1", "n[a-b]", "n[1-70000],m"])
def test_a_list_of_nodes_that_makes_no_sense_is_refused(bad):
    with pytest.raises(BackendError):
        expand(bad)


def test_commas_in_brackets_end_nothing():
    assert list(split_list("a[1,2],b,c[3]")) == ["a[1,2]", "b", "c[3]"]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:8", {"h100": 8}),
        ("gpu:h100:8(S:0-1),gpu:a100:4(IDX:0,2-3)", {"h100": 8, "a100": 4}),
        ("gpu:1g.10gb:7,gpu:3g.40gb:1", {"1g.10gb": 7, "3g.40gb": 1}),
        ("gres:gpu:2", {"gpu": 2}),
        ("gres/gpu:h100:8,gres/gpu:a100:2", {"h100": 8, "a100": 2}),  # as 24.11 has it
        ("gpu:h100:0(IDX:N/A)", {"h100": 0}),
        ("license:3,shard:8", {}),
        ("(null)", {}),
    ],
)
def test_gpus_are_counted_by_type(gres, gpus):
    assert gpus_in(gres) == gpus


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("IDLE", "up"),
        ("MIXED+PLANNED", "up"),
        ("ALLOCATED+COMPLETING", "up"),
        ("IDLE+DRAIN", "drained"),
        ("ALLOCATED+DRAIN", "drained"),
        ("IDLE+MAINT", "drained"),
        ("DOWN", "down"),
        ("DOWN*+DRAIN", "down"),
        ("IDLE*", "down"),
        ("IDLE+NOT_RESPONDING", "down"),
        ("INVAL", "down"),
    ],
)
def test_a_state_of_a_node_is_one_of_three(words, state):
    assert state_of(words) == state


def test_nodes_come_with_their_reason_and_since_when():
    nodes = {node.name: node for node in nodes_in(text("node"))}

    assert list(nodes) == ["gpu1", "gpu2", "gpu3", "gpu4", "gpu5"]
    assert nodes["gpu1"].partitions == ("main", "short")
    assert {name: node.used["h100"] for name, node in nodes.items()} == {
        "gpu1": 4, "gpu2": 4, "gpu3": 0, "gpu4": 0, "gpu5": 5,
    }  # fmt: skip
    assert (nodes["gpu3"].state, nodes["gpu3"].reason) == ("down", "gone")
    # A reason may look like a field, and the state is not taken from it.
    assert nodes["gpu4"].state == "drained"
    assert nodes["gpu4"].reason == "xid 79 | bad=Yes [x] State=UP"
    assert nodes["gpu4"].since is not None
    assert AS_OF - 5 <= nodes["gpu4"].since <= AS_OF


def test_foreign_gpus_are_what_is_used_and_not_ours():
    ours, theirs = told(recorded()), told(recorded("boreas"))

    assert {n.name: n.foreign_gpus for n in ours.nodes if n.foreign_gpus} == {"gpu5": 5}
    assert {n.name: n.foreign_gpus for n in theirs.nodes if n.foreign_gpus} == {
        "gpu1": 4, "gpu2": 4, "gpu5": 5,
    }  # fmt: skip
    assert theirs.attempts == []


def test_foreign_work_is_listed_with_an_array_as_one_row():
    work = {one.ref.split(":")[1]: one for one in told(recorded()).foreign}

    assert set(work) == {"1", "2_[", "2_1", "2_2"}
    assert (work["1"].gpus_per_member, work["1"].nodes) == (3, ("gpu5",))
    rest = work["2_["]
    assert (rest.state, rest.tasks, rest.reason) == ("waiting", 28, "JobArrayTaskLimit")
    assert (rest.started_at, rest.limit_seconds, rest.user) == (None, None, "nobody")


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("30:00", 1_800), ("1:00:00", 3_600), ("2-06:30:01", 196_201), ("UNLIMITED", None)],
)
def test_a_limit_is_read_in_seconds(limit, seconds):
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize(
    ("label", "tasks"),
    [
        ("7", 1),
        ("7_3", 1),
        ("7_[4-9]", 6),
        ("7_[1,3,5-6%2]", 4),
        ("7_[0-10:5]", 3),
        ("7_[1-2,...]", 2),
    ],
)
def test_the_tasks_behind_a_label_are_counted(label, tasks):
    assert tasks_of(label) == tasks


def test_a_comment_that_claims_to_be_ours_counts_only_from_our_user():
    # The recorded foreign job carries such a comment, and a name of two lines.
    assert [job.id for job in own_in(text("own"), "atlas")] == [6, 7, 8, 3]
    assert len(rows_in(text("every"))) == 6


def test_each_attempt_is_told_by_how_it_stands():
    seen_by = {one.uid[-1]: one for one in told(recorded()).attempts}

    assert {key: one.state for key, one in seen_by.items()} == {
        "1": "running", "2": "ended", "3": "ended", "4": "waiting",
    }  # fmt: skip
    assert seen_by["1"].nodes == ("gpu1", "gpu2")
    assert (seen_by["2"].outcome, seen_by["2"].detail) == ("failed", "exit status 3")
    assert seen_by["3"].outcome == "stopped"
    assert seen_by["3"].checkpoint_at == seen_by["3"].ended_at
    assert (seen_by["4"].detail, seen_by["4"].started_at) == ("Resources", None)
    assert seen_by["4"].cluster_ref == "rollcall-lab:8:1796206516"


def test_what_was_told_is_not_told_again():
    first = told(recorded())

    then = told(recorded(), frozenset(first.cursor.split()))

    ended = {key for key in first.cursor.split() if not key.startswith(ALIVE)}
    assert ended == {"6:1796206514", "7:1796206515"}
    alive = {ALIVE + job.key for job in recorded().own.values()} - {ALIVE + key for key in ended}
    assert set(first.cursor.split()) == ended | alive
    assert len(alive) == 2
    assert sorted(one.uid[-1] for one in then.attempts) == ["1", "4"]
    assert then.cursor == first.cursor


def test_an_id_that_is_given_out_again_is_another_job():
    before = recorded()
    again = [replace(job, submit=job.submit + 60) for job in before.own.values()]
    reused = replace(before, own={job.mark.uid: job for job in again})

    seen_again = told(reused, frozenset(told(before).cursor.split()))

    assert len(seen_again.attempts) == 4


@pytest.mark.parametrize(
    ("state", "stop", "code", "outcome"),
    [
        ("COMPLETED", 0, "0:0", "succeeded"),
        ("FAILED", 0, "1:0", "failed"),
        ("TIMEOUT", 0, "0:15", "timed_out"),
        ("NODE_FAIL", 0, "0:0", "lost"),
        ("PREEMPTED", 0, "0:15", "lost"),
        ("CANCELLED", 0, "0:15", "cancelled"),
        ("CANCELLED", 5, "0:15", "stopped"),
        ("COMPLETED", 5, "0:0", "succeeded"),
        ("FAILED", 0, "75:0", "stopped"),
        ("FAILED", 0, "0:10", "failed"),
        ("OUT_OF_MEMORY", 0, "0:125", "failed"),
    ],
)
def test_an_end_is_told_as_what_it_was(state, stop, code, outcome):
    job = recorded().own[f"{UID}2"]
    ended = replace(job, state=state, mark=replace(job.mark, stop=stop))

    told_as = seen(ended, detail_in(f"JobId=6 Restarts=0 ExitCode={code} "), Clock(), "lab")

    assert (told_as.state, told_as.outcome) == ("ended", outcome)
    assert told_as.started_at is not None
    assert told_as.ended_at is not None
    assert told_as.ended_at >= told_as.started_at


def test_a_job_that_dies_of_the_signal_it_was_sent_did_not_fail():
    job = recorded().own[f"{UID}3"]

    told_as = seen(job, detail_in("Restarts=0 ExitCode=0:10"), Clock(), "lab")

    assert (told_as.outcome, told_as.checkpoint_at) == ("stopped", None)
    assert "USR1" in told_as.detail


def test_a_job_that_slurm_laid_back_in_line_is_over():
    job = replace(recorded().own[f"{UID}3"], state="PENDING", nodes=(), reason="JobHeldAdmin")

    saved = seen(job, detail_in("Restarts=1 ExitCode=75:0"), Clock(), "lab")
    other = seen(job, detail_in("Restarts=1 ExitCode=0:9"), Clock(), "lab")
    fresh = seen(job, detail_in("Restarts=0 ExitCode=0:0"), Clock(), "lab")

    assert (saved.state, saved.outcome) == ("ended", "stopped")
    assert saved.checkpoint_at is not None
    assert (other.state, other.outcome) == ("ended", "lost")
    assert fresh.state == "waiting"


def test_a_clock_that_is_off_is_set_right_and_seconds_are_not():
    at = datetime.fromtimestamp(AS_OF, UTC)

    assert clock_of(AS_OF + 1, at).us(AS_OF) == AS_OF * 1_000_000
    assert clock_of(AS_OF + 120, at).us(AS_OF + 120) == AS_OF * 1_000_000
    assert clock_of(AS_OF - 120, at).us(AS_OF - 120) == AS_OF * 1_000_000


def test_the_configuration_says_when_slurm_began():
    settings = config_of(text("config"))

    assert settings["as_of"] == str(AS_OF)
    assert settings["ClusterName"] == "rollcall-lab"
    assert int(settings["BOOT_TIME"]) < AS_OF
    with pytest.raises(BackendError):
        config_of("nothing of it")


@given(
    st.uuids(version=4).map(str), st.integers(0, 10**16), st.integers(1, 64), st.integers(1, 64),
    st.sampled_from(["", "USR1"]), st.integers(0, 10**16), st.integers(0, 10**16),
)  # fmt: skip
def test_a_mark_is_read_as_it_was_written(uid, at, members, gpus, signal, asked, stop):
    mark = Mark("atlas", uid, at, members, gpus, "h100", signal, asked, stop)

    assert mark_of(mark.text()) == mark


@pytest.mark.parametrize(
    "comment", ["", "(null)", "mine", "rollcall:atlas", "rollcall:atlas:x at=1", "rollcall:a:b:c"]
)
def test_another_comment_is_no_mark(comment):
    assert mark_of(comment) is None


def test_a_reason_cannot_forge_a_mark():
    mark = Mark("atlas", f"{UID}1", 1).stopped(7, "x stop=9 left=5")

    assert mark_of(mark.text()) == mark
    assert mark.left == 0


def test_a_job_is_called_by_its_name_and_its_uid():
    assert job_name("llama 70B|\n$(rm)", f"{UID}1") == f"llama-70B-rm.{UID}1"
    assert job_name("…", f"{UID}1") == f"job.{UID}1"


def test_of_two_submissions_of_one_attempt_the_first_is_it():
    look = recorded()
    running, waiting = look.own[f"{UID}1"], replace(look.own[f"{UID}1"], id=9, state="PENDING")

    found, spare = one_each([waiting, running])

    assert found == {f"{UID}1": running}
    assert spare == [waiting]


def test_gpus_of_a_job_that_just_ended_are_not_taken_for_ours():
    look = recorded()
    ended = replace(look.own[f"{UID}1"], state="COMPLETED", end=AS_OF)

    theirs = told(replace(look, own={**look.own, f"{UID}1": ended}))

    # Whoever uses them now, nobody may be promised them.
    assert {n.name: n.foreign_gpus for n in theirs.nodes if n.foreign_gpus} == {
        "gpu1": 4, "gpu2": 4, "gpu5": 5,
    }  # fmt: skip
