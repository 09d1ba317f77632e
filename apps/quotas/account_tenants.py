"""Whose each of a cluster's own accounts is, and where the tenants that are made for them stand.

An account is the tenant's that the cluster's options name, else that of a tenant of its own below one
that is called after the cluster; there the tree is the cluster's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime

from django.db import transaction

from apps.backends.models import Cluster
from apps.common.errors import DomainError
from apps.quotas.models import Account
from apps.tenants.models import Tenant
from apps.tenants.services import PATH_LENGTH, create_tenant, move_tenant

NOBODY = "no account"


def mapped_of(cluster: Cluster) -> dict[str, list[str]]:
    """Return the paths of the tenants that the options name for an account, by its name."""
    mapped: dict[str, list[str]] = defaultdict(list)
    for path, account in (cluster.options.get("accounts") or {}).items():
        mapped[str(account).lower()].append(path)
    return mapped


def paths_of(cluster: Cluster, names: Iterable[str]) -> dict[str, str]:
    """Return the path of the tenant made, or to be made, for each account the options do not name.

    One there is already keeps its place, wherever below the cluster's it stands.
    """
    wanted = {name: name or NOBODY for name in names}
    below = Tenant.objects.filter(
        path__startswith=f"{cluster.name}/", name__in=set(wanted.values()), archived_at__isnull=True
    )
    known: dict[str, str] = {}
    for name, path in below.order_by("path").values_list("name", "path"):
        if len(path) < len(known.get(name, path + "/")):
            known[name] = path
    missing = [name for name, called in wanted.items() if called not in known]
    parents = _parents(cluster) if missing else {}
    mapped = mapped_of(cluster).keys()
    return {
        name: known.get(called) or _place(cluster, called, parents, mapped)
        for name, called in wanted.items()
    }


def _parents(cluster: Cluster) -> dict[str, str]:
    rows = Account.objects.filter(cluster=cluster, gone_at__isnull=True)
    return dict(rows.values_list("name", "parent"))


def _place(cluster: Cluster, name: str, parents: Mapping[str, str], mapped: Iterable[str]) -> str:
    """Return the path that follows the accounts above an account, up to one that is a tenant's.

    The one at the top, which is above all, is the cluster's own tenant.
    """
    chain = [name]
    above = parents.get(name, "")
    while parents.get(above) and above not in chain and above.lower() not in mapped:
        chain.append(above)
        above = parents.get(above, "")
    path = "/".join([cluster.name, *reversed(chain)])
    return path if len(path) <= PATH_LENGTH else f"{cluster.name}/{name}"


def tenants_of(cluster: Cluster, names: Iterable[str]) -> dict[str, Tenant | None]:
    """Return whose each account is: by the cluster's options, else the tenant made for its work.

    None: nobody's yet, or more than one tenant's, so that no weight of one is its shares.
    """
    names = list(names)
    mapped = mapped_of(cluster)
    made = paths_of(cluster, [name for name in names if name.lower() not in mapped])
    paths: dict[str, str] = {}
    for name in names:
        said = mapped.get(name.lower(), [made.get(name, "")])
        if len(said) == 1:
            paths[name] = said[0]
    # Nobody changes a weight between our reading it and following the cluster's.
    rows = Tenant.objects.select_for_update(no_key=True).filter(
        path__in=set(paths.values()), archived_at__isnull=True
    )
    found = {tenant.path: tenant for tenant in rows}
    return {name: found.get(path) for name, path in paths.items()}


def make_path(path: str, *, reason: str, now: datetime) -> Tenant:
    """Return the tenant of a path; what there is not of it is made."""
    parent: Tenant | None = None
    at = ""
    for name in path.split("/"):
        at = f"{at}/{name}" if at else name
        known = Tenant.objects.filter(path=at).first()
        parent = known or create_tenant(name, parent=parent, now=now, reason=reason)
    assert parent is not None  # noqa: S101  a path has a name
    return parent


@transaction.atomic
def nest(cluster: Cluster, parents: Mapping[str, str], *, now: datetime) -> None:
    """Hang tenants that were made before the accounts were read where the cluster has them.

    Only those right below the cluster's own: where somebody moved one, it stays.
    """
    mapped = mapped_of(cluster).keys()
    flat = {f"{cluster.name}/{name}": name for name in parents if name.lower() not in mapped}
    rows = Tenant.objects.filter(path__in=flat, archived_at__isnull=True)
    places = {row: _place(cluster, flat[row.path], parents, mapped) for row in rows}
    for tenant, place in sorted(places.items(), key=lambda one: one[1].count("/")):
        above = place.rpartition("/")[0]
        if place == tenant.path or Tenant.objects.filter(path=place).exists():
            continue
        # One whose name somebody gave to a tenant there stays where it is.
        with suppress(DomainError), transaction.atomic():
            parent = make_path(above, reason=f"an account on {cluster.name}", now=now)
            tenant.refresh_from_db()
            reason = f"so its account lies on {cluster.name}"
            move_tenant(tenant, parent, by=None, now=now, reason=reason)
