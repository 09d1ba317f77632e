"""Keep a cluster's own accounts beside the tenants they stand for: read, want, write, read back.

An account's shares come from its tenant's weight, its limit of GPUs from the tenant's ceilings, what
is noted there as promised from its guarantees. What the cluster has is taken as it is until one of them is changed here; what is changed there after
that is drift: it is shown, and never overwritten by itself.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from django.db import transaction
from django.db.models import Case, Q, QuerySet, When

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, Pool
from apps.backends.port import NO_LIMIT, BackendError, KeepsAccounts, SeenAccount
from apps.common.errors import Conflict, DomainError, Invalid
from apps.common.text import clean_text
from apps.quotas.account_tenants import nest, tenants_of
from apps.quotas.account_users import most_used, packed
from apps.quotas.models import Account, AccountsLook, AccountValue, Quota, What
from apps.quotas.services import set_quota
from apps.tenants.models import Tenant
from apps.tenants.services import set_weight

logger = logging.getLogger(__name__)

CLAIM = timedelta(minutes=10)
# How many accounts one pass changes: the next is a minute away, and other clusters wait as well.
MOST_WRITTEN = 20
MOST_SHARES = 1_000_000_000
KEEP = ("ours", "theirs")
ABOUT = (
    "parent", "tenant", "users", "raw_usage", "norm_shares", "effective_usage", "level",
    "fair_share", "seen_at", "gone_at",
)  # fmt: skip
VALUE = (
    "seen", "base", "is_wanted", "wanted", "wanted_at", "written_at", "met_at", "drifted_at",
    "refused",
)  # fmt: skip


def keep_accounts(cluster: Cluster, *, now: datetime) -> bool:
    """Read a cluster's accounts, and write what is wanted of them where it is driven.

    Returns whether this call did: a cluster without accounts, or one that somebody reads just now,
    is left alone. What fails stands on the cluster's look in words. ``now`` is wall time.
    """
    try:
        backend = backend_of(cluster)
    except Invalid as refusal:
        AccountsLook.objects.update_or_create(
            cluster=cluster, defaults={"tried_at": now, "trouble": refusal.message}
        )
        return False
    if "accounts" not in backend.capabilities().can:
        return False
    look, _ = AccountsLook.objects.get_or_create(cluster=cluster)
    free = Q(claimed_until__isnull=True) | Q(claimed_until__lt=now)
    mine = AccountsLook.objects.filter(free, pk=look.pk)
    if not mine.update(claimed_until=now + CLAIM, tried_at=now):
        return False
    ours = AccountsLook.objects.filter(pk=look.pk, claimed_until=now + CLAIM)
    try:
        keep(cluster, cast(KeepsAccounts, backend), now=now)
        ours.update(trouble="", read_at=now)
    except BackendError as error:
        ours.update(trouble=error.message)
        logger.warning("accounts of cluster %s: %s", cluster.name, error.message)
    except Exception:
        ours.update(trouble="Reading them failed by a mistake of ours; the worker's log has it.")
        raise
    finally:
        ours.update(claimed_until=None)
    return True


def keep(cluster: Cluster, backend: KeepsAccounts, *, now: datetime) -> None:
    """Do one pass: read, and where the cluster is driven write and read back.

    :raises BackendError: if the accounts cannot be read, or went away meanwhile.
    """
    seen = backend.accounts(now=now)
    nest(cluster, {one.name: one.parent for one in seen}, now=now)
    take_in(cluster, seen, now=now)
    told = packed(backend.qos(now=now))
    AccountsLook.objects.filter(cluster=cluster).update(qos=told)
    if write_wanted(cluster, backend, now=now):
        take_in(cluster, backend.accounts(now=now), now=now)
        for value in _waiting(cluster).filter(written_at=now):
            said = f"{cluster.name} took it, but does not have it."
            AccountValue.objects.filter(pk=value.pk, written_at=now).update(refused=said)


# What was seen


@dataclass
class _Ours:
    """What this side has to say of a cluster's accounts, read once."""

    cluster: Cluster
    tenants: dict[str, Tenant | None] = field(default_factory=dict)
    pools: list[Pool] = field(default_factory=list)
    quotas: dict[int, dict[int, Quota]] = field(default_factory=lambda: defaultdict(dict))

    def adopted(self, account: Account) -> bool:
        """Return whether its tenant was made for it: it follows the account until changed here."""
        tenant = account.tenant
        below = f"{self.cluster.name}/"
        return tenant is not None and tenant.name == account.name and tenant.path.startswith(below)

    def guarantee(self, tenant: Tenant, pool: int | None) -> int:
        """Return what a tenant is promised in a pool."""
        quota = self.quotas.get(tenant.pk, {}).get(pool or 0)
        return 0 if quota is None else quota.guarantee

    def ceiling(self, tenant: Tenant) -> int | None:
        """Return the most GPUs a tenant may use in all pools together; None: some has no ceiling."""
        quotas = self.quotas.get(tenant.pk, {})
        most = [quotas[pool.pk].ceiling if pool.pk in quotas else None for pool in self.pools]
        known = [one for one in most if one is not None]
        return sum(known) if known and len(known) == len(most) else None


