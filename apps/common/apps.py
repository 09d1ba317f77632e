"""Tells Django about the common app."""

from django.apps import AppConfig


class CommonConfig(AppConfig):
    name = "apps.common"
    default_auto_field = "django.db.models.BigAutoField"
