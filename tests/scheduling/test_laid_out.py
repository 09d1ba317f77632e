"""A gang that the cluster lays out otherwise than planned is booked where it lies."""

from __future__ import annotations

import pytest

from apps.backends.models import Node
from apps.backends.port import Observation, SeenAttempt, SeenNode
from apps.jobs.models import Attempt, Member
from apps.jobs.services import move_job
from apps.jobs.states import JobState
from apps.ledger.models import Interval
from apps.scheduling.adopt import Adoption
from apps.scheduling.alive import alive_on, nodes_of
from apps.scheduling.frame import Frames
from apps.scheduling.observe import apply_observation
from apps.tenants.models import Tenant
from tests.factories import NOW, make_cluster, make_job, make_pool

NODES = [SeenNode(f"n{k}", "h100", 8, "up", NOW) for k in range(3)]


@pytest.mark.parametrize(
    ("seen", "booked"),
    [
        (("n1", "n2", "n2"), ["n1", "n2", "n2"]),
        (("n2", "n0", "n0"), ["n0", "n0", "n2"]),  # as planned, ranked otherwise
        (("n1", "n2"), ["n0", "n0", "n2"]),  # of one nothing is said
        (("n1", "n2", "n9"), ["n0", "n0", "n2"]),  # a node that nobody knows
    ],
)
def test_its_members_are_where_the_cluster_has_them(
    vision: Tenant, seen: tuple[str, ...], booked: list[str]
) -> None:
    cluster = make_cluster("boreas", clock_now=None, first_look_at=None, observed_at=None)
    pool = make_pool(cluster, nodes=0)
    frames = Frames(cluster)

    def look(*attempts: SeenAttempt) -> None:
        told = Observation(as_of=NOW, cursor="", nodes=NODES, attempts=attempts)
        apply_observation(cluster, Adoption(cluster, told), frames)
        cluster.first_look_at = cluster.observed_at = NOW
        cluster.save()

    look()
    job = make_job(vision, pool, size=3, gpus_per_member=2)
    move_job(job, JobState.ADMITTED, at=NOW, what="admitted")
    attempt = Attempt.objects.create(job=job, number=1, created_at=NOW, launched_at=NOW)
    node = {row.name: row for row in Node.objects.filter(cluster=cluster)}
    for rank, name in enumerate(("n0", "n0", "n2")):
        Member.objects.create(attempt=attempt, rank=rank, node=node[name])
    nodes_of(cluster, alive_on(cluster, frames.alive), frames.members)

    look(SeenAttempt(uid=str(attempt.uid), state="running", nodes=seen, started_at=NOW))

    found = Interval.objects.filter(kind="member", attempt=attempt).order_by("rank")
    assert list(found.values_list("node__name", flat=True)) == booked
    members = attempt.members.order_by("rank")
    assert list(members.values_list("node__name", flat=True)) == booked
    held = nodes_of(cluster, alive_on(cluster, frames.alive), frames.members)[attempt.pk]
    assert held == [node[name].pk for name in booked]
