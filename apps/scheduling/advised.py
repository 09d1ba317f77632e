"""What a cluster was told of our order, and what came of it, for pages and the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from apps.backends.models import Cluster, Grade
from apps.jobs.models import Job
from apps.jobs.states import WAITING
from apps.scheduling.models import Advice, Nice, NiceState


@dataclass(frozen=True, slots=True)
class Given:
    """How many waiting jobs have a nice of ours, and how many had one that somebody changed.

    ``given_at``: when one was last set; ``trouble``: why the last try failed. In another grade than
    *advise* ``jobs`` are those that are yet to have back what they had.
    """

    jobs: int
    by_hand: int
    given_at: datetime | None
    trouble: str


def given_to(cluster: Cluster) -> Given | None:
    """Return what a cluster was told; None: it is not advised, and nothing is left of it."""
    rows = Nice.objects.filter(cluster=cluster, job__state__in=sorted(WAITING)).order_by()
    counts = dict(rows.values_list("state").annotate(Count("pk")))
    if cluster.grade != Grade.ADVISE and not counts:
        return None
    told = Advice.objects.filter(cluster=cluster).first() or Advice(cluster=cluster)
    jobs, by_hand = counts.get(NiceState.SET, 0), counts.get(NiceState.BY_HAND, 0)
    if cluster.grade != Grade.ADVISE:
        jobs += counts.get(NiceState.ASKED, 0)
    return Given(jobs, by_hand, told.given_at, told.trouble)


def nice_of(job: Job) -> Nice | None:
    """Return the nice a job was given; None: it was not, or it is not known yet whether it was."""
    rows = Nice.objects.filter(job=job).exclude(state=NiceState.ASKED)
    return rows.select_related("other__tenant", "other__pool").first()
