"""Decayed usage: kept per tenant and pool as intervals open and close, and made anew from them.

What is kept follows ``U(t + d) = U(t)·2^(-d/H) + increment`` exactly: an account holds its value at
an instant and the GPUs (times usage factor) that run from there on, so no tick has to add anything
and the answer does not depend on when ticks ran. A change may be about an instant before the
account's: what it added or took since then is a closed form too. Holds are never charged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Q

from apps.backends.models import Cluster
from apps.common.time import MICROSECOND
from apps.engine.decay import charge, decay
from apps.ledger import sql
from apps.ledger.models import Interval, IntervalKind, UsageAccount
from apps.queues.models import DAY

TOLERANCE_GPU_HOURS = 1e-6


@dataclass(frozen=True, slots=True)
class Change:
    """A tenant runs so many GPUs (times usage factor) more, or fewer, from an instant on."""

    tenant_id: int
    pool_id: int
    gpus: float
    at_us: int


@dataclass(frozen=True, slots=True)
class Span:
    """What a tenant ran from one instant to another, in GPUs times usage factor."""

    tenant_id: int
    pool_id: int
    gpus: float
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class Drift:
    """What an account said of an instant, and what intervals say, in GPU-hours."""

    tenant_id: int
    pool_id: int
    kept: float
    rebuilt: float

    @property
    def gpu_hours(self) -> float:
        """Return how far the kept figure is off; 0 where it is within the tolerance."""
        off = self.kept - self.rebuilt
        return off if abs(off) > TOLERANCE_GPU_HOURS else 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """How usage fades on a cluster; None: no decay, no window."""

    half_life_seconds: int | None
    window_seconds: int | None

    @property
    def half_life_us(self) -> int | None:
        """Return the half-life in microseconds."""
        return None if self.half_life_seconds is None else self.half_life_seconds * MICROSECOND


def rule_of(cluster: Cluster) -> Rule:
    """Return the rule of a cluster's policy, or that of a new policy where it has none."""
    rows = sql.read(sql.RULE, cluster.pk)
    rule = Rule(*rows[0]) if rows else Rule(7 * DAY, None)
    if rule.half_life_seconds == 0:
        raise ValueError("A half-life must be longer than 0; None means no decay.")
    return rule


def decayed_usage(cluster: Cluster, *, at_us: int) -> dict[int, float]:
    """Return each tenant's own decayed GPU-hours, weighted, running and brought along included.

    Keys are tenant ids; a tenant's children are not in its figure. Other clusters count where the
    installation says so and neither clock is virtual.
    """
    rule = rule_of(cluster)
    cut = _cut(rule, at_us)
    usage: defaultdict[int, float] = defaultdict(float)
    for one in _scope(cluster):
        weights = dict(sql.read(sql.WEIGHTS, one.pk))
        for (tenant_id, pool_id), gpu_hours in _kept(one, rule, at_us).items():
            usage[tenant_id] += gpu_hours * weights[pool_id]
        for tenant_id, since_us, gpu_hours in sql.read(sql.BALANCES, one.pk, at_us):
            if since_us >= cut:
                usage[tenant_id] += decay(gpu_hours, at_us - since_us, rule.half_life_us)
    return dict(usage)


def book(cluster_id: int, changes: Sequence[Change]) -> None:
    """Put changes of what runs into the accounts; in the caller's transaction.

    Accounts go on with the half-life they were kept with, until ``follow_policy``.
    """
    if not changes:
        return
    accounts = _accounts(cluster_id)
    half_life = (
        next(iter(accounts.values())).half_life_seconds
        if accounts
        else rule_of(Cluster(pk=cluster_id)).half_life_seconds
    )
    touched: dict[tuple[int, int], UsageAccount] = {}
    for change in sorted(changes, key=lambda one: one.at_us):
        key = change.tenant_id, change.pool_id
        if key not in accounts:
            accounts[key] = UsageAccount(
                cluster_id=cluster_id,
                tenant_id=change.tenant_id,
                pool_id=change.pool_id,
                as_of_us=change.at_us,
                half_life_seconds=half_life,
            )
        touched[key] = accounts[key]
        _apply(touched[key], change)
    UsageAccount.objects.bulk_create(one for one in touched.values() if one.pk is None)
    sql.write_many(
        sql.SET_ACCOUNT,
        [
            (one.gpu_hours, one.running, one.as_of_us, one.pk)
            for one in touched.values()
            if one.pk is not None
        ],
    )


