"""Where jobs wait, in what order, and the policy of each cluster."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

DAY = 86_400
LONGEST_GRACE = 7 * DAY
"""Longer, and what a team is promised would be gone before it comes."""


def fair_share_choices() -> list[tuple[str, str]]:
    """Return the fair-share policies there are; a callable, so a new one needs no migration."""
    from apps.engine.fairshare import POLICIES

    return [(name, name) for name in POLICIES]


def preemption_choices() -> list[tuple[str, str]]:
    """Return the preemption rules there are; a callable, so a new one needs no migration."""
    from apps.engine.preemption import RULES

    return [(name, name) for name in RULES]


class PriorityClass(models.Model):
    """How urgent a job is, and what its GPU time counts."""

    name = models.CharField(max_length=60, unique=True)
    priority = models.IntegerField(default=0)
    usage_factor = models.FloatField(default=1.0, validators=[MinValueValidator(0.0)])
    preemptible = models.BooleanField(default=True)

    class Meta:
        ordering = ["-priority", "name"]
        verbose_name_plural = "priority classes"

    def __str__(self) -> str:
        return self.name


class ClusterPolicy(models.Model):
    """How one cluster decides; empty durations mean none."""

    cluster = models.OneToOneField("backends.Cluster", models.CASCADE, related_name="policy")
    fair_share = models.CharField(max_length=30, choices=fair_share_choices, default="fair_tree")
    dampening = models.FloatField(default=1.0, validators=[MinValueValidator(0.01)])
    half_life_seconds = models.PositiveBigIntegerField(
        null=True, blank=True, default=7 * DAY, validators=[MinValueValidator(1)]
    )
    window_seconds = models.PositiveBigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)]
    )
    weight_fair_share = models.FloatField(default=10_000.0, validators=[MinValueValidator(0.0)])
    weight_age = models.FloatField(default=1_000.0, validators=[MinValueValidator(0.0)])
    weight_size = models.FloatField(default=0.0, validators=[MinValueValidator(0.0)])
    weight_queue = models.FloatField(default=0.0, validators=[MinValueValidator(0.0)])
    weight_class = models.FloatField(default=100_000.0, validators=[MinValueValidator(0.0)])
    max_age_seconds = models.PositiveBigIntegerField(
        default=7 * DAY, validators=[MinValueValidator(1)]
    )
    placement = models.CharField(
        max_length=10, choices=[(c, c) for c in ("pack", "spread", "frag")], default="pack"
    )
    backfill = models.CharField(
        max_length=15, choices=[(c, c) for c in ("easy", "none", "conservative")], default="easy"
    )
    hold_late_seconds = models.PositiveBigIntegerField(null=True, blank=True)
    gang_timeout_seconds = models.PositiveBigIntegerField(
        null=True, blank=True, default=1_800, validators=[MinValueValidator(1)]
    )
    lend_guarantee = models.BooleanField(default=True)
    preemption = models.CharField(max_length=30, choices=preemption_choices, default="none")
    mode = models.CharField(
        max_length=12, choices=[(c, c) for c in ("kill", "checkpoint", "demote")], default="kill"
    )
    grace_seconds = models.PositiveBigIntegerField(
        default=60, validators=[MaxValueValidator(LONGEST_GRACE)], help_text="A kill has none."
    )
    min_runtime_seconds = models.PositiveBigIntegerField(default=0)
    max_evictions_per_tick = models.PositiveIntegerField(default=0, help_text="0: no limit.")
    cooldown_seconds = models.PositiveBigIntegerField(default=0)
    thrash_after = models.PositiveIntegerField(
        default=3, help_text="Evictions within an hour, after which a job is left alone; 0: never."
    )

    class Meta:
        verbose_name_plural = "cluster policies"

    def __str__(self) -> str:
        return f"policy of {self.cluster}"


class Queue(models.Model):
    """Where a tenant's jobs wait on one cluster."""

    tenant = models.ForeignKey("tenants.Tenant", models.PROTECT, related_name="queues")
    cluster = models.ForeignKey("backends.Cluster", models.PROTECT, related_name="queues")
    factor = models.FloatField(
        default=0.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text="The queue term of priority, 0 to 1.",
    )
    max_pending = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: no limit.")
    closed_at = models.DateTimeField(null=True, blank=True, help_text="Set: no new jobs.")

    class Meta:
        ordering = ["cluster_id", "tenant_id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "cluster"], name="one_queue_per_tenant_cluster"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} on {self.cluster}"
