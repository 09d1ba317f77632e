"""slurmrestd's JSON in both shapes gives the same records, and every error in it is one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apps.backends.adapters.slurm import client as clients
from apps.backends.adapters.slurm import workload
from apps.backends.adapters.slurm.client import Client, SlurmError, newest
from apps.backends.adapters.slurm.marks import Mark, mark_of
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.own import Detail
from apps.backends.adapters.slurm.rest import submission
from apps.backends.adapters.slurm.shapes import (
    detail_of,
    job_state,
    listed,
    node_of,
    number,
    own_of,
    row_of,
)
from apps.backends.adapters.slurm.tokens import claims, signed
from apps.backends.port import BackendError, LaunchRequest

UID = "00000000-0000-4000-8000-000000000001"
COMMENT = f"rollcall:atlas:{UID} at=7 shape=2x4 pool=h100 signal=USR1"


def be(value: int) -> dict[str, Any]:
    """A number that is set, in the new shape."""
    return {"set": True, "infinite": False, "number": value}


UNSET = {"set": False, "infinite": False, "number": 0}
ENDLESS = {"set": False, "infinite": True, "number": 0}
OLD_JOB = {
    "job_id": 8, "array_job_id": 0, "array_task_id": None, "array_task_string": "",
    "job_state": "RUNNING", "partition": "main", "account": "research",
    "tres_per_node": "gres:gpu:h100:8", "node_count": 2, "nodes": "gpu[1-2]",
    "required_nodes": "gpu[1-2]", "start_time": 110, "submit_time": 100, "end_time": 3_710,
    "time_limit": 60, "user_name": "rollcall", "state_reason": "None", "state_description": "",
    "comment": COMMENT, "name": f"train.{UID}", "restart_cnt": 0, "exit_code": 0,
}  # fmt: skip
NEW_JOB = OLD_JOB | {
    "array_job_id": be(0), "array_task_id": UNSET, "job_state": ["RUNNING"],
    "tres_per_node": "gres/gpu:h100:8", "node_count": be(2), "start_time": be(110),
    "submit_time": be(100), "end_time": be(3_710), "time_limit": be(60),
    "exit_code": {"status": ["SUCCESS"], "return_code": be(0), "signal": {"id": UNSET, "name": ""}},
}  # fmt: skip
OLD_NODE = {
    "name": "gpu1", "partitions": ["main", "short"], "gres": "gpu:h100:8",
    "gres_used": "gpu:h100:3(IDX:0-2)", "state": "mixed", "state_flags": ["DRAIN"],
    "reason": "fan", "reason_changed_at": 90,
}  # fmt: skip
NEW_NODE = {key: value for key, value in OLD_NODE.items() if key != "state_flags"} | {
    "state": ["MIXED", "DRAIN"],
    "reason_changed_at": be(90),
}


def test_both_shapes_of_a_job_are_one_record() -> None:
    old, new = row_of(OLD_JOB), row_of(NEW_JOB)

    assert (old.id, old.label, old.state, old.nodes) == (8, "8", "RUNNING", ("gpu1", "gpu2"))
    assert (old.submit, old.start, old.end, old.limit) == (100, 110, 3_710, 3_600)
    assert {**OLD_JOB, **NEW_JOB} != OLD_JOB
    assert [getattr(new, name) for name in old.__slots__ if name != "per_node"] == [
        getattr(old, name) for name in old.__slots__ if name != "per_node"
    ]
    assert own_of(NEW_JOB, "atlas", "") == own_of(OLD_JOB, "atlas", "")
    assert own_of(OLD_JOB, "atlas", "") is not None
    assert own_of(OLD_JOB, "boreas", "") is None


def test_a_job_that_runs_as_its_user_is_ours_only_with_a_mark_signed_for_them() -> None:
    mark = mark_of(OLD_JOB["comment"])
    assert mark is not None
    signed = OLD_JOB | {"comment": replace(mark, owner="ana").text(), "user_name": "ana"}

    ours = own_of(signed, "atlas", "ana")

    assert ours is not None
    assert (ours.mark.uid, ours.mark.owner) == (mark.uid, "ana")
    assert own_of(signed, "atlas", "eve") is None
    assert own_of(OLD_JOB, "atlas", "ana") is None
    changed = signed | {"comment": signed["comment"].replace("at=", "at=1")}
    assert own_of(changed, "atlas", "ana") is None


def test_both_shapes_of_a_node_are_one_record() -> None:
    assert node_of(NEW_NODE) == node_of(OLD_NODE)
    node = node_of(OLD_NODE)
    assert (node.state, node.reason, node.since) == ("drained", "fan", 90)
    assert (node.gpus, node.used) == ({"h100": 8}, {"h100": 3})
    silent = node_of(NEW_NODE | {"state": ["DOWN", "NOT_RESPONDING"], "reason": ""})
    assert (silent.state, silent.reason) == ("down", "does not respond")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (5, 5), (be(5), 5), ("5", 5), (None, None), (UNSET, None), (ENDLESS, None), (-1, None),
        (4_294_967_294, None), (4_294_967_295, None), (True, None), ("x", None), (be(0), 0),
    ],
)  # fmt: skip
def test_a_number_is_read_or_is_none(value: object, read: int | None) -> None:
    assert number(value) == read


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("PENDING", "PENDING"), (["PENDING"], "PENDING"), (["COMPLETED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "REQUEUE_HOLD"], "REQUEUE_HOLD"), (["RUNNING", "CONFIGURING"], "CONFIGURING"),
        (["FAILED", "LAUNCH_FAILED"], "FAILED"), ([], ""),
    ],
)  # fmt: skip
def test_a_state_with_flags_is_what_the_commands_call_it(value: object, read: str) -> None:
    assert job_state(value) == read


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"array_job_id": 7, "array_task_string": "1-3,9%2"}, "7_[1-3,9%2]"),
        ({"array_job_id": be(7), "array_task_id": be(0)}, "7_0"),
        ({"het_job_id": be(7), "het_job_offset": be(1)}, "7+1"),
        ({"array_job_id": be(0), "het_job_id": be(0)}, "8"),
    ],
)
def test_a_job_is_called_as_people_know_it(changes: dict[str, Any], label: str) -> None:
    assert row_of(OLD_JOB | changes).label == label


@pytest.mark.parametrize(
    ("told", "detail"),
    [
        (75 << 8, Detail(1, 75, 0)),
        (9, Detail(1, 0, 9)),
        ({"return_code": be(75), "signal": {"id": UNSET}}, Detail(1, 75, 0)),
        ({"return_code": be(0), "signal": {"id": be(9), "name": "KILL"}}, Detail(1, 0, 9)),
        ({"return_code": be(0), "signal": {"signal_id": be(9)}}, Detail(1, 0, 9)),
    ],
)
def test_an_end_is_read_in_every_shape(told: object, detail: Detail) -> None:
    assert detail_of({"exit_code": told, "restart_cnt": 1}) == detail


def test_a_list_that_is_not_there_is_no_empty_cluster() -> None:
    assert listed({"jobs": []}, "jobs") == []
    for answer in ({}, {"jobs": None}, {"jobs": ["x"]}):
        with pytest.raises(BackendError, match="lists no jobs"):
            listed(answer, "jobs")


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [([36, 37, 38], 38), ([40, 41, 42], 42), ([42, 43, 44], 42), ([44, 43], 43)],
)
def test_the_newest_known_version_is_spoken(offered: list[int], chosen: int) -> None:
    assert newest(offered) == chosen


@pytest.mark.parametrize(("offered", "told"), [([35, 36], "v0.0.35, v0.0.36"), ([], "none")])
def test_one_that_offers_nothing_known_is_refused(offered: list[int], told: str) -> None:
    with pytest.raises(
        BackendError, match=f"offers {told}; Rollcall knows v0.0.38 and later"
    ) as error:
        newest(offered)

    assert not error.value.retry


def test_a_gang_is_asked_for_in_the_words_of_each_version() -> None:
    asked = LaunchRequest(
        uid=UID, name="train", tenant="vision/seg", pool="h100", gpus_per_member=4,
        nodes=("gpu1", "gpu1", "gpu2", "gpu2"), limit_seconds=90,
        workload=workload.check({"script": "#!/bin/sh\n", "memory_mib_per_member": 100}),
    )  # fmt: skip
    mark = Mark("atlas", UID, 7, members=2, gpus=4, pool="h100")
    options = Options(partition="gpu", account="research", accounts={"vision": "cv"})

    old, new = (
        submission(asked, options, mark, ["gpu1", "gpu2"], version)["job"] for version in (38, 42)
    )

    assert (old["nodelist"], old["nodes"], old["gres"]) == ("gpu1,gpu2", [2, 2], "gpu:h100:8")
    assert (new["required_nodes"], new["tres_per_node"]) == (["gpu1", "gpu2"], "gres/gpu:h100:8")
    assert (new["minimum_nodes"], new["maximum_nodes"]) == (2, 2)
    assert (old["time_limit"], new["time_limit"]) == (2, {"set": True, "number": 2})
    assert (old["memory_per_node"], new["memory_per_node"]["number"]) == (200, 200)
    assert old["environment"]["ROLLCALL_TENANT"] == "vision/seg"
    assert f"ROLLCALL_UID={UID}" in new["environment"]
    same = {"name", "comment", "tasks", "tasks_per_node", "dependency", "account", "partition"}
    assert {name: old[name] for name in same} == {name: new[name] for name in same}
    assert (old["tasks"], old["tasks_per_node"], old["account"]) == (4, 2, "cv")


def test_one_that_lies_unevenly_asks_by_task() -> None:
    asked = LaunchRequest(
        uid=UID, name="train", tenant="vision", pool="h100", gpus_per_member=2,
        nodes=("gpu1", "gpu1", "gpu2"), limit_seconds=None,
        workload=workload.check({"script": "#!/bin/sh\n", "memory_mib_per_member": 100}),
    )  # fmt: skip
    mark = Mark("atlas", UID, 7, members=0, gpus=2, pool="h100", size=3, typed=False)

    old, middle, new = (
        submission(asked, Options(), mark, ["gpu1", "gpu2"], version)["job"]
        for version in (38, 39, 42)
    )

    assert (old["gpus_per_task"], old["memory_per_cpu"]) == ("2", 100)
    assert middle["tres_per_task"] == "gres:gpu:2"
    assert new["tres_per_task"] == "gres/gpu:2"
    assert "SLURM_GPUS_PER_TASK=2" in new["environment"]
    for told in (old, middle, new):
        assert not {"tasks_per_node", "gres", "tres_per_node", "memory_per_node"} & told.keys()


def test_a_token_says_whose_it_is_and_when_it_ends() -> None:
    token = signed(b"key", "rollcall", now=1_000.5, seconds=60)

    assert claims(token) == ("rollcall", 1_060)
    assert claims("a.b.c") == claims("nothing") == claims("a.W10.c") == ("", None)


# What an answer may be, over a real connection


Answer = tuple[int, str]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Client]]:
    """A server that answers as it is told, the last answer for ever, and a client of it."""
    monkeypatch.setattr(clients, "VERSIONS", {})
    servers = []

    def serve(*answers: Answer) -> Client:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, text = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET

            def log_message(self, *words: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        url = f"http://127.0.0.1:{server.server_port}"
        token = signed(b"key", "rollcall", now=4_000_000_000)
        return Client(Options(way="rest", url=url, user="rollcall", token=token))

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


OFFER = 200, json.dumps({"paths": {"/slurm/v0.0.38/jobs": {}, "/slurm/v0.0.37/jobs": {}}})


def failed(number: int, words: str, **more: str) -> str:
    return json.dumps({"errors": [{"error_number": number, "error": words, **more}], "jobs": []})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((200, failed(-1, "Unspecified error", description="request failed")), "request failed"),
        ((500, failed(1_801, "Unable to contact slurm controller")), "Unable to contact"),
        ((200, failed(1_007, "Protocol authentication error")), "refuses the token of rollcall"),
        ((401, "Authentication failure"), "refuses the token of rollcall"),
        ((404, "Unable find requested URL"), "no such address"),
        ((502, "<html>Bad Gateway</html>"), "no JSON .HTTP 502."),
        ((200, "[]"), "no JSON .HTTP 200."),
        ((503, "{}"), "HTTP 503 without a reason"),
    ],
)
def test_what_is_no_answer_may_be_asked_again(
    served: Callable[..., Client], answer: Answer, told: str
) -> None:
    with pytest.raises(BackendError, match=told) as error:
        served(OFFER, answer).get("jobs")

    assert error.value.retry
    assert "eyJ" not in error.value.message


@pytest.mark.parametrize("status", [200, 500])
def test_an_error_is_one_with_whatever_status_it_comes(
    served: Callable[..., Client], status: int
) -> None:
    with pytest.raises(SlurmError, match="Invalid account") as error:
        served(OFFER, (status, failed(2_045, "Invalid account"))).post("job/submit", {})

    assert error.value.number == 2_045


def test_a_submission_that_is_held_is_one(served: Callable[..., Client]) -> None:
    held = {"errors": [{"error_code": 2_042, "error": "Job is in held state"}], "job_id": 39}

    assert served(OFFER, (200, json.dumps(held))).post("job/submit", {})["job_id"] == 39


def test_the_version_is_asked_for_once_and_again_when_it_is_gone(
    served: Callable[..., Client],
) -> None:
    later = 200, json.dumps({"paths": {"/slurm/v0.0.41/jobs": {}}})
    client = served(OFFER, (200, '{"jobs": []}'), (404, ""), later, (200, '{"jobs": [{}]}'))

    assert client.get("jobs") == {"jobs": []}
    assert client.version == 38
    with pytest.raises(BackendError):
        client.get("jobs")

    assert client.get("jobs") == {"jobs": [{}]}
    assert client.version == 41
