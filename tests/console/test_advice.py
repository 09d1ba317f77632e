"""What the pages say of the order that a cluster was given of its own line."""

from __future__ import annotations

from typing import Any

import pytest

from apps.backends.models import Cluster, Grade
from apps.jobs.models import Job
from apps.scheduling.models import Advice, Nice, NiceState
from tests.console.ledgered import text_of

TROUBLE = "Slurm does not let nobody change the nice of other people's jobs."


@pytest.fixture
def advised(world: Any, make_job: Any, now: Any) -> Job:
    """A job of nlp's that was given a nice, so that it starts before one of vision's."""
    Cluster.objects.filter(pk=world.cluster.pk).update(grade=Grade.ADVISE)
    job, other = make_job("mine", "nlp", place=0), make_job("secret", "vision", place=1)
    for k, one in enumerate((job, other)):
        one.foreign_ref = f"lab:{k}:100"
        one.workload = {"kind": "foreign", "user": "ada", "account": "cv"}
        one.save()
    Nice.objects.create(
        job=job, cluster=world.cluster, original=0, before=0, asked=-1340, asked_at=now,
        state=NiceState.SET, sooner=True, other=other,
    )  # fmt: skip
    Advice.objects.create(cluster=world.cluster, given_at=now)
    return job


def test_a_job_says_which_nice_it_was_given_and_why(advised: Job, as_user: Any) -> None:
    mine = text_of(as_user("alice").get(f"/jobs/{advised.pk}/"))
    admins = text_of(as_user("admin").get(f"/jobs/{advised.pk}/"))

    asked = "Rollcall asked Simulator for nice -1,340, so that it starts before"
    assert "itself by ada, account cv. Rollcall asked" in mine
    assert asked in mine
    assert "secret" not in mine
    assert f"{asked} secret." in admins
    assert "only looks on" not in mine


def test_a_job_whose_neighbour_is_gone_starts_in_its_turn(advised: Job, as_user: Any) -> None:
    Nice.objects.update(other=None)

    told = text_of(as_user("alice").get(f"/jobs/{advised.pk}/"))

    assert "for nice -1,340, so that it starts in its turn." in told


def test_a_job_that_somebody_changed_says_so(advised: Job, as_user: Any) -> None:
    Nice.objects.update(state=NiceState.BY_HAND)

    told = text_of(as_user("alice").get(f"/jobs/{advised.pk}/"))

    assert "nice -1,340; somebody changed its nice or priority, and it is left alone since." in told


def test_what_was_asked_and_is_not_known_to_be_there_is_not_told(
    advised: Job, as_user: Any
) -> None:
    Nice.objects.update(state=NiceState.ASKED)

    assert "only looks on" in text_of(as_user("alice").get(f"/jobs/{advised.pk}/"))


def test_a_cluster_says_how_many_and_when(advised: Job, world: Any, as_user: Any) -> None:
    url = f"/clusters/{world.cluster.name}/"
    assert "1 waiting job has a nice that Rollcall set. The last was set" in text_of(
        as_user("bob").get(url)
    )

    Nice.objects.update(state=NiceState.BY_HAND)
    told = text_of(as_user("bob").get(url))
    assert "1 job is left alone: somebody changed the nice or the priority." in told

    Nice.objects.update(state=NiceState.SET)
    Cluster.objects.update(grade=Grade.OBSERVE)
    told = text_of(as_user("bob").get(url))
    assert "1 waiting job is yet to have back the nice of before." in told

    Nice.objects.all().delete()
    assert "Our order of its line" not in text_of(as_user("bob").get(url))


def test_why_it_fails_is_for_admins(advised: Job, world: Any, as_user: Any) -> None:
    Advice.objects.update(trouble=TROUBLE)
    url = f"/clusters/{world.cluster.name}/"

    admins = as_user("admin").get(url).content.decode().replace("&#x27;", "'")
    others = as_user("bob").get(url).content.decode().replace("&#x27;", "'")

    assert TROUBLE in admins
    assert TROUBLE not in others
    assert "The last try failed; admins see why." in others
