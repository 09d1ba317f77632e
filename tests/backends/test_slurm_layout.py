"""What a job asks for in each way Slurm knows, and where a running one has it."""

from __future__ import annotations

from typing import Any

import pytest

from apps.backends.adapters.slurm.foreign import foreign_in
from apps.backends.adapters.slurm.layout import Asked, asked_of, laid_in, lay_out
from apps.backends.adapters.slurm.marks import Mark
from apps.backends.adapters.slurm.own import Clock, OwnJob
from apps.backends.adapters.slurm.shapes import row_of
from apps.backends.adapters.slurm.text import JobRow, NodeText
from apps.backends.port import ForeignWork


def row(id: int = 1, *nodes: str, state: str = "RUNNING", **asked: Any) -> JobRow:
    columns = {
        "label": str(id), "partition": "main", "account": "cv", "per_node": "",
        "count": max(1, len(nodes)), "start": 110 if nodes else None, "submit": 100, "end": None,
        "limit": 600, "user": "ana", "reason": "", "state": state if nodes else "PENDING",
    }  # fmt: skip
    return JobRow(id=id, nodes=nodes, **(columns | asked))


def node(name: str, used: int, kind: str = "h100", **more: int) -> NodeText:
    return NodeText(name, ("main",), {kind: 8, **more}, {kind: used}, "up", "", None)


def work(one: JobRow, *pools: str) -> ForeignWork | None:
    found = foreign_in([one], dict.fromkeys(pools or ("h100",), 8), "lab", Clock())
    return found[0] if found else None


