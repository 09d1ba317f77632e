"""A job is taken in only where its cluster can do what it asks."""

from __future__ import annotations

import pytest

from apps.backends.models import Cluster, Pool
from apps.common.errors import Invalid
from tests.factories import NOW, make_job


def test_a_cluster_that_cannot_shrink_takes_no_elastic_gang(vision, bob):
    cluster = Cluster.objects.create(name="slurmy", kind="slurm", created_at=NOW)
    pool = Pool.objects.create(cluster=cluster, name="h100")
    asked = {"size": 4, "gpus_per_member": 8, "workload": {"command": ["train"]}}

    with pytest.raises(Invalid) as refusal:
        make_job(vision, pool, by=bob, min_size=2, **asked)

    assert refusal.value.field == "min_size"
    assert "smallest size" in refusal.value.message
    assert make_job(vision, pool, by=bob, min_size=4, **asked).min_size == 4
