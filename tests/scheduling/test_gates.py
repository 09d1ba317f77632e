"""What stands on a job's own row and holds it."""

from __future__ import annotations

import pytest
from django.db.models import Prefetch, prefetch_related_objects

from apps.jobs.models import Job
from apps.scheduling.gates import gate_of
from tests.factories import make_cluster, make_job, make_pool, make_tenant


@pytest.mark.django_db
def test_dependencies_are_named_in_the_order_of_their_submission() -> None:
    pool, vision = make_pool(make_cluster()), make_tenant("vision")
    first, second = (make_job(vision, pool, name=name) for name in ("first", "second"))
    job = make_job(vision, pool, depends_on=(second, first))
    prefetch_related_objects([job], Prefetch("depends_on", Job.objects.order_by("-pk")))

    assert gate_of(job, "dependency")["what"] == ["first", "second"]