def book_past(cluster_id: int, spans: Sequence[Span]) -> None:
    """Put what ran before now, and is over, into the accounts; in the caller's transaction.

    In one closed form each: the difference of two large numbers would lose the last digits.
    """
    if not spans:
        return
    # Nothing changes but where a tenant is new, or ends later than was ever booked.
    latest: dict[tuple[int, int], int] = {}
    for span in spans:
        key = span.tenant_id, span.pool_id
        latest[key] = max(span.end_us, latest.get(key, span.end_us))
    book(cluster_id, [Change(*key, 0.0, end_us) for key, end_us in latest.items()])
    accounts = _accounts(cluster_id)
    for span in spans:
        account = accounts[span.tenant_id, span.pool_id]
        account.gpu_hours += charge(
            span.gpus, span.start_us, span.end_us, account.as_of_us, _half_life_us(account)
        )
    sql.write_many(
        sql.SET_ACCOUNT,
        [
            (one.gpu_hours, one.running, one.as_of_us, one.pk)
            for one in (accounts[key] for key in latest)
        ],
    )


def follow_policy(cluster: Cluster) -> None:
    """Make the accounts anew if the policy has another half-life than they were kept with.

    Until then ``decayed_usage`` answers from intervals: right, and slower.
    """
    half_life = rule_of(cluster).half_life_seconds
    if any(one.half_life_seconds != half_life for one in _accounts(cluster.pk).values()):
        rebuild_usage(cluster)


@transaction.atomic
def rebuild_usage(cluster: Cluster) -> list[Drift]:
    """Make a cluster's accounts anew from its intervals, and return how far each was off."""
    half_life = rule_of(cluster).half_life_seconds
    accounts = {
        (account.tenant_id, account.pool_id): account
        for account in UsageAccount.objects.select_for_update().filter(cluster=cluster)
    }
    at_us = max((account.as_of_us for account in accounts.values()), default=0)
    at_us = max(at_us, _last_change(cluster))
    rebuilt = _from_intervals(cluster, Rule(half_life, None), at_us)
    running = _running(cluster)
    drifts = []
    for key in sorted(rebuilt.keys() | accounts.keys()):
        account = accounts.get(key)
        fresh = rebuilt.get(key, 0.0)
        # One kept with another half-life was not wrong: it is made anew, without drift.
        known = account is not None and account.half_life_seconds == half_life
        kept = _value(account, at_us) if account is not None and known else fresh
        if account is None and abs(fresh) > TOLERANCE_GPU_HOURS:
            kept = 0.0
        drifts.append(Drift(*key, kept=kept, rebuilt=fresh))
    UsageAccount.objects.filter(cluster=cluster).delete()
    UsageAccount.objects.bulk_create(
        UsageAccount(
            cluster=cluster,
            tenant_id=drift.tenant_id,
            pool_id=drift.pool_id,
            gpu_hours=drift.rebuilt,
            running=running.get((drift.tenant_id, drift.pool_id), 0.0),
            as_of_us=at_us,
            half_life_seconds=half_life,
        )
        for drift in drifts
    )
    return drifts


def _apply(account: UsageAccount, change: Change) -> None:
    half_life = _half_life_us(account)
    if change.at_us > account.as_of_us:
        account.gpu_hours = _value(account, change.at_us)
        account.as_of_us = change.at_us
    else:
        account.gpu_hours += charge(
            change.gpus, change.at_us, account.as_of_us, account.as_of_us, half_life
        )
    account.running += change.gpus


