"""Tells Django about the audit app."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "apps.audit"
    default_auto_field = "django.db.models.BigAutoField"
