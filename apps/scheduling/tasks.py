"""The tasks of Celery: one for beat, one per cluster."""

from __future__ import annotations

import os
import socket
from typing import Any

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from apps.backends.models import Cluster
from apps.scheduling import demo, history, missed, services
from apps.scheduling.selectors import imports_to_go_on

# A worker that imports does not tick: it goes on with the next message.
IMPORT_SECONDS = 5.0
HISTORY_SECONDS = 60


@shared_task(ignore_result=True)
def tick_all(**_: Any) -> None:
    """Send a tick to each cluster; a message older than a period is dropped."""
    for pk in Cluster.objects.filter(archived_at__isnull=True).values_list("pk", flat=True):
        tick_cluster.apply_async(kwargs={"cluster_id": pk}, expires=settings.TICK_SECONDS)
    for pk in imports_to_go_on(timezone.now()):
        go_on_with_import.apply_async(kwargs={"import_id": pk}, expires=settings.TICK_SECONDS)


@shared_task(ignore_result=True)
def tick_cluster(*, cluster_id: int, **_: Any) -> None:
    """Tick one cluster, if it is free and due."""
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    if cluster is not None:
        services.tick(cluster, holder=f"{socket.gethostname()}:{os.getpid()}")


@shared_task(ignore_result=True)
def go_on_with_import(*, import_id: int, **_: Any) -> None:
    """Go on with the import of a cluster's history for a few seconds, if nobody is at it."""
    holder = f"{socket.gethostname()}:{os.getpid()}"
    history.go_on(import_id, holder=holder, seconds=IMPORT_SECONDS)


@shared_task(ignore_result=True)
def read_on_all_histories(**_: Any) -> None:
    """Send a task to each cluster; a message older than a period is dropped."""
    for pk in Cluster.objects.filter(archived_at__isnull=True).values_list("pk", flat=True):
        read_on_history.apply_async(kwargs={"cluster_id": pk}, expires=HISTORY_SECONDS)


@shared_task(ignore_result=True)
def read_on_history(*, cluster_id: int, **_: Any) -> None:
    """Read on in the accounting of one cluster, if it is due and nobody is at it."""
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    if cluster is not None:
        missed.read_on(cluster, now=timezone.now())


@shared_task(ignore_result=True)
def top_up_demo(**_: Any) -> None:
    """Make more submissions to come for the demo's cluster, if there is one and it needs them."""
    if settings.DEMO and Cluster.objects.filter(name=demo.CLUSTER).exists():
        demo.load_demo(now=timezone.now())