def laid(rows: list[JobRow], *nodes: NodeText, own: tuple[OwnJob, ...] = ()) -> dict[int, Any]:
    return {one.id: one.laid for one in lay_out(rows, nodes, own)[0]}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"per_node": "gres:gpu:h100:4", "count": 2}, Asked("h100", 2, 4, by_node=True)),
        ({"per_node": "gres/gpu:4", "count": 2, "per_job": "gres/gpu:8"}, Asked("gpu", 2, 4, by_node=True)),
        ({"per_task": "gres:gpu:2", "ntasks": 3}, Asked("gpu", 3, 2)),
        ({"per_task": "cpu=2,gres/gpu:h100=2", "ntasks": 3}, Asked("h100", 3, 2)),
        ({"per_task": "gres/gpu=2", "ntasks": 4, "per_job": "gres/gpu:8"}, Asked("gpu", 4, 2)),
        ({"per_job": "gres/gpu:a100:12", "ntasks": 1}, Asked("a100", 12, 1)),
        ({"per_job": "gres:gpu:a100:1,gres:gpu:h100:1"}, None),
        ({"per_job": "gres:gpu:0"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_what_is_asked_is_so_many_members_of_so_many_gpus(
    asked: dict[str, Any], found: Any
) -> None:
    assert asked_of(row(**asked)) == found


def test_a_job_on_one_node_has_all_there_and_one_as_large_as_its_nodes_all_of_each() -> None:
    rows = [
        row(1, "gpu1", per_job="gres:gpu:3"),
        row(2, "gpu2", "gpu3", per_job="gres:gpu:16"),
        row(3, "gpu1", per_task="gres:gpu:h100:1", ntasks=2),
        row(4, "gpu1", "gpu4", per_node="gres:gpu:1"),
    ]

    nodes = [node(f"gpu{k}", 8) for k in range(1, 5)]

    assert laid(rows, *nodes) == {1: (3,), 2: (8, 8), 3: (2,), 4: (1, 1)}


def test_a_job_that_shares_no_node_has_all_of_it() -> None:
    nodes = [node("gpu1", 8), node("gpu2", 8)]
    rows = [
        row(1, "gpu1", per_node="gres:gpu:1", exclusive=True),
        row(2, "gpu2", per_job="gres:gpu:1", alloc="cpu=64,gres/gpu=8,gres/gpu:h100=8"),
    ]
    assert laid(rows, *nodes) == {1: (8,), 2: (8,)}

    waits = work(row(3, per_job="gres:gpu:1", count=2, exclusive=True))
    assert waits is not None
    assert (waits.size, waits.gpus_per_member) == (2, 8)


def test_what_slurm_says_it_gave_in_all_counts() -> None:
    by_socket = row(1, "gpu1", alloc="cpu=1,gres/gpu=2")
    assert asked_of(by_socket) == Asked("gpu", 2, 1)
    even = row(2, "gpu1", "gpu2", per_node="gres:gpu:h100:2", alloc="gres/gpu=4,gres/gpu:h100=4")
    assert asked_of(even) == Asked("h100", 2, 2, by_node=True)
    both = row(3, "gpu1", per_node="gres:gpu:2", alloc="gres/gpu=2,gres/gpu:a=1,gres/gpu:b=1")
    assert asked_of(both) is None


def test_what_else_is_in_use_on_a_node_is_the_job_s_that_is_alone_there() -> None:
    mark = Mark(cluster="lab", uid="u", at=1, members=1, gpus=2, pool="h100")
    ours = OwnJob(9, "RUNNING", 100, 110, None, ("gpu2",), (), "x.u", "", mark)
    rows = [
        row(1, "gpu1", "gpu2", per_job="gres:gpu:9"),
        row(2, "gpu2", "gpu3", per_job="gres:gpu:6"),
        row(3, "gpu3", "gpu4", per_job="gres:gpu:7"),
        row(9, "gpu2", per_node="gres:gpu:2"),
    ]

    # Each has a node to itself, but shares the other: no sum tells how.
    nodes = [node("gpu1", 8), node("gpu2", 8), node("gpu3", 6), node("gpu4", 2)]
    _, unsure = lay_out(rows, nodes, [ours])
    assert [one.id for one in unsure] == [1, 2, 3]

    # One that is over the others are found, one after the other.
    nodes = [node("gpu1", 8), node("gpu2", 3), node("gpu3", 5), node("gpu4", 2)]
    rows = [rows[0], rows[2], rows[3]]
    assert laid(rows, *nodes, own=(ours,)) == {1: (8, 1), 3: (5, 2), 9: ()}


def test_gpus_that_nobody_is_known_for_make_a_job_unsure() -> None:
    one = row(1, "gpu1", "gpu2", per_job="gres:gpu:9")

    rows, unsure = lay_out([one], [node("gpu1", 8), node("gpu2", 3)], [])

    assert (rows, unsure) == ([one], [one])


def test_gpus_of_any_type_are_those_of_the_nodes() -> None:
    one = row(1, "gpu1", per_node="gres:gpu:2")
    (found,), _ = lay_out([one], [node("gpu1", 2, "a100")], [])
    assert (found.kind, found.laid) == ("a100", (2,))
    told = work(found, "a100", "h100")
    assert told is not None
    assert (told.pool, told.nodes, told.gpus_per_member) == ("a100", ("gpu1",), 2)

    mixed = NodeText("gpu1", ("main",), {"a100": 4, "h100": 4}, {"a100": 2}, "up", "", None)
    rows, unsure = lay_out([one], [mixed], [])
    assert unsure == [one]
    told = work(rows[0], "a100", "h100")
    assert told is not None
    assert (told.pool, told.nodes) == ("", ())


SHOWN = (
    "JobId=1 JobName=x Nodes=gpu1 CPU_IDs=0 Mem=1 GRES=gpu:h100:1 UserId=ana(1000) JOB_GRES=gpu:h100:12"
    "   Nodes=gpu[2-3] CPU_IDs=0 Mem=100 GRES=gpu:h100:4(IDX:0-3)"
    "   Nodes=gpu5 CPU_IDs=0-3 Mem=400 GRES=gpu:h100:1(IDX:7) MinCPUsNode=1"
)


def test_what_slurm_says_of_the_job_itself_is_taken_of_its_own_nodes() -> None:
    one = row(1, "gpu2", "gpu3", "gpu5", per_job="gres:gpu:9")

    assert laid_in(SHOWN, one) == one, "its name claims a node that is not its own"
    assert laid_in(SHOWN.replace("Nodes=gpu1 ", "Nodes=gpu5 "), one) == one, "or one of them twice"
    found = laid_in(SHOWN.replace("Nodes=gpu1 ", ""), one)
    assert (found.kind, found.laid) == ("h100", (4, 4, 1))
    assert laid_in("", one) == one


def test_slurmrestd_says_it_of_each_job() -> None:
    told = {
        "job_id": 1, "job_state": ["RUNNING"], "nodes": "gpu[1-2]", "tres_per_task": "gres/gpu:1",
        "tasks": {"set": True, "infinite": False, "number": 5}, "start_time": 110, "qos": "high",
        "gres_detail": ["gpu:h100:4(IDX:2-5)", "gpu:h100:1(IDX:1)"],
    }  # fmt: skip

    found = row_of(told)
    assert (found.kind, found.laid, found.qos) == ("h100", (4, 1), "high")
    assert row_of(told | {"gres_detail": []}).laid == ()
    assert row_of(told | {"gres_detail": ["gpu:h100:4(IDX:2-5)", ""]}).laid == ()
    assert row_of(told | {"job_state": "PENDING"}).laid == ()


def test_members_are_as_many_gpus_as_divide_what_lies_on_each_node() -> None:
    one = row(1, "gpu1", "gpu2", per_task="gres:gpu:2", ntasks=3, kind="h100", laid=(4, 2))
    told = work(one)
    assert told is not None
    assert (told.nodes, told.size, told.gpus_per_member) == (("gpu1", "gpu1", "gpu2"), 3, 2)

    waits = work(row(1, per_job="gres:gpu:h100:12", count=2, qos="low"))
    assert waits is not None
    assert (waits.state, waits.size, waits.gpus_per_member, waits.qos) == ("waiting", 12, 1, "low")

    runs = work(row(1, "gpu1", "gpu2", per_job="gres:gpu:h100:12"))
    assert runs is not None
    assert (runs.state, runs.nodes) == ("running", ()), "nobody knows how much is on which"

    over = work(row(1, "gpu1", "gpu2", per_job="gres:gpu:h100:3", state="COMPLETED", end=120))
    assert over is not None
    assert (over.nodes, over.gpus_per_member) == (("gpu1", "gpu1", "gpu2"), 1), "as its history is"
