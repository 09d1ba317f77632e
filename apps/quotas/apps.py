"""Tells Django about the quotas app."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "apps.quotas"
    default_auto_field = "django.db.models.BigAutoField"
