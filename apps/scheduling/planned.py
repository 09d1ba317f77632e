"""Policies that a made history tries in turn: each is set when the virtual clock reaches its instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.accounts.models import User
from apps.backends.models import Cluster
from apps.queues.services import set_policy
from apps.scheduling.frame import Frames
from apps.scheduling.leases import Lease, fenced

PLANNED = "policies"
"""Where they stand among the options of a simulated cluster, until they are set."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Columns of a cluster's policy that ``by``, somebody's name, will set at an instant."""

    at: datetime
    reason: str
    columns: Mapping[str, Any]
    by: str = "admin"


def plan_policies(cluster: Cluster, changes: Sequence[PolicyChange]) -> None:
    """Have the tick set these when the cluster's clock reaches them; of one instant the last."""
    rows = {
        change.at: {
            "at": change.at.isoformat(),
            "by": change.by,
            "reason": change.reason,
            "columns": dict(change.columns),
        }
        for change in sorted(changes, key=lambda change: change.at)
    }
    cluster.options = {**cluster.options, PLANNED: list(rows.values())}
    cluster.save(update_fields=["options"])


def set_due(cluster: Cluster, lease: Lease, frames: Frames, *, now: datetime) -> None:
    """Set the policies whose instant has come, each as a change of its own; safe to repeat."""
    planned = cluster.options.get(PLANNED)
    if not planned or datetime.fromisoformat(planned[0]["at"]) > now:
        return
    with fenced(lease):
        # The options as they are now: the demo may have made more submissions meanwhile.
        options = Cluster.objects.values_list("options", flat=True).get(pk=cluster.pk)
        left = list(options.get(PLANNED, ()))
        while left and datetime.fromisoformat(left[0]["at"]) <= now:
            due = left.pop(0)
            by = User.objects.filter(username=due["by"]).first()
            set_policy(cluster, by=by, now=now, reason=due["reason"], **due["columns"])
        options = {**options, PLANNED: left}
        Cluster.objects.filter(pk=cluster.pk).update(options=options)
    cluster.options = options
    frames.forget()
