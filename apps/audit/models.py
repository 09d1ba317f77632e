"""Who changed what, when and why."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Entry(models.Model):
    """One change by a person or a token; never edited."""

    at = models.DateTimeField(db_index=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="audit_entries"
    )
    token_name = models.CharField(max_length=80, blank=True)
    verb = models.CharField(max_length=40)
    object_kind = models.CharField(max_length=40)
    object_id = models.BigIntegerField()
    object_name = models.CharField(max_length=250)
    changes = models.JSONField(default=dict, help_text="field: [before, after]")
    reason = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "entries"
        indexes = [models.Index(fields=["object_kind", "object_id"], name="audit_object")]

    def __str__(self) -> str:
        return f"{self.verb} {self.object_name}"
