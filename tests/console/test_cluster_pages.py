"""The list of clusters, the page of one, and the forms of admins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.backends.models import Cluster, Node, NodeState
from apps.backends.services import add_cluster
from apps.jobs.models import Job
from apps.ledger.models import Interval, IntervalKind
from apps.scheduling.models import HistoryImport, HistoryReading, Tick

AsUser = Callable[[str], Client]
OPTIONS = {"bin": "/nowhere", "accounts": {"nlp": "language"}}


@pytest.fixture
def boreas(world: SimpleNamespace, now: datetime) -> Cluster:
    """A Slurm cluster that nobody can reach."""
    return add_cluster("boreas", kind="slurm", now=now, options=OPTIONS)


def html_of(client: Client, url: str, status: int = 200) -> str:
    answer = client.get(url)
    assert answer.status_code == status
    return answer.content.decode().replace("\xa0", " ")


def test_the_list_says_what_each_has(
    world: SimpleNamespace, boreas: Cluster, as_user: AsUser
) -> None:
    Node.objects.filter(name="gpu-n03").update(state=NodeState.DRAINED)

    client = as_user("bob")
    page = html_of(client, "/clusters/")
    rows = client.get("/clusters.json").json()["rows"]

    assert "2 clusters, 1 of them driven." in page
    assert "Add a cluster" not in page
    assert [(r["cluster"], r["nodes"], r["gpus_up"], r["gpus"]) for r in rows] == [
        ("atlas", 4, 24, 32),
        ("boreas", 0, 0, 0),
    ]
    assert 'href="/clusters/new/"' in html_of(as_user("admin"), "/clusters/")


def test_a_page_says_what_is_up_what_it_can_and_what_a_look_costs(
    world: SimpleNamespace, as_user: AsUser, now: datetime
) -> None:
    Node.objects.filter(name="gpu-n03").update(state=NodeState.DOWN, state_reason="fan broken")
    Tick.objects.filter(pk=world.tick.pk).update(observe_ms=75, decide_ms=25)

    page = html_of(as_user("bob"), "/clusters/atlas/")

    assert "24 of 32 GPUs are up; a tick takes 100 ms." in page
    assert (
        "A look takes 75 ms, the middle of the last 1; together they take 2.2 s of each minute."
        in page
    )
    assert "fan broken" in page
    assert "start a gang whole, on the planned nodes" in page
    assert "Change the grade" not in page


def test_a_node_names_the_jobs_on_it_to_who_may_know_them(
    world: SimpleNamespace, as_user: AsUser, make_job: Callable[..., Job], now: datetime
) -> None:
    job = make_job("secret-plan", "vision")
    node = Node.objects.get(name="gpu-n01")
    Interval.objects.create(
        cluster=world.cluster, pool=world.pool, kind=IntervalKind.MEMBER, node=node, gpus=8,
        tenant=job.tenant, job=job, start_us=1,
    )  # fmt: skip

    own, other = (html_of(as_user(name), "/clusters/atlas/") for name in ("vera", "bob"))

    assert "secret-plan" in own
    assert "secret-plan" not in other
    assert "a job of vision" in other


def test_nodes_are_narrowed_and_exported_alike(world: SimpleNamespace, as_user: AsUser) -> None:
    Node.objects.filter(name="gpu-n02").update(state=NodeState.DRAINED)
    client = as_user("bob")

    rows = client.get("/clusters/atlas.json?state=drained").json()["rows"]
    csv = b"".join(client.get("/clusters/atlas.csv?state=drained").streaming_content).decode()  # type: ignore[attr-defined]

    assert [row["node"] for row in rows] == ["gpu-n02"]
    assert csv.splitlines()[1].startswith("gpu-n02,h100,8,0,drained")
    assert "gpu-n01" not in html_of(client, "/clusters/atlas/?state=drained")
    assert "state" in html_of(client, "/clusters/atlas/?state=lost", 400)


def test_a_cluster_that_is_none_is_not_found(world: SimpleNamespace, as_user: AsUser) -> None:
    for url in ("/clusters/nowhere/", "/clusters/nowhere/edit/", "/clusters/nowhere/grade/"):
        assert as_user("admin").get(url).status_code == 404


def test_why_a_look_failed_is_for_admins(world: SimpleNamespace, as_user: AsUser) -> None:
    Cluster.objects.filter(pk=world.cluster.pk).update(trouble="ssh: /etc/key is not accessible")

    assert "/etc/key" in html_of(as_user("admin"), "/clusters/atlas/")
    other = html_of(as_user("alice"), "/clusters/atlas/")
    assert "/etc/key" not in other
    assert "The last look at atlas failed; its admins see why." in other


def test_few_queries_however_many_nodes(
    world: SimpleNamespace,
    as_user: AsUser,
    now: datetime,
    django_assert_max_num_queries: Any,
) -> None:
    Node.objects.bulk_create(
        Node(cluster=world.cluster, pool=world.pool, name=f"n{i}", gpus=8, state_since=now)
        for i in range(120)
    )
    client = as_user("bob")

    with django_assert_max_num_queries(15):
        page = html_of(client, "/clusters/atlas/")

    assert "50 of 124 nodes" in page


class TestChanges:
    """What admins do in forms."""

    @pytest.mark.parametrize("url", ["new/", "boreas/edit/", "boreas/grade/", "boreas/history/"])
    def test_they_are_for_admins(self, url: str, boreas: Cluster, as_user: AsUser) -> None:
        assert as_user("alice").get(f"/clusters/{url}").status_code == 403
        assert as_user("alice").post(f"/clusters/{url}", {}).status_code == 403
        assert Client().get(f"/clusters/{url}")["Location"].startswith("/login/?next=")
        assert as_user("admin").get(f"/clusters/{url}").status_code == 200

    def test_what_is_typed_is_checked_before_anything_is_saved(
        self, world: SimpleNamespace, as_user: AsUser
    ) -> None:
        typed = {"name": "boreas", "tick_seconds": "5", "options.way": "local", "check": "1",
                 "options.bin": "/nowhere"}  # fmt: skip

        page = as_user("admin").post("/clusters/new/", typed).content.decode()

        assert "1 thing is missing; 0 things work." in page
        assert "/nowhere/scontrol cannot be started here" in page
        assert "apt-get install slurm-client" in page
        assert not Cluster.objects.filter(name="boreas").exists()

    def test_a_cluster_is_added_as_typed_and_only_watched(
        self, world: SimpleNamespace, as_user: AsUser
    ) -> None:
        typed = {"name": "boreas", "tick_seconds": "5", "options.way": "local",
                 "options.bin": "/nowhere", "options.timeout_seconds": "7", "options.port": "22",
                 "options.accounts": "nlp = language\nvision=cv\n"}  # fmt: skip

        answer = as_user("admin").post("/clusters/new/", typed)

        assert answer["Location"] == "/clusters/boreas/?check=yes"
        made = Cluster.objects.get(name="boreas")
        assert (made.grade, made.tick_seconds) == ("observe", 5)
        # What is as it is anyway is not written down.
        assert made.options == {
            "bin": "/nowhere",
            "timeout_seconds": 7,
            "accounts": {"nlp": "language", "vision": "cv"},
        }
        assert "cannot be started here" in html_of(as_user("admin"), answer["Location"])

    @pytest.mark.parametrize(
        ("typed", "told"),
        [
            ({"name": "two words"}, "A name has only letters"),
            ({"name": "atlas"}, "There is a cluster called atlas already."),
            ({"name": "new"}, "A cluster cannot be called new"),
            ({"options.key": "relative"}, "must be a whole path"),
            ({"options.accounts": "nlp"}, "Line 1 must be such as team = account."),
            ({"options.accounts": "a = b\na = c"}, "Line 2 names a a second time."),
            ({"options.timeout_seconds": "soon"}, "Enter a whole number."),
            ({"options.way": "ssh"}, "host"),
            ({"tick_seconds": "0"}, "greater than or equal to 1"),
        ],
    )
    def test_what_cannot_be_is_named_where_it_was_typed(
        self, typed: dict[str, str], told: str, world: SimpleNamespace, as_user: AsUser
    ) -> None:
        whole = {"name": "boreas", "tick_seconds": "2", "options.way": "local"} | typed

        answer = as_user("admin").post("/clusters/new/", whole)

        assert answer.status_code == 422
        errors = answer.context["form"].errors
        assert told in str(errors)
        assert next(iter(typed)) in errors or "options.host" in errors
        assert Cluster.objects.count() == 1

    def test_a_change_keeps_what_is_not_typed_anew_and_says_why(
        self, boreas: Cluster, as_user: AsUser
    ) -> None:
        client = as_user("admin")
        form = client.get("/clusters/boreas/edit/").context["form"]
        assert form["options.accounts"].value() == "nlp = language"
        typed = {"tick_seconds": "5", "options.way": "local", "options.bin": "/elsewhere",
                 "options.accounts": "nlp = language"}  # fmt: skip

        refused = client.post("/clusters/boreas/edit/", typed)
        assert "reason" in refused.context["form"].errors
        client.post("/clusters/boreas/edit/", typed | {"reason": "moved to another folder"})

        boreas.refresh_from_db()
        assert boreas.options == {"bin": "/elsewhere", "accounts": {"nlp": "language"}}
        entry = Entry.objects.get(verb="changed")
        assert entry.changes == {
            "tick_seconds": [2, 5],
            "options.bin": ["/nowhere", "/elsewhere"],
        }
        assert entry.reason == "moved to another folder"

    def test_driving_what_lacks_something_has_to_be_said_twice(
        self, boreas: Cluster, as_user: AsUser
    ) -> None:
        client = as_user("admin")
        typed = {"grade": "drive", "reason": "the team has asked for it"}

        page = client.post("/clusters/boreas/grade/", typed).content.decode()
        assert "boreas cannot be driven yet: /nowhere/scontrol cannot be started here" in page
        assert 'name="anyway"' in page
        boreas.refresh_from_db()
        assert boreas.grade == "observe"

        client.post("/clusters/boreas/grade/", typed | {"anyway": "on"})
        boreas.refresh_from_db()
        assert boreas.grade == "drive"
        assert Entry.objects.get(verb="changed").reason == "the team has asked for it"

    def test_a_grade_needs_a_reason(self, boreas: Cluster, as_user: AsUser) -> None:
        answer = as_user("admin").post(
            "/clusters/boreas/grade/", {"grade": "advise", "reason": "x"}
        )

        assert "Say why, in 10 characters or more." in answer.content.decode()
        boreas.refresh_from_db()
        assert boreas.grade == "observe"

    def test_how_far_its_history_was_read_on_is_for_admins(
        self, boreas: Cluster, as_user: AsUser, now: datetime
    ) -> None:
        HistoryReading.objects.create(
            cluster=boreas, read_until=now, runs=3, mended=1, problem="slurmdbd is away."
        )

        page = html_of(as_user("admin"), "/clusters/boreas/")

        said = f"{now:%Y-%m-%d %H:%M} UTC: 3 runs that no look had shown, and 1 that had been"
        assert said in page
        assert "slurmdbd is away." in page
        assert "slurmdbd is away." not in html_of(as_user("bob"), "/clusters/boreas/")

    def test_an_import_of_history_is_begun_and_shows_how_far_it_is(
        self, boreas: Cluster, as_user: AsUser, now: datetime
    ) -> None:
        boreas.first_look_at = boreas.observed_at = now
        boreas.save()
        client = as_user("admin")
        day = (now - timedelta(days=4)).date()
        typed = {"since": day.isoformat(), "reason": "last month is to be in the books"}

        answer = client.post("/clusters/boreas/history/", typed)

        assert answer["Location"] == "/clusters/boreas/#history"
        job = HistoryImport.objects.get()
        assert (job.until, job.started_by.username) == (now, "admin")
        job.done_until = job.since + (job.until - job.since) / 2
        job.runs, job.left_out = 7, {"asked for no GPUs": 3}
        job.save()
        page = html_of(client, "/clusters/boreas/")
        assert '<progress max="100" value="50"' in page
        assert "7 runs written, 0 known already; left out: 3 asked for no GPUs." in page
        again = client.post("/clusters/boreas/history/", typed)
        assert "The history of boreas is being imported already." in again.content.decode()
        assert "Import its history" not in html_of(as_user("alice"), "/clusters/boreas/")
        assert "Import its history" not in html_of(client, "/clusters/atlas/")

    @pytest.mark.parametrize("since", ["", "soon", "2999-01-01"])
    def test_a_day_that_cannot_be_is_named(
        self, since: str, boreas: Cluster, as_user: AsUser, now: datetime
    ) -> None:
        boreas.first_look_at = now
        boreas.save()

        answer = as_user("admin").post(
            "/clusters/boreas/history/", {"since": since, "reason": "long enough a reason"}
        )

        assert answer.status_code == 422
        assert "since" in answer.context["form"].errors
        assert not HistoryImport.objects.exists()
