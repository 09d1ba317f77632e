"""Users' own tokens for clusters that run each job as its user: entered, sealed, shown nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import cast

from django.db import transaction

from apps.accounts.models import User
from apps.audit import services as audit
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, UserToken
from apps.backends.port import TakesTokens
from apps.common.errors import DomainError, Invalid
from apps.common.sealing import seal

LONGEST = 4_096


@dataclass(frozen=True, slots=True)
class Entered:
    """A cluster that asks a user for a token, and the one they have entered; None: none."""

    cluster: Cluster
    token: UserToken | None


def asks_for_tokens(cluster: Cluster) -> bool:
    """Return whether jobs go to a cluster by their users' own tokens; nothing is asked of it."""
    try:
        return "user_tokens" in backend_of(cluster).capabilities().can
    except DomainError:
        return False


def entered_by(user: User) -> list[Entered]:
    """Return the clusters that ask a user for a token; two queries."""
    known = {row.cluster_id: row for row in UserToken.objects.filter(user=user)}
    clusters = Cluster.objects.filter(archived_at__isnull=True).order_by("name")
    return [
        Entered(cluster, known.get(cluster.pk)) for cluster in clusters if asks_for_tokens(cluster)
    ]


@transaction.atomic
def enter_token(cluster: Cluster, user: User, token: str, *, now: datetime) -> UserToken:
    """Keep a user's token for a cluster, in place of the one before; ``now`` is wall time.

    :raises Invalid: naming the field; the token is never repeated.
    """
    if not asks_for_tokens(cluster):
        raise Invalid(f"{cluster} asks nobody for a token.", field="cluster")
    text = token.strip().removeprefix("SLURM_JWT=")
    if len(text) > LONGEST:
        raise Invalid(f"The token must be at most {LONGEST} characters.", field="token")
    backend = cast(TakesTokens, backend_of(cluster))
    until = backend.check_token(user.get_username(), text, now=now)
    row, _ = UserToken.objects.update_or_create(
        cluster=cluster, user=user,
        defaults={"sealed": seal(text), "until": until, "entered_at": now},
    )  # fmt: skip
    audit.record("token entered", cluster, by=user, now=now)
    return row


@transaction.atomic
def forget_token(cluster: Cluster, user: User, *, now: datetime) -> bool:
    """Forget a user's token for a cluster; return whether there was one."""
    gone, _ = UserToken.objects.filter(cluster=cluster, user=user).delete()
    if gone:
        audit.record("token forgotten", cluster, by=user, now=now)
    return bool(gone)


def sealed_tokens(cluster: Cluster, users: set[int]) -> dict[int, str]:
    """Return the sealed tokens of users for a cluster, by the user's id; no query if it asks for none."""
    if not users or not asks_for_tokens(cluster):
        return {}
    rows = UserToken.objects.filter(cluster=cluster, user__in=users)
    return dict(rows.values_list("user_id", "sealed"))
