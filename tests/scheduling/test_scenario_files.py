"""Scenario files that cannot be understood, and the command that plays those that can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.scheduling.scenario import Scenario, ScenarioError, failures, play
from apps.scheduling.scenario.expect import equals
from apps.scheduling.scenario.parse import read_text

ROOT = Path(__file__).parents[2]

GOOD = """
title = "One job of two"
source = "nowhere"
now = 2026-01-05T12:00:00Z
run_for = "1m"
every = "30s"
[policy]
max_age = "7d"
backfill = "easy"
weights = { age = 1000 }
[[pools]]
name = "gpu"
price = "2.50"
[[nodes]]
name = "n[1-2]"
pool = "gpu"
gpus = 2
rack = "r1"
[[tenants]]
name = "a"
quota.gpu = { guarantee = 1, ceiling = 3 }
[[tenants]]
name = "b"
parent = "a"
[[jobs]]
name = "runs"
tenant = "a"
pool = "gpu"
size = 2
state = "running"
started = "-5m"
on = ["n1", "n2"]
[[jobs]]
name = "waits"
tenant = "b"
pool = "gpu"
size = 2
limit = "1h"
depends_on = ["runs"]
[[events]]
at = "30s"
finish = { job = "runs", outcome = "succeeded" }
[[events]]
at = "45s"
submit = { name = "late", tenant = "a", pool = "gpu" }
[[events]]
at = "50s"
set_quota = { tenant = "a", pool = "gpu", guarantee = 2 }
[expect]
starts = []
waits = { waits = "dependency" }
[expect.numbers]
"jobs.runs.terminal" = false
[[expect.later]]
at = "30s"
running = ["waits"]
[expect.totals]
"jobs.runs.state" = "SUCCEEDED"
"""


def parse(text: str) -> Scenario:
    return read_text(text, "some.toml")


def changed(old: str, new: str) -> str:
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


@pytest.mark.django_db
def test_the_file_that_the_others_spoil_is_good() -> None:
    scenario = parse(GOOD)

    assert failures(scenario, play(scenario)) == []


# What is replaced by what; the table and the key that the error names.
BAD = {
    "unknown key at the top": ('source = "nowhere"', 'sauce = "x"', "", "sauce"),
    "unknown key in policy": ('max_age = "7d"', 'maxage = "7d"', "[policy]", "maxage"),
    "unknown weight": ("{ age = 1000 }", "{ ages = 1 }", "[policy.weights]", "ages"),
    "unknown key in pools": ('price = "2.50"', 'cost = "2.50"', "[pools.1]", "cost"),
    "unknown key in nodes": ('rack = "r1"', 'racks = "r1"', "[nodes.1]", "racks"),
    "unknown key in tenants": ('parent = "a"', 'parents = "a"', "[tenants.2]", "parents"),
    "unknown key in a quota": ("guarantee = 1,", "promise = 1,", "[tenants.1.quota.gpu]", "promise"),
    "unknown key in jobs": ('limit = "1h"', 'limits = "1h"', "[jobs.2]", "limits"),
    "unknown event": ('finish = { job = "runs"', 'end = { job = "runs"', "[events.1]", "end"),
    "unknown key in finish": ("outcome =", "how =", "[events.1.finish]", "how"),
    "unknown key in submit": ('name = "late"', 'nam = "late"', "[events.2.submit]", "nam"),
    "unknown key in set_quota": ("guarantee = 2 }", "least = 2 }", "[events.3.set_quota]", "least"),
    "unknown key in expect": ("starts = []", "begins = []", "[expect]", "begins"),
    "unknown key in later": ('running = ["w', 'runs = ["w', "[expect.later.1]", "runs"),
    "missing title's value": ('title = "One job of two"', 'title = ""', "", "title"),
    "no such unit": ('every = "30s"', 'every = "30 s"', "", "every"),
    "a duration without unit": ('run_for = "1m"', "run_for = 60", "", "run_for"),
    "a week": ('max_age = "7d"', 'max_age = "1w"', "[policy]", "max_age"),
    "a step of nothing": ('every = "30s"', 'every = "0s"', "", "every"),
    "a run backwards": ('run_for = "1m"', 'run_for = "-1m"', "", "run_for"),
    "half a second of limit": ('limit = "1h"', 'limit = "1.5s"', "[jobs.2]", "limit"),
    "a limit of nothing": ('limit = "1h"', 'limit = "0s"', "[jobs.2]", "limit"),
    "a half-life of nothing": ('max_age = "7d"', 'half_life = "0d"', "[policy]", "half_life"),
    "a time without zone": ("12:00:00Z", "12:00:00", "", "now"),
    "an offset as now": ("2026-01-05T12:00:00Z", '"-5m"', "", "now"),
    "no time": ('at = "45s"', 'at = "soon"', "[events.2]", "at"),
    "an event before now": ('at = "30s"\nfinish', 'at = "-30s"\nfinish', "[events.1]", "at"),
    "a price that is none": ('"2.50"', '"cheap"', "[pools.1]", "price"),
    "a price of nan": ('"2.50"', '"nan"', "[pools.1]", "price"),
    "a negative price": ('"2.50"', '"-1"', "[pools.1]", "price"),
    "a weight of nan": ("age = 1000", "age = nan", "[policy.weights]", "age"),
    "a tenant's weight of inf": ('name = "b"', 'name = "b"\nweight = inf', "[tenants.2]", "weight"),
    "a usage below 0": ('name = "b"', 'name = "b"\nusage = -1.0', "[tenants.2]", "usage"),
    "a number expected as nan": ("terminal\" = false", "terminal\" = nan", "[expect.numbers]", "jobs.runs.terminal"),
    "a path without value": ("terminal\" = false", "terminal\" = []", "[expect.numbers]", "jobs.runs.terminal"),
    "a size of true": ("size = 2\nlimit", "size = true\nlimit", "[jobs.2]", "size"),
    "a size of text": ("size = 2\nlimit", 'size = "2"\nlimit', "[jobs.2]", "size"),
    "a size of nothing": ("size = 2\nlimit", "size = 0\nlimit", "[jobs.2]", "size"),
    "half a GPU": ("gpus = 2", "gpus = 1.5", "[nodes.1]", "gpus"),
    "held by a word": ('limit = "1h"', 'held = "yes"', "[jobs.2]", "held"),
    "a name of 3": ('name = "waits"', "name = 3", "[jobs.2]", "name"),
    "a job without tenant": ('tenant = "b"', "", "[jobs.2]", "tenant"),
    "a table as a list": ("{ guarantee = 1, ceiling = 3 }", "[1, 3]", "[tenants.1.quota.gpu]", "gpu"),
    "a list as a table": ("[[pools]]", "[pools]", "", "pools"),
    "a placement of its own": ('max_age = "7d"', 'placement = "best"', "[policy]", "placement"),
    "a policy not built": ('max_age = "7d"', 'fair_share = "dominant_share"', "[policy]", "fair_share"),
    "a backfill not built": ('"easy"', '"conservative"', "[policy]", "backfill"),
    "a rule not built": ('max_age = "7d"', 'preemption = "fair"', "[policy]", "preemption"),
    "a topology of its own": ('limit = "1h"', 'topology = "row"', "[jobs.2]", "topology"),
    "two pools alike": ('[[nodes]]', '[[pools]]\nname = "gpu"\n[[nodes]]', "[pools]", "name"),
    "two nodes alike": ('"n[1-2]"', '"n[1-2,2]"', "[nodes]", "name"),
    "two tenants alike": ('name = "b"', 'name = "a"', "[tenants]", "name"),
    "two jobs alike": ('name = "waits"', 'name = "runs"', "[jobs]", "name"),
    "count makes a name twice": ('name = "late"', 'name = "waits"', "[jobs]", "name"),
    "a tenant called root": ('name = "b"', 'name = "root"', "[tenants.2]", "name"),
    "a parent that is not there": ('parent = "a"', 'parent = "z"', "[tenants.2]", "parent"),
    "a parent above itself": ('name = "a"\n', 'name = "a"\nparent = "b"\n', "[tenants.1]", "parent"),
    "a node's pool": ('pool = "gpu"\ngpus', 'pool = "cpu"\ngpus', "[nodes.1]", "pool"),
    "a quota's pool": ("quota.gpu", "quota.cpu", "[tenants.1]", "quota"),
    "a job's tenant": ('tenant = "b"', 'tenant = "z"', "[jobs.waits]", "tenant"),
    "a job's pool": ('pool = "gpu"\nsize = 2\nlimit', 'pool = "z"\nlimit', "[jobs.waits]", "pool"),
    "a dependency": ('["runs"]', '["walks"]', "[jobs.waits]", "depends_on"),
    "a dependency on what comes later": ('["runs"]', '["late"]', "[jobs.waits]", "depends_on"),
    "a dependency on itself": ('["runs"]', '["waits"]', "[jobs.waits]", "depends_on"),
    "running on nothing": ('on = ["n1", "n2"]', "", "[jobs.1]", "on"),
    "running since never": ('started = "-5m"', "", "[jobs.1]", "started"),
    "running since later": ('started = "-5m"', 'started = "5m"', "[jobs.runs]", "started"),
    "too few nodes": ('["n1", "n2"]', '["n1"]', "[jobs.1]", "on"),
    "a node that is not there": ('["n1", "n2"]', '["n1", "n3"]', "[jobs.runs]", "on"),
    "more GPUs than a node has": ('["n1", "n2"]', '["n1", "n1"]\ngpus_per_member = 2', "[jobs.runs]", "on"),
    "a pending job on a node": ('limit = "1h"', 'on = ["n1", "n1"]', "[jobs.2]", "on"),
    "submitted later": ('limit = "1h"', 'submitted = "5m"', "[jobs.waits]", "submitted"),
    "fewer members than least": ('limit = "1h"', "min_size = 3", "[jobs.2]", "min_size"),
    "an event's job": ('job = "runs"', 'job = "walks"', "[events.1]", "finish.job"),
    "an event before its job": ('finish = { job = "runs", outcome = "succeeded" }', 'cancel = "late"', "[events.1]", "cancel"),
    "an event's node": ('finish = { job = "runs", outcome = "succeeded" }', 'drain = "n3"', "[events.1]", "drain"),
    "an event's tenant": ('finish = { job = "runs", outcome = "succeeded" }', 'pause = "z"', "[events.1]", "pause"),
    "an event's quota": ('set_quota = { tenant = "a"', 'set_quota = { tenant = "z"', "[events.3]", "set_quota.tenant"),
    "two things at once": ('at = "45s"', 'at = "45s"\ndrain = "n1"', "[events.2]", "at"),
    "an event without instant": ('at = "45s"', "", "[events.2]", "at"),
    "an outcome of its own": ('"succeeded" }', '"lost" }', "[events.1.finish]", "outcome"),
    "expected of nobody": ("starts = []", 'starts = ["z"]', "[expect]", "starts"),
    "waited for by nobody": ("waits = { waits =", "waits = { z =", "[expect]", "waits"),
    "later of nobody": ('running = ["waits"]', 'running = ["z"]', "[expect.later.1]", "running"),
    "a range that is none": ('"n[1-2]"', '"n[1-]"', "[nodes.1]", "name"),
    "a range backwards": ('"n[1-2]"', '"n[2-1]"', "[nodes.1]", "name"),
    "a range without end": ('"n[1-2]"', '"n[1-999999999]"', "[nodes.1]", "name"),
    "a bracket left open": ('"n[1-2]"', '"n[1-2"', "[nodes.1]", "name"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "key"), BAD.values(), ids=BAD)
def test_an_error_names_the_file_the_table_and_the_key(
    old: str, new: str, where: str, key: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        parse(changed(old, new))

    assert str(error.value).startswith(f"some.toml: {where + ' ' if where else ''}{key}: ")


def test_what_is_no_toml_says_where() -> None:
    with pytest.raises(ScenarioError, match=r"some\.toml: is no TOML: .*line 2"):
        parse("title = 'x'\n= 3\n")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("event", "says"),
    [
        ('set_quota = { tenant = "a", pool = "gpu", guarantee = 4 }', "[events.1] set_quota: "),
        ('cancel = "gone"', "[events.1] cancel: "),
    ],
)
def test_an_event_that_cannot_happen_is_an_error(event: str, says: str) -> None:
    scenario = parse(f"""
        run_for = "1m"
        [[pools]]
        name = "gpu"
        [[nodes]]
        name = "n1"
        pool = "gpu"
        gpus = 1
        [[tenants]]
        name = "a"
        quota.gpu = {{ ceiling = 3 }}
        [[jobs]]
        name = "gone"
        tenant = "a"
        pool = "gpu"
        limit = "10s"
        [[events]]
        at = "1m"
        {event}
    """)

    with pytest.raises(ScenarioError) as error:
        play(scenario)

    assert str(error.value).startswith(f"some.toml: {says}")


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]x", ["n08x", "n09x", "n10x", "n11x"]),
        ("a1,b[1-2]", ["a1", "b1", "b2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_ranges_are_as_slurm_writes_them(written: str, names: list[str]) -> None:
    text = f'[[pools]]\nname = "gpu"\n[[nodes]]\nname = "{written}"\npool = "gpu"\ngpus = 1'

    scenario = parse(text)

    assert scenario.nodes[0]["name"] == names


def test_times_may_be_strings_and_carry_any_zone() -> None:
    scenario = parse('now = "2026-01-05T13:00:00+01:00"')

    assert f"{scenario.now:%Y-%m-%dT%H:%M %Z}" == "2026-01-05T12:00 UTC"


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        (1.0000009, 1, True),
        (1.000002, 1, False),
        (1_000_000.5, 1_000_000, True),
        (0.0000009, 0, True),
        (0.000002, 0, False),
        (None, "null", True),
        (0, "null", False),
        (None, 0, False),
        ("8.0000", "8.0000", True),
        ("8.0000", 8, False),
        (True, True, True),
        (True, 1, False),
        (1, True, False),
    ],
)
def test_a_value_is_compared_by_its_kind(found: Any, wanted: Any, same: bool) -> None:
    assert equals(found, wanted) is same


@pytest.mark.django_db
def test_an_empty_file_is_a_cluster_with_nothing_on_it() -> None:
    outcome = play(parse(""))

    assert outcome.last["jobs"] == {}
    assert outcome.last["ledger"] == {}


@pytest.mark.django_db
def test_each_expectation_that_does_not_hold_is_told() -> None:
    text = GOOD.replace("starts = []", 'starts = ["runs"]\nreserves = ["runs"]\norder = []')
    text = text.replace('waits = "dependency"', 'waits = "capacity", runs = "held"')
    text = text.replace("= false", "= true").replace('["waits"]', '["runs"]')
    text = text.replace('"SUCCEEDED"', '"FAILED"\n"jobs.runs.nothing" = 1\nevictions = 1')
    scenario = parse(text)

    told = failures(scenario, play(scenario))

    assert [line.partition(":")[0] for line in told] == [
        "starts", "reserves", "order", "waits.waits", "waits.runs",
        'numbers."jobs.runs.terminal"', "later at 2026-01-05T12",
        'totals."jobs.runs.state"', 'totals."jobs.runs.nothing"', 'totals."evictions"',
    ]  # fmt: skip


# The command -------------------------------------------------------------------------------------

KEYS = {
    "title", "now", "policy", "starts", "reserves", "evictions", "order", "jobs", "tenants",
    "pools", "ledger", "alarms", "timeline",
}  # fmt: skip


@pytest.fixture
def on_this_database(monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    """Let the command play on the test's database: its own would replace it in this process."""
    where = "apps.scheduling.management.commands.scenario.use_database_in_memory"
    monkeypatch.setattr(where, lambda: None)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.toml"
    path.write_text(changed("starts = []", 'starts = ["waits"]'))
    return path