def _ours(cluster: Cluster, names: Sequence[str]) -> _Ours:
    # The pools' rows are the lock of what is promised in them.
    pools = Pool.objects.select_for_update(no_key=True).filter(cluster=cluster)
    ours = _Ours(cluster, tenants_of(cluster, names), list(pools))
    ids = [tenant.pk for tenant in ours.tenants.values() if tenant is not None]
    for quota in Quota.objects.filter(pool__cluster=cluster, tenant__in=ids):
        ours.quotas[quota.tenant_id][quota.pool_id] = quota
    return ours


@transaction.atomic
def take_in(cluster: Cluster, seen: Sequence[SeenAccount], *, now: datetime) -> list[Account]:
    """Make the rows what was seen, follow it where nothing is wanted, and say what is wanted now.

    Returns the accounts there are, with their values.
    """
    rows = Account.objects.select_for_update(no_key=True).filter(cluster=cluster)
    known = {account.name: account for account in rows}
    ours = _ours(cluster, [one.name for one in seen])
    there, changed = [], []
    for one in seen:
        account = known.pop(one.name, None) or Account(cluster=cluster, name=one.name)
        tenant = ours.tenants.get(one.name)
        moved = account.pk is None or account.tenant_id != (tenant.pk if tenant else None)
        account.tenant = tenant
        _note(account, one, now=now)
        people = packed(most_used(one.people))
        if people != account.people:
            account.people = people
            changed.append(account)
        there.append((account, one, moved))
    Account.objects.bulk_create([one for one, _, _ in there if one.pk is None], batch_size=500)
    Account.objects.bulk_update([account for account, _, _ in there], ABOUT, batch_size=200)
    # They are long where users are many: what is as it was is not written again.
    Account.objects.bulk_update(changed, ["people"], batch_size=50)
    gone = [account.pk for account in known.values() if account.gone_at is None]
    Account.objects.filter(pk__in=gone).update(gone_at=now)
    values = _values([account for account, _, _ in there], ours)
    for account, one, moved in there:
        for value in values[account.pk]:
            value.seen = _seen(value, one)
            if moved:
                _forget(value)
            _follow(value, ours, first=moved, now=now)
    _want([account for account, _, _ in there], values, ours, now=now)
    every = [value for of_one in values.values() for value in of_one]
    for value in every:
        _compare(value, now=now)
    AccountValue.objects.bulk_update(every, VALUE, batch_size=200)
    return [account for account, _, _ in there]


def _note(account: Account, one: SeenAccount, *, now: datetime) -> None:
    account.parent = one.parent
    account.users = one.users
    account.raw_usage = one.raw_usage
    account.norm_shares = one.norm_shares
    account.effective_usage = one.effective_usage
    account.level = one.level if one.level is not None and math.isfinite(one.level) else None
    account.fair_share = one.fair_share
    account.seen_at, account.gone_at = now, None


def _seen(value: AccountValue, one: SeenAccount) -> int | None:
    """Return what a cluster has of a value; a guarantee of 0 is none."""
    if value.pool is not None:
        return one.guarantees.get(value.pool.name.lower()) or None
    return one.shares if value.what == What.SHARES else one.gpu_limit


def _values(accounts: Sequence[Account], ours: _Ours) -> dict[int, list[AccountValue]]:
    """Return the values of accounts, by account; those there are not are made.

    Each account has one of its shares and one of its limit; a tenant's also one for each pool, of
    its guarantee there.
    """
    of: dict[int, list[AccountValue]] = {account.pk: [] for account in accounts}
    by_id = {account.pk: account for account in accounts}
    pools = {pool.pk: pool for pool in ours.pools}
    known = set()
    for value in AccountValue.objects.select_for_update().filter(account__in=list(of)):
        value.account = by_id[value.account_id]
        value.pool = pools.get(value.pool_id or 0)
        of[value.account_id].append(value)
        known.add((value.account_id, value.what, value.pool_id))
    missing = []
    for account in accounts:
        of_tenant = [] if account.tenant is None else ours.pools
        asked: list[tuple[What, Pool | None]] = [(What.SHARES, None), (What.GPUS, None)]
        for what, pool in [*asked, *((What.GUARANTEE, pool) for pool in of_tenant)]:
            if (account.pk, what, pool.pk if pool else None) not in known:
                value = AccountValue(account=account, what=what, pool=pool)
                value.base = _source(value, ours)
                missing.append(value)
    for value in AccountValue.objects.bulk_create(missing, batch_size=200):
        of[value.account_id].append(value)
    return of


