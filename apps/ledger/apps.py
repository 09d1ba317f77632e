"""Tells Django about the ledger app."""

from django.apps import AppConfig


class LedgerConfig(AppConfig):
    name = "apps.ledger"
    default_auto_field = "django.db.models.BigAutoField"
