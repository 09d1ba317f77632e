"""Who acts: people, and the tokens of their automations."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """A person or a service account. What it may see comes from its memberships."""

    is_admin = models.BooleanField(
        "admin", default=False, help_text="Sees and changes the whole installation."
    )
    keys_enabled = models.BooleanField(
        default=True, help_text="Single-key shortcuts on the pages (WCAG 2.1.4)."
    )

    def __str__(self) -> str:
        return self.get_full_name() or self.username


class Token(models.Model):
    """A bearer token of the API; only its digest is kept."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=8, help_text="The first characters, to tell tokens apart.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