@pytest.mark.usefixtures("on_this_database")
def test_json_is_the_answer_with_every_documented_key(good: Path) -> None:
    out = StringIO()

    call_command("scenario", "--json", str(good), stdout=out)

    answer = json.loads(out.getvalue(), parse_constant=pytest.fail)
    assert set(answer) == KEYS
    assert answer["now"] == "2026-01-05T12:00:00Z"
    assert set(answer["jobs"]["waits"]) == {
        "state", "terminal", "attempt", "priority", "terms", "reason", "gpu_hours", "retries_used",
    }  # fmt: skip
    assert set(answer["jobs"]["late"]["terms"]) == {
        "fair_share", "age", "size", "queue", "class", "boost", "nice",
    }  # fmt: skip
    assert set(answer["tenants"]["a"]) >= {
        "usage", "usage_share", "share", "level", "factor", "rank", "back_at_share_in", "pools",
    }  # fmt: skip
    assert set(answer["tenants"]["a"]["pools"]["gpu"]) == {
        "guarantee", "ceiling", "used", "entitlement", "lent", "borrowed", "over_quota",
    }  # fmt: skip
    assert set(answer["pools"]["gpu"]) == {"gpus", "free", "held", "promised"}
    parts = {"capacity", "busy", "held_idle", "gang_wait", "unallocated", "unavailable"}
    assert set(answer["ledger"]["gpu"]) == parts | {"money"}
    assert set(answer["ledger"]["gpu"]["money"]) == parts
    assert set(answer["starts"][0]) == {"job", "members", "at"}
    assert set(answer["timeline"][0]) >= {"at", "event", "job", "attempt"}