def _value(account: UsageAccount, at_us: int) -> float:
    """Return what an account says of an instant at or after its own."""
    half_life = _half_life_us(account)
    kept = decay(account.gpu_hours, at_us - account.as_of_us, half_life)
    return kept + charge(account.running, account.as_of_us, at_us, at_us, half_life)


def _half_life_us(account: UsageAccount) -> int | None:
    seconds = account.half_life_seconds
    return None if seconds is None else seconds * MICROSECOND


def _scope(cluster: Cluster) -> list[Cluster]:
    """Return the clusters whose usage counts on this one; a virtual clock joins no other."""
    if settings.USAGE_SCOPE != "all" or cluster.clock_now is not None:
        return [cluster]
    return list(Cluster.objects.filter(Q(clock_now__isnull=True) | Q(pk=cluster.pk)))


def _accounts(cluster_id: int) -> dict[tuple[int, int], UsageAccount]:
    """Return a cluster's accounts by (tenant, pool)."""
    return {
        (tenant_id, pool_id): UsageAccount(
            pk=pk,
            cluster_id=cluster_id,
            tenant_id=tenant_id,
            pool_id=pool_id,
            gpu_hours=gpu_hours,
            running=running,
            as_of_us=as_of_us,
            half_life_seconds=half_life,
        )
        for pk, tenant_id, pool_id, gpu_hours, running, as_of_us, half_life in sql.read(
            sql.ACCOUNTS, cluster_id
        )
    }


def _kept(cluster: Cluster, rule: Rule, at_us: int) -> dict[tuple[int, int], float]:
    """Return unweighted decayed GPU-hours by (tenant, pool): as kept, else from intervals.

    From intervals where what is kept cannot say: a window, another half-life, an earlier instant.
    """
    accounts = {} if rule.window_seconds is not None else _accounts(cluster.pk)
    if rule.window_seconds is not None or any(
        one.half_life_seconds != rule.half_life_seconds or one.as_of_us > at_us
        for one in accounts.values()
    ):
        return _from_intervals(cluster, rule, at_us)
    return {key: _value(account, at_us) for key, account in accounts.items()}


def _from_intervals(cluster: Cluster, rule: Rule, at_us: int) -> dict[tuple[int, int], float]:
    cut = _cut(rule, at_us)
    usage: defaultdict[tuple[int, int], float] = defaultdict(float)
    for tenant_id, pool_id, gpus, factor, start_us, end_us in (
        Interval.objects.filter(cluster=cluster, kind=IntervalKind.MEMBER, start_us__lt=at_us)
        .filter(Q(end_us__gt=cut) | Q(end_us__isnull=True))
        .order_by()
        .values_list("tenant_id", "pool_id", "gpus", "usage_factor", "start_us", "end_us")
        .iterator(chunk_size=5000)
    ):
        end = at_us if end_us is None else end_us
        usage[tenant_id or 0, pool_id] += charge(
            gpus * factor, max(start_us, cut), end, at_us, rule.half_life_us
        )
    return dict(usage)


def _cut(rule: Rule, at_us: int) -> int:
    """Return the instant before which usage is cut off; 0: none."""
    return 0 if rule.window_seconds is None else at_us - rule.window_seconds * MICROSECOND


def _running(cluster: Cluster) -> dict[tuple[int, int], float]:
    running: defaultdict[tuple[int, int], float] = defaultdict(float)
    for tenant_id, pool_id, gpus, factor in Interval.objects.filter(
        cluster=cluster, kind=IntervalKind.MEMBER, end_us__isnull=True
    ).values_list("tenant_id", "pool_id", "gpus", "usage_factor"):
        running[tenant_id or 0, pool_id] += gpus * factor
    return dict(running)


def _last_change(cluster: Cluster) -> int:
    """Return the newest instant at which a member started or ended; 0: none did."""
    newest = Interval.objects.filter(cluster=cluster, kind=IntervalKind.MEMBER).aggregate(
        start=Max("start_us"), end=Max("end_us")
    )
    return max(newest["start"] or 0, newest["end"] or 0)
