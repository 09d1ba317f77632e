"""What an owner and a user say of Slurm is checked field by field, and spelled safely."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError

from apps.audit.models import Entry
from apps.backends.adapters.slurm import workload
from apps.backends.adapters.slurm.marks import Mark, mark_of
from apps.backends.adapters.slurm.options import Options, read_options
from apps.backends.adapters.slurm.runner import Runner, _spelled, _split
from apps.backends.adapters.slurm.submit import (
    account_of,
    arguments,
    environment_of,
    script_of,
    shape_of,
)
from apps.backends.models import Cluster
from apps.backends.port import BackendError, LaunchRequest
from apps.backends.services import add_cluster, change_cluster
from apps.common.errors import Invalid
from apps.common.sealing import unseal
from tests.factories import NOW, make_user

REST = {"way": "rest", "url": "http://slurm:6820", "user": "u", "token": "a.b.c"}
UID = "00000000-0000-4000-8000-000000000001"


def request(*nodes: str, **changes) -> LaunchRequest:
    asked = {
        "uid": UID, "name": "train", "tenant": "vision/seg", "pool": "h100", "gpus_per_member": 4,
        "limit_seconds": 90, "workload": workload.check({"script": "#!/bin/sh\n"}),
    }  # fmt: skip
    return LaunchRequest(**(asked | changes), nodes=nodes)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"hots": "x"}, "hots"),
        ({"way": "soap"}, "way"),
        ({"way": "rest"}, "url"),
        ({"way": "rest", "url": "slurm:6820"}, "url"),
        ({"way": "rest", "url": "http://a:b@slurm:6820"}, "url"),
        ({"way": "rest", "url": "http://slurm:x"}, "url"),
        ({"way": "rest", "url": "http://slurm:6820"}, "user"),
        ({"way": "rest", "url": "http://slurm:6820", "user": "u"}, "token"),
        ({**REST, "token": "not-three-parts"}, "token"),
        ({**REST, "token": "a.b.c\r\nX-Other: 1"}, "token"),
        ({**REST, "ca": "/ca"}, "ca"),
        ({**REST, "host": "login"}, "key"),
        ({"url": "http://slurm:6820"}, "way"),
        ({"way": "ssh"}, "host"),
        ({"way": "ssh", "host": "login"}, "key"),
        ({"host": "login"}, "way"),
        ({"way": "ssh", "host": "-oProxyCommand=x", "key": "/k"}, "host"),
        ({"way": "ssh", "host": "a b", "key": "/k"}, "host"),
        ({"way": "ssh", "host": "login", "key": "k"}, "key"),
        ({"port": 0}, "port"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"bin": "bin"}, "bin"),
        ({"partition": "-x"}, "partition"),
        ({"account": "a\nb"}, "account"),
        ({"accounts": []}, "accounts"),
        ({"accounts": {"vision": 3}}, "accounts.vision"),
        ({"directory": ""}, "directory"),
    ],
)
def test_an_option_that_cannot_be_is_named(options, field):
    with pytest.raises(Invalid) as refusal:
        read_options(options)

    assert refusal.value.field == f"options.{field}"
    assert refusal.value.message.startswith(f"options.{field} ")


def test_a_cluster_with_such_options_is_not_added(db):
    with pytest.raises(Invalid) as refusal:
        add_cluster("atlas", kind="slurm", now=NOW, options={"way": "ssh"})

    assert refusal.value.field == "options.host"
    assert add_cluster("atlas", kind="slurm", now=NOW).grade == "observe"
    with pytest.raises(ValidationError) as told:
        Cluster(name="boreas", kind="slurm", options={"port": -1}).full_clean()
    assert "options" in told.value.message_dict


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "script"),
        ({"script": "sleep 1"}, "script"),
        ({"script": "#!/bin/sh\n#SBATCH --array=1-100\n"}, "script"),
        ({"script": "#!/bin/sh\n" + "x" * 300_000}, "script"),
        ({"script": 3}, "script"),
        ({"command": "sleep 1"}, "command"),
        ({"command": []}, "command"),
        ({"command": ["a", 1]}, "command"),
        ({"script": "#!/bin/sh", "command": ["a"]}, "command"),
        ({"command": ["a"], "checkpoint_signal": "KILL"}, "checkpoint_signal"),
        ({"command": ["a"], "cpus_per_member": 0}, "cpus_per_member"),
        ({"command": ["a"], "environment": {"a b": "c"}}, "environment"),
        ({"command": ["a"], "environment": {"SLURM_CONF": "c"}}, "environment"),
        ({"script": "#!/bin/sh", "environment": {"A": "b"}}, "environment"),
        ({"command": ["a"], "directory": "here"}, "directory"),
        ({"command": ["a"], "kind": "simulated"}, "kind"),
    ],
)
def test_a_workload_that_cannot_be_is_named(asked, field):
    with pytest.raises(Invalid) as refusal:
        workload.check(asked)

    assert refusal.value.field == f"workload.{field}"


def test_a_script_names_the_line_that_speaks_to_slurm():
    with pytest.raises(Invalid, match="line 3"):
        workload.check({"script": "#!/bin/sh\n\n#SBATCH -N 2\n"})


def test_a_gang_is_one_allocation_on_the_planned_nodes():
    asked = request("n2", "n1", "n2", "n1")
    nodes, members = shape_of(asked)
    mark = Mark("atlas", UID, 7, members, 4, "h100")

    words = arguments(asked, Options(partition="main", account="org"), mark, nodes)

    assert {
        "--nodelist=n1,n2", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--gres=gpu:h100:8",
        "--no-requeue", "--dependency=singleton", "--time=1:30", "--partition=main",
        "--account=org", f"--comment={mark.text()}",
    } <= set(words)  # fmt: skip


def test_a_gang_that_lies_unevenly_asks_by_task():
    asked = request("n1", "n2", "n1")
    asked.workload["memory_mib_per_member"] = 100
    asked.workload["cpus_per_member"] = 3
    nodes, members = shape_of(asked)
    mark = Mark("atlas", UID, 7, members, 4, "h100", size=3)

    words = arguments(asked, Options(), mark, nodes)

    assert (nodes, members) == (["n1", "n2"], 0)
    assert {
        "--nodelist=n1,n2", "--nodes=2", "--ntasks=3", "--gpus-per-task=h100:4", "--mem-per-cpu=34M"
    } <= set(words)  # fmt: skip
    assert not [
        word for word in words if word.startswith(("--gres", "--ntasks-per-node", "--mem="))
    ]
    assert mark_of(mark.text()) == mark
    plain = arguments(asked, Options(), replace(mark, typed=False), nodes)
    assert "--gpus-per-task=4" in plain


def test_a_tenant_without_an_account_uses_that_of_the_nearest_above():
    options = Options(account="org", accounts={"vision": "cv lab", "vision/seg/x": "x"})

    assert account_of(options, "vision/seg") == "cv lab"
    assert account_of(options, "nlp") == "org"


def test_a_command_is_quoted_in_its_script(tmp_path: Path):
    """The script is run by a real bash, with a srun that only says what it was given."""
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$GREETING"\n')
    (tmp_path / "srun").chmod(0o755)
    checked = workload.check(
        {"command": ["echo", "$(touch x)", "it's; a b"], "environment": {"GREETING": "a'b $HOME"}}
    )

    done = subprocess.run(
        [bash], input=script_of(checked, 4), capture_output=True, text=True, cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True,
    )  # fmt: skip

    assert done.stdout.splitlines() == [
        "--kill-on-bad-exit=1", "--gpus-per-task=4", "--", "echo", "$(touch x)", "it's; a b",
        "a'b $HOME",
    ]  # fmt: skip
    assert not (tmp_path / "x").exists()


def test_what_a_user_asks_for_reaches_the_job_and_not_sbatch():
    evil = {"LD_PRELOAD": "/tmp/x.so", "PATH": "/tmp"}
    asked = request("n1", workload=workload.check({"command": ["a"], "environment": evil}))

    assert environment_of(asked)["ROLLCALL_UID"] == UID
    assert all(name.startswith("ROLLCALL_") for name in environment_of(asked))
    assert "export LD_PRELOAD=/tmp/x.so\n" in script_of(asked.workload, 4)


def runner(folder: Path, name: str, body: str, **options) -> Runner:
    """A runner whose Slurm is one program."""
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
    return Runner(Options(bin=str(folder), **options))


def test_a_command_that_hangs_is_given_up(tmp_path: Path):
    with pytest.raises(BackendError, match="squeue: no answer within 1 s") as error:
        runner(tmp_path, "squeue", "exec sleep 30", timeout_seconds=1).run("squeue")

    assert error.value.retry


def test_a_controller_that_is_away_is_no_refusal(tmp_path: Path):
    said = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"

    with pytest.raises(BackendError, match="does not answer: sbatch: Batch job") as error:
        runner(tmp_path, "sbatch", f"echo '{said} (connect failure)' >&2; exit 1").run("sbatch")

    assert error.value.retry


def test_what_slurm_refuses_is_answered_in_its_words(tmp_path: Path):
    said = "sbatch: error: Batch job submission failed: Invalid account"

    answer = runner(tmp_path, "sbatch", f"echo '{said}' >&2; exit 1").run("sbatch")

    assert (answer.code, answer.said) == (1, "Batch job submission failed: Invalid account")


def test_a_machine_without_slurm_says_so():
    with pytest.raises(BackendError, match="squeue cannot be started here") as error:
        Runner(Options(bin="/nowhere")).run("squeue")

    assert not error.value.retry


def test_nothing_of_the_workers_environment_reaches_slurm(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hidden")
    monkeypatch.setenv("SQUEUE_USERS", "nobody")

    out = runner(tmp_path, "squeue", "env").run("squeue").out
    plain = runner(tmp_path, "sbatch", "env").run("sbatch", plain=False, extra={"A": "1"}).out

    assert "hidden" not in out + plain
    assert "SQUEUE_USERS" not in out
    assert {"LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s"} <= set(out.splitlines())
    assert "TZ=UTC" not in plain
    assert "A=1" in plain.splitlines()


def test_a_word_stays_one_word_in_the_login_nodes_shell():
    words = ["printf", "%s|", "a b", "$(id)", "'; rm -rf x", "--x=`id`"]

    done = subprocess.run(
        ["/bin/sh", "-c", _spelled(words, {"A": "b c", "PATH": "/usr/bin:/bin"})],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "a b|$(id)|'; rm -rf x|--x=`id`|"


def test_the_answers_of_one_round_trip_are_taken_apart():
    out = "one\ntwo\n\nMARK 0\nslurm_load_jobs error: x\n\nMARK 1\nfoo\nMARK 9"

    first, second, third = _split(out, "MARK")

    assert (first.code, first.out.split()) == (0, ["one", "two"])
    assert (second.code, second.said) == (1, "x")
    assert third.code == 9
    assert len(_split("one\n\nMARK 0\ncut of", "MARK")) == 1


def test_rest_has_the_commands_that_it_is_given_and_says_so_if_none() -> None:
    places = [
        read_options(REST | more).commands
        for more in ({}, {"bin": "/opt/slurm/bin"}, {"host": "login", "key": "/k"})
    ]

    assert places == ["", "local", "ssh"]
    with pytest.raises(BackendError, match="and sacctmgr is not done by it"):
        Runner(read_options(REST)).run("sacctmgr", "show", "account")


def test_a_token_is_stored_sealed_whoever_saves_it_and_shown_nowhere(db) -> None:
    cluster = add_cluster("atlas", kind="slurm", now=NOW, options=REST | {"token": "aa.bb.cc"})
    stored = Cluster.objects.get().options
    Cluster.objects.get().save()
    Cluster.objects.create(name="b", kind="slurm", options=REST | {"token": " dd.ee.ff "})

    assert unseal(stored["token"]) == "aa.bb.cc"
    assert Cluster.objects.get(name="atlas").options == stored
    assert unseal(Cluster.objects.get(name="b").options["token"]) == "dd.ee.ff"
    said = [str(cluster.options), str(list(Entry.objects.values_list("changes", flat=True)))]
    assert not any("aa.bb.cc" in words for words in [*said, repr(read_options(stored))])
    with pytest.raises(Invalid) as refusal:
        read_options(REST | {"token": "aa.bb.c c"})
    assert "aa.bb" not in str(refusal.value)


def test_the_admin_shows_that_a_token_is_set_and_keeps_it_if_it_is_left_so(db, client) -> None:
    client.force_login(make_user("olga", is_superuser=True, is_staff=True))
    cluster = add_cluster("atlas", kind="slurm", now=NOW, options=REST | {"token": "aa.bb.cc"})
    path = f"/admin/backends/cluster/{cluster.pk}/change/"
    page = client.get(path)
    form = page.context["adminform"].form
    left = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    asked = {name: value for name, value in left.items() if value not in (None, "")}
    asked |= {"created_at_0": "2026-01-01", "created_at_1": "00:00:00"}

    for options in ({"qos": "high"}, {"qos": "high", "token": "dd.ee.ff"}):
        said = json.dumps(left["options"] | options)
        answer = client.post(path, asked | {"options": said})
        assert answer.status_code == 302, answer.context["adminform"].form.errors
        before, cluster = cluster, Cluster.objects.get()
        if "token" not in options:
            assert cluster.options["token"] == before.options["token"]

    assert unseal(cluster.options["token"]) == "dd.ee.ff"
    assert cluster.options["qos"] == "high"
    told = page.content.decode() + str(list(Entry.objects.values_list("changes", flat=True)))
    assert "(set)" in told
    assert not any(secret in told for secret in ("aa.bb.cc", "dd.ee.ff", "sealed:"))


def test_an_empty_token_keeps_the_one_there_is(db) -> None:
    cluster = add_cluster("atlas", kind="slurm", now=NOW, options=REST | {"token": "aa.bb.cc"})
    told = REST | {"token": "", "qos": "high"}

    change_cluster(cluster, by=None, now=NOW, reason="a QOS", options=told)
    change_cluster(
        cluster, by=None, now=NOW, reason="a token", options=REST | {"token": "dd.ee.ff"}
    )

    assert unseal(Cluster.objects.get().options["token"]) == "dd.ee.ff"
    written = list(Entry.objects.filter(verb="changed").values_list("changes", flat=True))
    assert [set(changes) for changes in written].count({"options.qos"}) == 1
    assert not any(word in str(written) for word in ("aa.bb", "dd.ee", "sealed:"))
