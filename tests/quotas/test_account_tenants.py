"""Tenants that are made for a cluster's accounts stand as the accounts do."""

from __future__ import annotations

import pytest

from apps.audit.models import Entry
from apps.backends.models import Cluster
from apps.quotas.account_tenants import nest, paths_of
from apps.quotas.models import Account
from apps.tenants.models import Tenant
from tests.factories import NOW, make_tenant

PARENTS = {"root": "", "org": "root", "cv": "org", "seg": "cv", "nlp": "root"}


def paths() -> list[str]:
    return sorted(Tenant.objects.filter(path__contains="/").values_list("path", flat=True))


@pytest.fixture(autouse=True)
def above(cluster: Cluster) -> Tenant:
    return make_tenant(cluster.name)


def test_those_made_before_the_accounts_were_read_move_below_their_parents(
    cluster: Cluster,
) -> None:
    for name in ("cv", "seg", "nlp"):
        make_tenant(f"atlas/{name}")

    nest(cluster, PARENTS, now=NOW)
    moved = Entry.objects.filter(verb="moved").count()
    nest(cluster, PARENTS, now=NOW)

    assert paths() == ["atlas/nlp", "atlas/org", "atlas/org/cv", "atlas/org/cv/seg"]
    assert Entry.objects.filter(verb="moved").count() == moved == 2


def test_one_that_the_options_name_ends_the_chain_and_one_that_was_moved_stays(
    cluster: Cluster,
) -> None:
    cluster.options = {"accounts": {"vision": "org"}}
    make_tenant("atlas/cv")
    make_tenant("atlas/mine")
    make_tenant("atlas/mine/seg")

    nest(cluster, PARENTS, now=NOW)

    assert paths() == ["atlas/cv", "atlas/mine", "atlas/mine/seg"]


def test_a_name_that_is_taken_leaves_the_others_right(cluster: Cluster) -> None:
    for name in ("ORG", "cv", "seg"):
        make_tenant(f"atlas/{name}")

    nest(cluster, PARENTS | {"seg": "nlp"}, now=NOW)

    assert paths() == ["atlas/ORG", "atlas/cv", "atlas/nlp", "atlas/nlp/seg"]


def test_an_account_without_a_tenant_gets_its_place_where_accounts_are_known(
    cluster: Cluster,
) -> None:
    make_tenant("atlas/nlp")
    before = paths_of(cluster, ["seg", "nlp", ""])
    for name, parent in PARENTS.items():
        Account.objects.create(cluster=cluster, name=name, parent=parent, seen_at=NOW)

    assert before == {"seg": "atlas/seg", "nlp": "atlas/nlp", "": "atlas/no account"}
    assert paths_of(cluster, ["seg", "nlp", ""]) == before | {"seg": "atlas/org/cv/seg"}
