"""What a cluster lacks is told to admins, and to nobody else."""

from __future__ import annotations

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.backends.services import add_cluster
from tests.api.conftest import Caller, refusal
from tests.factories import NOW

ADDRESS = "/api/v1/clusters/{}/preflight"


def test_an_admin_is_told_what_is_missing_and_what_grants_it(root: User, call: Caller) -> None:
    add_cluster("boreas", kind="slurm", now=NOW, options={"bin": "/nowhere"})

    told = call(root).get(ADDRESS.format("boreas")).json()

    assert told["cluster"] == "boreas"
    (only,) = told["findings"]
    assert (only["name"], only["state"]) == ("commands", "missing")
    assert only["sentence"].startswith("/nowhere/scontrol cannot be started here")
    assert only["command"] == "apt-get install slurm-client"


def test_a_lead_is_refused_and_what_there_is_not_is_not_found(
    alice: User, root: User, call: Caller, cluster: Cluster, pool: Pool
) -> None:
    assert refusal(call(alice).get(ADDRESS.format("atlas")), 403)["code"] == "forbidden"
    assert refusal(call(root).get(ADDRESS.format("nowhere")), 404)["code"] == "not_found"
    assert call(root).get(ADDRESS.format("atlas")).json()["findings"][0]["name"] == "world"
