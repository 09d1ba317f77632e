"""What a change of a weight and a quota would come to, before it is made."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from apps.backends.models import Pool
from apps.quotas.accounts import values_wanted
from apps.quotas.models import AccountValue
from apps.quotas.selectors import Terms
from apps.quotas.services import change_terms
from apps.tenants.models import Tenant


def effects_of(tenant: Tenant, pool: Pool, terms: Terms, *, now: datetime) -> list[AccountValue]:
    """Return what would be written to the cluster's accounts; the change is made and taken back.

    :raises DomainError: as ``change_terms``.
    """
    with transaction.atomic():
        change_terms(tenant, pool, terms, was=None, by=None, now=now, reason="")
        found = values_wanted(pool.cluster, tenant, now=now)
        transaction.set_rollback(True)
    return found
