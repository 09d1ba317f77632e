"""What a tenant is promised in a pool, what it may never pass, and its part of the rest."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models


class Quota(models.Model):
    """GPUs of one pool for one tenant."""

    tenant = models.ForeignKey("tenants.Tenant", models.PROTECT, related_name="quotas")
    pool = models.ForeignKey("backends.Pool", models.PROTECT, related_name="quotas")
    guarantee = models.PositiveIntegerField(default=0)
    ceiling = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: none.")
    weight = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0)],
        help_text="Empty: the tenant's own.",
    )

    class Meta:
        ordering = ["tenant__path", "pool_id"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "pool"], name="one_quota_per_tenant_pool"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} on {self.pool}"