@pytest.mark.usefixtures("on_this_database")
def test_several_files_are_a_list_and_one_that_fails_fails_all(good: Path, wrong: Path) -> None:
    out, err = StringIO(), StringIO()

    with pytest.raises(CommandError, match="1 of 2"):
        call_command("scenario", "--json", str(good), str(wrong), stdout=out, stderr=err)

    assert [answer["title"] for answer in json.loads(out.getvalue())] == ["One job of two"] * 2
    assert "wrong.toml: starts: expected ['waits'], found []" in err.getvalue()


@pytest.mark.usefixtures("on_this_database")
def test_what_happened_is_printed(good: Path) -> None:
    out = StringIO()

    call_command("scenario", str(good), stdout=out)

    lines = out.getvalue().splitlines()
    assert lines[0].endswith("good.toml: One job of two")
    assert "  2026-01-05T12:00:30Z  waits: started" in lines
    assert lines[-1] == "  holds"


def test_a_missing_file_is_named_and_nothing_is_played(good: Path) -> None:
    out = StringIO()

    with pytest.raises(CommandError, match=r"nowhere\.toml: cannot be read"):
        call_command("scenario", str(good), str(good.with_name("nowhere.toml")), stdout=out)

    assert out.getvalue() == ""


def test_the_command_has_a_database_of_its_own_and_exits_by_what_holds(
    good: Path, wrong: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    environment = os.environ | {"ROLLCALL_DATA": str(data)}
    command = [sys.executable, str(ROOT / "manage.py"), "scenario"]

    def run(*files: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, files)], capture_output=True, text=True, env=environment,
            cwd=tmp_path, check=False,
        )  # fmt: skip

    held, failed = run(good), run(good, wrong)

    assert (held.returncode, held.stderr) == (0, "")
    assert failed.returncode == 1
    assert "DOES NOT HOLD  starts: expected ['waits'], found []" in failed.stdout
    assert list(data.rglob("*.sqlite3")) == []
