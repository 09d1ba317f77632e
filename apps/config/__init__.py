"""Settings, URLs and processes; loads the Celery application with Django."""

from apps.config.celery import app as celery_app

__all__ = ["celery_app"]
