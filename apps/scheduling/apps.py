"""Tells Django about the scheduling app."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "apps.scheduling"
    default_auto_field = "django.db.models.BigAutoField"
