"""Users of accounts and QOS: kept as seen, and not written again where nothing changed."""

from __future__ import annotations

from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.backends.models import Cluster
from apps.backends.port import SeenQos, SeenUser
from apps.quotas.account_users import MOST_PEOPLE, people_of, qos_of
from apps.quotas.accounts import keep
from apps.quotas.models import Account, AccountsLook
from apps.tenants.models import Tenant
from tests.factories import NOW
from tests.quotas.test_accounts import LATER, Ledger, adopted, ledger  # noqa: F401  fixtures


def test_users_and_qos_are_kept_the_most_used_first(
    cluster: Cluster,
    ledger: Ledger,  # noqa: F811  the fixture
    adopted: list[Tenant],  # noqa: F811
) -> None:
    ledger.ranks = [SeenQos("high", 10, preempts=("low",), grace_seconds=90), SeenQos("low", 5)]
    AccountsLook.objects.create(cluster=cluster)
    many = tuple(SeenUser(f"u{at:03}", 1, raw_usage=float(at)) for at in range(MOST_PEOPLE + 3))
    ledger.edit("cv", people=many, users=len(many))
    keep(cluster, ledger, now=NOW)
    with CaptureQueriesContext(connection) as again:
        keep(cluster, ledger, now=LATER)
    assert not [one for one in again if '"people" =' in one["sql"]]

    cv = Account.objects.get(name="cv")
    people = people_of(cv.people)
    assert (cv.users, len(people)) == (MOST_PEOPLE + 3, MOST_PEOPLE)
    assert [people[0], people[-1]] == [many[-1], many[3]]
    assert qos_of(AccountsLook.objects.get().qos) == tuple(ledger.ranks)
    ledger.edit("cv", people=many[:1], users=1)
    keep(cluster, ledger, now=LATER)
    assert people_of(Account.objects.get(name="cv").people) == many[:1]
