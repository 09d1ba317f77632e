"""The tasks of Celery: what clusters say of accounts and of their own lines is read once a minute."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.utils import timezone

from apps.backends.lines import look_at_line
from apps.backends.models import Cluster
from apps.quotas import accounts

EVERY_SECONDS = 60


@shared_task(ignore_result=True)
def keep_all_accounts(**_: Any) -> None:
    """Send a task to each cluster; a message older than a period is dropped."""
    for pk in Cluster.objects.filter(archived_at__isnull=True).values_list("pk", flat=True):
        keep_cluster_accounts.apply_async(kwargs={"cluster_id": pk}, expires=EVERY_SECONDS)


@shared_task(ignore_result=True)
def keep_cluster_accounts(*, cluster_id: int, **_: Any) -> None:
    """Read the line and the accounts of one cluster, and write what is wanted of its accounts."""
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    if cluster is not None:
        look_at_line(cluster, now=timezone.now())
        accounts.keep_accounts(cluster, now=timezone.now())
