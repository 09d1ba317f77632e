"""The Celery application and its beat schedule."""

from __future__ import annotations

import os

from celery import Celery
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.config.settings")

app = Celery("rollcall")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = {
    "tick": {
        "task": "apps.scheduling.tasks.tick_all",
        "schedule": settings.TICK_SECONDS,
        # A message older than a period is of no use: the next one looks at what is true anyway.
        "options": {"expires": settings.TICK_SECONDS},
    },
}
