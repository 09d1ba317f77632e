"""SQLite's planner is told about the tables that have grown; PostgreSQL looks by itself."""

from __future__ import annotations

import pytest
from django.db import connection

from apps.backends.models import Pool
from apps.common import upkeep
from apps.jobs.models import Job
from apps.tenants.models import Tenant
from tests.factories import make_job


def tables_known() -> set[str]:
    """Return the tables that the planner has figures of."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM sqlite_master WHERE name = 'sqlite_stat1'")
        if not cursor.fetchall():
            return set()
        cursor.execute("SELECT DISTINCT tbl FROM sqlite_stat1")
        return {name for (name,) in cursor.fetchall()}


def test_figures_are_made_of_what_is_asked_for_and_not_at_every_call(
    vision: Tenant, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_done", float("-inf"))
    for number in range(30):
        make_job(vision, pool, name=f"job-{number}")
    list(Job.objects.filter(cluster__name="atlas", state="PENDING"))

    asked = upkeep.refresh_statistics(), upkeep.refresh_statistics()

    if connection.vendor == "postgresql":
        assert asked == (False, False)
    else:
        assert asked == (True, False)
        assert "jobs_job" in tables_known()
