"""Change a promise, and refuse one that could not be kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.models import Pool
from apps.common.errors import Conflict, Invalid
from apps.common.text import clean_text
from apps.quotas.models import Quota
from apps.quotas.selectors import Promises, Terms, pool_gpus, promises_in, terms_of
from apps.tenants.models import Tenant
from apps.tenants.services import check_weight, set_weight

MOST = 2_147_483_647


class QuotaExceeded(Invalid):
    """A promise that the tenants above, or the pool's GPUs, cannot keep."""

    code = "quota_exceeded"


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} must be a whole number of GPUs.", field=name)
    if not 0 <= value <= MOST:
        raise Invalid(f"{name} must be 0 to {MOST:,}, not {value:,}.", field=name)
    return value


def check_promises(promises: Promises, tenant: Tenant, pool: Pool, gpus: int | None) -> None:
    """Refuse promises that cannot all be kept, at the tenant and at each one above it.

    ``gpus`` are the pool's; None: not known yet.

    :raises QuotaExceeded: naming who promised what.
    """
    here: Tenant | None = tenant
    while here is not None:
        own, below = promises.guarantee.get(here.pk, 0), promises.below(here.pk)
        if own and below > own:
            raise QuotaExceeded(
                f"Guarantees of {here.name}'s children would be {below}, above {here.name}'s own"
                f" {own}. Lower one, or raise {here.name} first.",
                field="guarantee",
            )
        ceiling = promises.ceiling.get(here.pk)
        promised = own or below
        if ceiling is not None and promised > ceiling:
            raise QuotaExceeded(
                f"{here.name} would be promised {promised} on {pool.name}, above its ceiling of"
                f" {ceiling}.",
                field="ceiling" if here.pk == tenant.pk else "guarantee",
            )
        here = None if here.parent_id is None else promises.tenants.get(here.parent_id)
    total = promises.below(None)
    if gpus is not None and total > gpus:
        raise QuotaExceeded(
            f"Guarantees on {pool.name} would be {total}, above its {gpus} GPUs. Lower one by"
            f" {total - gpus}.",
            field="guarantee",
        )


@transaction.atomic
def set_quota(
    tenant: Tenant,
    pool: Pool,
    *,
    guarantee: int,
    ceiling: int | None,
    weight: float | None,
    by: User | None,
    now: datetime,
    reason: str,
    token_name: str = "",
) -> Quota:
    """Change what a tenant is promised in a pool; ``weight`` None: the tenant's own.

    :raises QuotaExceeded: if the tree or the pool cannot keep all promises.
    :raises Invalid: naming the field; a person must give a reason.
    """
    reason = clean_text(reason, field="reason", max_length=300, blank=by is None)
    guarantee = _whole("guarantee", guarantee)
    if ceiling is not None:
        ceiling = _whole("ceiling", ceiling)
        if guarantee > ceiling:
            raise QuotaExceeded(
                f"A guarantee of {guarantee} is above the ceiling of {ceiling}.", field="guarantee"
            )
    if weight is not None:
        weight = check_weight(weight)
    if tenant.archived_at is not None:
        raise Invalid(f"{tenant} is archived.", field="tenant")
    # The pool's row is the lock: two promises that fit one by one may not fit together.
    Pool.objects.select_for_update().get(pk=pool.pk)
    quota = Quota.objects.filter(tenant=tenant, pool=pool).first() or Quota(
        tenant=tenant, pool=pool
    )
    promises = promises_in(pool)
    ceilings = {pk: most for pk, most in promises.ceiling.items() if pk != tenant.pk}
    if ceiling is not None:
        ceilings[tenant.pk] = ceiling
    wanted = replace(
        promises, guarantee={**promises.guarantee, tenant.pk: guarantee}, ceiling=ceilings
    )
    check_promises(wanted, tenant, pool, pool_gpus(pool) or None)
    before = {name: getattr(quota, name) for name in ("guarantee", "ceiling", "weight")}
    quota.guarantee, quota.ceiling, quota.weight = guarantee, ceiling, weight
    quota.save()
    after = {"guarantee": guarantee, "ceiling": ceiling, "weight": weight}
    audit.record(
        "quota changed",
        quota,
        by=by,
        now=now,
        changes=audit.differences(before, after),
        reason=reason,
        token_name=token_name,
    )
    return quota


@transaction.atomic
def change_terms(
    tenant: Tenant,
    pool: Pool,
    terms: Terms,
    *,
    was: Terms | None,
    by: User | None,
    now: datetime,
    reason: str,
) -> Terms:
    """Change a tenant's weight and its quota in a pool together, and return what they were.

    What stays as it is is not touched. ``was``: what whoever asks has seen; None: they did not look.

    :raises Conflict: if there is nothing to change, or it is not as it was seen any more.
    :raises Invalid: as ``set_weight`` and ``set_quota``; the quota's weight is ``quota_weight``.
    """
    # Nobody changes one of them between our look and our change; the tenant first, as elsewhere.
    tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    pool = Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
    before = terms_of(tenant, pool)
    if was is not None and was != before:
        raise Conflict(
            "Somebody changed it meanwhile. Look at what it is now, then save what you want.",
            code="changed",
        )
    if terms == before:
        raise Conflict("Nothing is changed by this: all is as it was.", code="unchanged")
    if terms.weight != before.weight:
        set_weight(tenant, terms.weight, by=by, now=now, reason=reason)
    if replace(terms, weight=before.weight) == before:
        return before
    try:
        set_quota(
            tenant, pool, guarantee=terms.guarantee, ceiling=terms.ceiling,
            weight=terms.quota_weight, by=by, now=now, reason=reason,
        )  # fmt: skip
    except Invalid as error:
        if error.field != "weight":
            raise
        raise Invalid(error.message, field="quota_weight") from None
    return before
