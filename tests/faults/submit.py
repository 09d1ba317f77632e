"""Submit a job by the API and one by the form, in this process; prints what was answered."""

from __future__ import annotations

import json

import django

django.setup()

from django.test import Client  # noqa: E402  after set-up
from django.utils import timezone  # noqa: E402

from apps.accounts.models import User  # noqa: E402
from apps.accounts.services import issue_token  # noqa: E402
from apps.backends.models import Cluster, Pool  # noqa: E402
from apps.jobs.models import Job  # noqa: E402
from apps.tenants.models import Tenant  # noqa: E402


def main() -> None:
    """Submit both ways as an admin."""
    user, _ = User.objects.get_or_create(username="root", defaults={"is_admin": True})
    _, secret = issue_token(user, name="faults", now=timezone.now())
    cluster, pool, tenant = Cluster.objects.get(), Pool.objects.get(), Tenant.objects.earliest("id")
    client = Client(headers={"host": "localhost"})
    asked = {
        "name": "by-api", "tenant": tenant.path, "cluster": cluster.name, "pool": pool.name,
        "size": 1, "gpus_per_member": 1, "workload": {"kind": "simulated", "runtime": 5},
    }  # fmt: skip
    api = client.post(
        "/api/v1/jobs", json.dumps(asked), content_type="application/json",
        headers={"authorization": f"Bearer {secret}"},
    )  # fmt: skip
    client.force_login(user)
    form = client.post(
        f"/jobs/new/?cluster={cluster.name}",
        {
            "name": "by-form", "tenant": tenant.pk, "pool": pool.pk, "size": 1,
            "gpus_per_member": 1, "runtime": "5s", "key": "once",
        },
    )  # fmt: skip
    saved = sorted(Job.objects.filter(name__startswith="by-").values_list("name", flat=True))
    print(json.dumps({"api": api.status_code, "form": form.status_code, "saved": saved}))


if __name__ == "__main__":
    main()