def _forget(value: AccountValue) -> None:
    """Want nothing: the account stands for another tenant now."""
    value.is_wanted, value.wanted, value.refused = False, None, ""
    value.wanted_at = value.written_at = value.met_at = value.drifted_at = None


def _source(value: AccountValue, ours: _Ours) -> float | None:
    """Return what of the tenant's a value comes from."""
    tenant = value.account.tenant
    if tenant is None:
        return None
    if value.what == What.GUARANTEE:
        return ours.guarantee(tenant, value.pool_id)
    return tenant.weight if value.what == What.SHARES else ours.ceiling(tenant)


def _follow(value: AccountValue, ours: _Ours, *, first: bool, now: datetime) -> None:
    """Take over what the cluster has for a tenant that was made for the account."""
    if first:
        value.base = _source(value, ours)
    tenant = value.account.tenant
    if tenant is None or value.is_wanted or not ours.adopted(value.account):
        return
    if value.what == What.GUARANTEE:  # which is a note of ours, and promises nothing by itself
        return
    source = _source(value, ours)
    if source != value.base or source == value.seen:
        return
    why = f"as {ours.cluster.name} has it"
    try:
        if value.what == What.SHARES and value.seen is not None:
            set_weight(tenant, float(value.seen), by=None, now=now, reason=why)
        elif value.what == What.GPUS and len(ours.pools) == 1:
            (pool,) = ours.pools
            quota = ours.quotas[tenant.pk].get(pool.pk) or Quota(tenant=tenant, pool=pool)
            ours.quotas[tenant.pk][pool.pk] = set_quota(
                tenant, pool, guarantee=quota.guarantee, ceiling=value.seen,
                weight=quota.weight, by=None, now=now, reason=why,
            )  # fmt: skip
    except DomainError as error:
        # What was promised here does not fit below the cluster's limit: both stay as they are.
        logger.info("%s is not taken over: %s", value, error.message)
    value.base = _source(value, ours)


# What is wanted


def _want(
    accounts: Sequence[Account],
    values: Mapping[int, Sequence[AccountValue]],
    ours: _Ours,
    *,
    now: datetime,
) -> None:
    """Want what follows from a weight, a ceiling or a guarantee that was changed here."""
    beside: dict[str, list[AccountValue]] = defaultdict(list)
    for account in accounts:
        if account.tenant_id is not None:
            shares = [value for value in values[account.pk] if value.what == What.SHARES]
            beside[account.parent].extend(shares)
    for account in accounts:
        for value in values[account.pk]:
            source = _source(value, ours)
            if account.tenant_id is None or source == value.base:
                continue
            wanted = None if source is None else int(source)
            if value.what == What.GUARANTEE:
                wanted = wanted or None
            if value.what == What.SHARES:
                wanted = shares_for(value, float(source or 0), beside[account.parent])
            _forget(value)
            value.is_wanted, value.wanted, value.wanted_at = True, wanted, now
            value.base = source


def shares_for(value: AccountValue, weight: float, beside: Iterable[AccountValue]) -> int:
    """Return the shares of an account that make a weight count as much there as here.

    They are to the shares of its sibling accounts as its weight is to their tenants' (to its own
    shares as to its own weight before, where no sibling is a tenant's), rounded to a whole number,
    and at least 1 unless the weight is 0.
    """
    if weight <= 0:
        return 0
    others = [(_current(one), one.base) for one in beside if one is not value]
    for pairs in (others, [(_current(value), value.base)]):
        known = [(s, w) for s, w in pairs if s is not None and w is not None]
        shares, weights = sum(s for s, _ in known), sum(w for _, w in known)
        if shares > 0 and weights > 0:
            weight = weight * shares / weights
            break
    return max(1, min(math.floor(weight + 0.5), MOST_SHARES))


def _current(value: AccountValue) -> int | None:
    return value.wanted if value.is_wanted else value.seen


def values_wanted(cluster: Cluster, tenant: Tenant, *, now: datetime) -> list[AccountValue]:
    """Return the values of a tenant's accounts that the next pass would begin to want; none is saved.

    Those of them that are wanted from now on have ``now`` as ``wanted_at``.
    """
    accounts = list(Account.objects.filter(cluster=cluster, gone_at__isnull=True))
    ours = _ours(cluster, [account.name for account in accounts])
    for account in accounts:
        # One that stands for another tenant since it was read waits for the pass that sees it.
        found = ours.tenants.get(account.name)
        account.tenant = found if found and found.pk == account.tenant_id else None
    values = _values(accounts, ours)
    _want(accounts, values, ours, now=now)
    mine = (account for account in accounts if account.tenant_id == tenant.pk)
    return [one for account in mine for one in values[account.pk] if one.wanted_at == now]


