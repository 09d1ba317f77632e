"""Teams: a tree of tenants, and who belongs to them."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models


class Tenant(models.Model):
    """A team; usage and quota roll up to its parent."""

    parent = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="children"
    )
    name = models.CharField(max_length=80)
    # The names from the top, joined by slashes; kept by the services, unique.
    path = models.CharField(max_length=400, unique=True)
    weight = models.FloatField(default=1.0, validators=[MinValueValidator(0.0)])
    created_at = models.DateTimeField()
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["path"]

    def __str__(self) -> str:
        return self.path


class Role(models.TextChoices):
    LEAD = "lead"
    MEMBER = "member"


class Membership(models.Model):
    """A person's place in a tenant; it reaches the whole subtree."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant"], name="one_role_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.user}, {self.role} of {self.tenant}"
