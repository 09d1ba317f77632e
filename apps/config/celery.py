"""The Celery application and its beat schedule."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import after_task_publish, beat_init, setup_logging
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
    "accounts": {
        "task": "apps.quotas.tasks.keep_all_accounts",
        "schedule": 60,
        "options": {"expires": 60},
    },
    # As often asks whether it is due, so that it follows soon where nobody looked for a while.
    "history": {
        "task": "apps.scheduling.tasks.read_on_all_histories",
        "schedule": 60,
        "options": {"expires": 60},
    },
}
if settings.DEMO:
    # A demo that is left running must not run out of submissions to come.
    app.conf.beat_schedule["top-up"] = {
        "task": "apps.scheduling.tasks.top_up_demo",
        "schedule": 3_600,
        "options": {"expires": 3_600},
    }


@setup_logging.connect(weak=False)
def _leave_logging_alone(**_: Any) -> None:
    """Keep Celery from setting up logging: Django has done it, by settings.LOGGING."""


@beat_init.connect(weak=False)
def _show_a_pulse(**_: Any) -> None:
    """In the beat process alone, leave a mark of each message sent (apps.config.health)."""
    from apps.config.health import beat_once

    def _sent(**_: Any) -> None:
        beat_once()

    beat_once()
    after_task_publish.connect(_sent, weak=False)
