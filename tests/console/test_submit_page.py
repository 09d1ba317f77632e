"""The submit form: what is typed is checked where it stands, and sent once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.utils import timezone
from django.utils.http import urlencode

from apps.backends.models import Cluster, Pool
from apps.backends.services import add_cluster
from apps.jobs.models import Attempt, Job

AsUser = Callable[[str], Client]


@pytest.fixture
def typed(world: SimpleNamespace) -> dict[str, Any]:
    return {
        "name": "llama-70b-sft", "tenant": world.tenants["nlp/alignment"].pk, "pool": world.pool.pk,
        "size": "4", "gpus_per_member": "8", "topology": "rack", "limit": "4h",
        "priority_class": "", "nice": "", "runtime": "10m", "outcome": "failed",
        "checkpoint_every": "", "utilisation": "0.5", "key": "a" * 32,
    }  # fmt: skip


def test_a_job_is_submitted_as_typed_and_the_answer_is_its_page(
    as_user: AsUser, typed: dict[str, Any], world: SimpleNamespace
) -> None:
    answer = as_user("bob").post("/jobs/new/", typed)

    job = Job.objects.get()
    world.cluster.refresh_from_db()
    assert answer["Location"] == f"/jobs/{job.pk}/"
    assert (job.name, job.size, job.gpus_per_member, job.topology) == (
        "llama-70b-sft",
        4,
        8,
        "rack",
    )
    assert (job.limit_seconds, job.nice, job.submitted_by.username) == (14_400, 0, "bob")
    assert (job.workload["runtime"], job.workload["outcome"]) == (600, "failed")
    assert job.workload["utilisation"] == 0.5
    assert world.cluster.tick_requested_at is not None


def test_the_same_form_sent_twice_is_one_job_and_with_other_values_none(
    as_user: AsUser, typed: dict[str, Any]
) -> None:
    client = as_user("bob")

    first, second = client.post("/jobs/new/", typed), client.post("/jobs/new/", typed)
    other = client.post("/jobs/new/", typed | {"name": "other"})

    assert first["Location"] == second["Location"]
    assert other.status_code == 422
    assert "This form was sent before with other values." in other.content.decode()
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "", "required"), ("name", "x" * 10_000, "10,000 characters"),
        ("size", "0", "size must be 1 to"), ("size", "many", "whole number"),
        ("gpus_per_member", "-1", "must be 1 to"), ("gpus_per_member", "", "required"),
        ("limit", "soon", "such as 90s"), ("limit", "0s", "must be positive"),
        ("nice", "1e9", "whole number"), ("topology", "moon", "moon"),
        ("utilisation", "2", "must be from 0 to 1"), ("checkpoint_every", "0s", "at least 1 second"),
        ("tenant", "", "required"), ("pool", "999999", "valid choice"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_under_its_field_and_on_top(
    as_user: AsUser, typed: dict[str, Any], field: str, value: str, said: str
) -> None:
    answer = as_user("bob").post("/jobs/new/", typed | {field: value})

    html = answer.content.decode()
    assert answer.status_code == 422
    assert Job.objects.count() == 0
    under = html.partition(f'id="id_{field}_error"')[2].partition("</ul>")[0]
    assert said in under
    assert f'href="#id_{field}"' in html
    assert "data-autofocus" in html


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_nobody_submits_for_a_team_that_is_not_theirs(
    as_user: AsUser, typed: dict[str, Any], world: SimpleNamespace, who: str
) -> None:
    client = as_user(who)

    answer = client.post("/jobs/new/", typed | {"tenant": world.tenants["vision"].pk})

    assert answer.status_code == 422
    assert Job.objects.count() == 0
    assert "vision" not in client.get("/jobs/new/").content.decode()


def test_a_stranger_is_told_why_there_is_no_form(as_user: AsUser, typed: dict[str, Any]) -> None:
    html = as_user("carol").get("/jobs/new/").content.decode()

    assert "You belong to no team yet" in html
    assert "Submit 1 job" not in html


def test_a_gang_larger_than_its_pool_is_taken_and_told_at_once(
    as_user: AsUser, typed: dict[str, Any]
) -> None:
    answer = as_user("bob").post("/jobs/new/", typed | {"size": "33", "topology": "none"})

    said = [str(message) for message in get_messages(answer.wsgi_request)]
    assert Job.objects.get().size == 33
    assert said[1].startswith("It never fits: needs 264 GPUs; h100 has 32")


@pytest.mark.parametrize("name", ["<i>x</i>", "שלום עולם", "🐘", "مرحبا"])
def test_any_name_is_kept_as_typed(as_user: AsUser, typed: dict[str, Any], name: str) -> None:
    as_user("bob").post("/jobs/new/", typed | {"name": f" {name} "})

    assert Job.objects.get().name == name


# The preview ---------------------------------------------------------------------------------------


def test_a_preview_says_that_it_would_start_where_and_keeps_what_was_typed(
    as_user: AsUser, typed: dict[str, Any]
) -> None:
    answer = as_user("bob").post("/jobs/new/", typed | {"topology": "none", "preview": "1"})

    html = answer.content.decode()
    assert answer.status_code == 200
    assert "It would start now, on 4 nodes." in html
    assert "gpu-n00, gpu-n01, gpu-n02, gpu-n03" in html
    assert 'value="llama-70b-sft"' in html
    assert f'value="{"a" * 32}"' in html
    assert Job.objects.count() == 0


def test_after_a_preview_the_form_is_submitted_once(as_user: AsUser, typed: dict[str, Any]) -> None:
    client = as_user("bob")
    client.post("/jobs/new/", typed | {"preview": "1"})

    client.post("/jobs/new/", typed)
    client.post("/jobs/new/", typed | {"preview": "1"})

    assert Job.objects.count() == 1


@pytest.mark.parametrize(("field", "value"), [("size", "0"), ("name", "")])
def test_what_cannot_be_is_not_previewed(
    as_user: AsUser, typed: dict[str, Any], field: str, value: str
) -> None:
    answer = as_user("bob").post("/jobs/new/", typed | {field: value, "preview": "1"})

    assert answer.status_code == 422
    assert 'id="preview"' not in answer.content.decode()


def test_a_preview_of_what_never_fits_says_so(as_user: AsUser, typed: dict[str, Any]) -> None:
    answer = as_user("bob").post(
        "/jobs/new/", typed | {"size": "33", "topology": "none", "preview": "1"}
    )

    html = answer.content.decode()
    assert "It would never start." in html
    assert "Never fits: needs" in html
    assert "no instant is in sight" in html


class TestOnSlurm:
    """What a job runs on a Slurm cluster is asked for in the form."""

    SCRIPT = "#!/bin/bash\r\ntrap 'exit 75' USR1\r\nsleep 9 & wait\r\n"

    @pytest.fixture
    def slurm(self, typed: dict[str, Any]) -> dict[str, Any]:
        cluster = add_cluster("boreas", kind="slurm", grade="drive", now=timezone.now())
        pool = Pool.objects.create(cluster=cluster, name="h100")
        run = {"script": self.SCRIPT, "checkpoint_signal": "USR1", "cpus_per_member": "4"}
        return typed | run | {"pool": pool.pk, "topology": ""}

    def test_a_script_is_kept_as_a_shell_reads_it(
        self, as_user: AsUser, slurm: dict[str, Any]
    ) -> None:
        answer = as_user("bob").post("/jobs/new/", slurm)

        job = Job.objects.get()
        assert answer["Location"] == f"/jobs/{job.pk}/"
        assert job.workload["script"] == self.SCRIPT.replace("\r", "")
        assert job.workload["checkpoint_signal"] == "USR1"
        assert job.workload["cpus_per_member"] == 4
        assert "runtime" not in job.workload

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({}, "Jobs run as the service user, with their team&#x27;s account"),
            ({"run_as": "sudo"}, "On boreas a job runs as the user who submitted it."),
        ],
    )
    def test_the_page_of_a_job_says_as_whom_it_runs(
        self, as_user: AsUser, slurm: dict[str, Any], options: dict[str, str], said: str
    ) -> None:
        Cluster.objects.filter(name="boreas").update(options=options)
        client = as_user("bob")
        client.post("/jobs/new/", slurm)
        job = Job.objects.get()
        before = client.get(f"/jobs/{job.pk}/").content.decode()

        Attempt.objects.create(job=job, number=1, created_at=timezone.now())
        page = client.get(f"/jobs/{job.pk}/").content.decode()

        assert said not in before
        assert said in page

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("script", "", "must say what the job runs"),
            ("script", "sleep 9", "must start with #!"),
            ("script", "#!/bin/sh\r\n#SBATCH -N 2", "has an #SBATCH line (line 2)"),
            ("script", "#!/bin/sh\n" + "#" * 300_000, "must be at most 256 KiB"),
            ("checkpoint_signal", "KILL", "KILL"),
            ("directory", "here", "must be a whole path"),
            ("cpus_per_member", "0", "must be from 1 to"),
        ],
    )
    def test_what_cannot_run_is_refused_under_its_field(
        self, as_user: AsUser, slurm: dict[str, Any], field: str, value: str, said: str
    ) -> None:
        answer = as_user("bob").post("/jobs/new/", slurm | {field: value})

        assert answer.status_code == 422
        assert said in str(answer.context["form"].errors[field])
        assert not Job.objects.exists()

    def test_a_script_of_5_mib_gets_a_sentence(
        self, as_user: AsUser, slurm: dict[str, Any]
    ) -> None:
        body = urlencode(slurm | {"script": "#!/bin/sh\n" + "#" * 5 * 2**20})

        answer = as_user("bob").post(
            "/jobs/new/", body, content_type="application/x-www-form-urlencoded"
        )

        assert answer.status_code == 413
        assert "more than one form may send" in answer.content.decode()
        assert not Job.objects.exists()
