"""Tells Django about the queues app."""

from django.apps import AppConfig


class QueuesConfig(AppConfig):
    name = "apps.queues"
    default_auto_field = "django.db.models.BigAutoField"
