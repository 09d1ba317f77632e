"""Make decayed usage anew from intervals, and say how far what was kept had drifted."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.backends.models import Cluster
from apps.ledger.usage import Drift, rebuild_usage
from apps.tenants.models import Tenant


class Command(BaseCommand):
    """Recompute all usage accounts; a drift is reported per tenant, and mended."""

    help = "Recompute decayed usage from intervals, report drift and mend it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take one cluster, or all."""
        parser.add_argument("--cluster", help="its name; without it all clusters")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *_: Any, **options: Any) -> None:
        """Rebuild and report."""
        clusters = Cluster.objects.all()
        if options["cluster"]:
            clusters = clusters.filter(name=options["cluster"])
            if not clusters:
                raise CommandError(f"There is no cluster called {options['cluster']}.")
        found = [(cluster, rebuild_usage(cluster)) for cluster in clusters]
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(found)))
        else:
            for cluster, drifts in found:
                self._say(cluster, drifts)

    def _say(self, cluster: Cluster, drifts: list[Drift]) -> None:
        off = [drift for drift in drifts if drift.gpu_hours]
        count = f"{len(drifts)} account{'' if len(drifts) == 1 else 's'}"
        if not off:
            self.stdout.write(f"{cluster.name}: {count}, no drift")
            return
        self.stdout.write(f"{cluster.name}: {count}, {len(off)} had drifted and were mended")
        paths = _paths(off)
        for drift in off:
            self.stdout.write(
                f"  {paths[drift.tenant_id]}: kept {drift.kept:.6f}, "
                f"by intervals {drift.rebuilt:.6f} GPUh"
            )


def _paths(drifts: list[Drift]) -> dict[int, str]:
    ids = {drift.tenant_id for drift in drifts}
    return dict(Tenant.objects.filter(pk__in=ids).values_list("pk", "path"))


def _as_json(found: list[tuple[Cluster, list[Drift]]]) -> dict[str, Any]:
    clusters = []
    for cluster, drifts in found:
        paths = _paths(drifts)
        by_tenant: dict[str, dict[str, Any]] = {}
        for drift in drifts:
            path = paths[drift.tenant_id]
            line = by_tenant.setdefault(
                path,
                {"tenant": path, "kept_gpu_hours": 0.0, "gpu_hours": 0.0, "drift_gpu_hours": 0.0},
            )
            line["kept_gpu_hours"] += drift.kept
            line["gpu_hours"] += drift.rebuilt
            line["drift_gpu_hours"] += drift.gpu_hours
        clusters.append({"cluster": cluster.name, "tenants": list(by_tenant.values())})
    worst = max((abs(drift.gpu_hours) for _, drifts in found for drift in drifts), default=0.0)
    return {"clusters": clusters, "drift_gpu_hours": worst}
