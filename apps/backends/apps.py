"""Tells Django about the backends app."""

from django.apps import AppConfig


class BackendsConfig(AppConfig):
    name = "apps.backends"
    default_auto_field = "django.db.models.BigAutoField"