@transaction.atomic
def want_now(tenant: Tenant, *, now: datetime) -> None:
    """Write down at once what the next pass would want of a tenant's accounts; safe to leave out."""
    clusters = Cluster.objects.filter(archived_at__isnull=True, accounts__tenant=tenant)
    for cluster in clusters.distinct():
        AccountValue.objects.bulk_update(values_wanted(cluster, tenant, now=now), VALUE)


def _compare(value: AccountValue, *, now: datetime) -> None:
    """Write down since when a value is as wanted, or is not any more."""
    if not value.is_wanted:
        return
    if value.seen == value.wanted:
        value.met_at = value.met_at or now
        value.drifted_at, value.refused = None, ""
    elif value.met_at is not None:
        value.drifted_at = value.drifted_at or now


# What is written


def _waiting(cluster: Cluster) -> QuerySet[AccountValue]:
    """Return the values that are wanted and were never as wanted yet, those refused before last."""
    wanted = AccountValue.objects.filter(
        account__cluster=cluster, account__gone_at__isnull=True, is_wanted=True, met_at__isnull=True
    )
    refused = Case(When(refused="", then=0), default=1)
    return wanted.select_related("account", "pool").order_by(refused, "wanted_at", "account_id")


def write_wanted(cluster: Cluster, backend: KeepsAccounts, *, now: datetime) -> bool:
    """Write what waits to be written, where the cluster is driven; return whether anything was.

    What drifted is not among it: somebody there had a reason, and somebody here decides.

    :raises BackendError: if the accounts went away.
    """
    waiting: dict[Account, list[AccountValue]] = defaultdict(list)
    for value in _waiting(cluster):
        waiting[value.account].append(value)
    done = False
    for account, values in list(waiting.items())[:MOST_WRITTEN]:
        cluster.refresh_from_db(fields=["grade"])  # which may be lowered at any time
        if not cluster.driven:
            break
        try:
            backend.set_account(account.name, **_asked(values))
        except BackendError as error:
            _told(values, refused=error.message)
            if error.retry:
                raise
        else:
            done = True
            _told(values, refused="", written_at=now)
    return done


def _asked(values: Iterable[AccountValue]) -> dict[str, Any]:
    """Return what is asked of a cluster to make an account have some values."""
    asked: dict[str, Any] = {}
    for value in values:
        if value.pool is not None:
            asked.setdefault("guarantees", {})[value.pool.name] = value.wanted or 0
        elif value.what == What.SHARES:
            asked["shares"] = value.wanted
        else:
            asked["gpu_limit"] = NO_LIMIT if value.wanted is None else value.wanted
    return asked


def _told(values: Iterable[AccountValue], **columns: Any) -> None:
    """Write down what came of writing values, unless something else is wanted by now."""
    for value in values:
        rows = AccountValue.objects.filter(pk=value.pk, wanted_at=value.wanted_at)
        rows.update(**columns)


@transaction.atomic
def settle_account(
    cluster: Cluster,
    name: str,
    *,
    keep: str,
    by: User | None,
    now: datetime,
    reason: str,
    token_name: str = "",
) -> Account:
    """Decide on an account that drifted or was refused: write ``ours`` again, or take ``theirs``.

    :raises Account.DoesNotExist: if the cluster has no such account.
    :raises Invalid: naming the field; a person must give a reason.
    :raises Conflict: if both sides agree.
    """
    reason = clean_text(reason, field="reason", max_length=300, blank=by is None)
    if keep not in KEEP:
        raise Invalid(f"keep must be one of {', '.join(KEEP)}.", field="keep")
    account = Account.objects.select_for_update(no_key=True).get(
        cluster=cluster, name=name, gone_at__isnull=True
    )
    ours = _ours(cluster, [name])
    account.tenant = ours.tenants.get(name)
    apart = [
        value
        for value in _values([account], ours)[account.pk]
        if value.is_wanted and value.seen != value.wanted
    ]
    if not apart:
        raise Conflict(f"{name} is on {cluster.name} as it is here.", code="in_step")
    changes: dict[str, tuple[Any, Any]] = {}
    for value in apart:
        field = value.what if value.pool is None else f"{value.what} {value.pool.name}"
        if keep == "ours":
            changes[field] = (value.seen, value.wanted)
            value.wanted_at, value.refused = now, ""
            value.written_at = value.met_at = value.drifted_at = None
        else:
            changes[field] = (value.wanted, value.seen)
            _forget(value)
            value.base = _source(value, ours)
    AccountValue.objects.bulk_update(apart, VALUE)
    audit.record(
        f"account kept {keep}", account, by=by, now=now, changes=changes, reason=reason,
        token_name=token_name,
    )  # fmt: skip
    return account
