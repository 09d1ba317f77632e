"""Intervals, the only source of usage and cost; prices, roll-ups and decayed usage."""

from __future__ import annotations

from django.db import models


class IntervalKind(models.TextChoices):
    NODE = "node"
    MEMBER = "member"
    HOLD = "hold"
    MARK = "mark"


class Interval(models.Model):
    """From one instant to another: half-open, in microseconds since the epoch, UTC.

    ``state`` is up, drained or down for a node; held_idle, unknown (allocated, utilisation unknown),
    stranded or foreign (used by work that is not ours) for a mark; and empty else.
    """

    # Indexes stand in Meta alone: each costs every tick, and most of a key's own would be unused.
    cluster = models.ForeignKey(
        "backends.Cluster", models.PROTECT, related_name="+", db_index=False
    )
    pool = models.ForeignKey("backends.Pool", models.PROTECT, related_name="+", db_index=False)
    kind = models.CharField(max_length=6, choices=IntervalKind)
    state = models.CharField(max_length=10, blank=True)
    node = models.ForeignKey(
        "backends.Node", models.PROTECT, null=True, related_name="+", db_index=False
    )
    tenant = models.ForeignKey(
        "tenants.Tenant", models.PROTECT, null=True, related_name="+", db_index=False
    )
    job = models.ForeignKey(
        "jobs.Job", models.PROTECT, null=True, related_name="intervals", db_index=False
    )
    attempt = models.ForeignKey("jobs.Attempt", models.PROTECT, null=True, related_name="+")
    reservation = models.ForeignKey(
        "jobs.Reservation", models.PROTECT, null=True, related_name="intervals", db_index=False
    )
    rank = models.IntegerField(null=True)
    gpus = models.PositiveIntegerField()
    start_us = models.BigIntegerField()
    end_us = models.BigIntegerField(null=True)
    usage_factor = models.FloatField(default=1.0)
    # A member or hold on a node that is not up takes its GPUs out of what is unavailable.
    on_drained = models.BooleanField(default=False)
    # In a gap between two looks the last state holds.
    assumed = models.BooleanField(default=False)

    class Meta:
        indexes = [
            models.Index(fields=["cluster", "end_us", "start_us"], name="interval_span"),
            models.Index(
                fields=["cluster", "kind"],
                name="interval_open",
                condition=models.Q(end_us__isnull=True),
            ),
            models.Index(fields=["job", "kind", "id"], name="interval_job"),
            models.Index(fields=["reservation"], name="interval_reservation"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.state} {self.gpus} GPUs"


class Price(models.Model):
    """What a GPU-hour of a pool costs from an instant on, in millionths of the currency."""

    pool = models.ForeignKey("backends.Pool", models.PROTECT, related_name="prices")
    from_us = models.BigIntegerField(help_text="Microseconds since the epoch; 0: always.")
    micros_per_gpu_hour = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["pool_id", "from_us"]
        constraints = [
            models.UniqueConstraint(fields=["pool", "from_us"], name="one_price_per_instant"),
        ]

    def __str__(self) -> str:
        return f"{self.micros_per_gpu_hour / 1e6:.2f} per GPU-hour"


class RollUp(models.Model):
    """GPU-microseconds of one UTC quarter-hour by pool, price, tenant and state."""

    cluster = models.ForeignKey(
        "backends.Cluster", models.PROTECT, related_name="+", db_index=False
    )
    pool = models.ForeignKey("backends.Pool", models.PROTECT, related_name="+", db_index=False)
    quarter_us = models.BigIntegerField()
    price = models.ForeignKey(Price, models.PROTECT, null=True, related_name="+", db_index=False)
    tenant = models.ForeignKey(
        "tenants.Tenant", models.PROTECT, null=True, related_name="+", db_index=False
    )
    state = models.CharField(max_length=12)
    gpu_us = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=["cluster", "quarter_us"], name="rollup_quarter")]

    def __str__(self) -> str:
        return f"{self.state} {self.gpu_us}"


class RollUpMark(models.Model):
    """Up to where a cluster's quarter-hours are rolled up."""

    cluster = models.OneToOneField("backends.Cluster", models.CASCADE, related_name="rollup_mark")
    until_us = models.BigIntegerField()

    def __str__(self) -> str:
        return f"rolled up to {self.until_us}"


class UsageAccount(models.Model):
    """Decayed GPU-hours of a tenant's members in a pool as of an instant; unweighted by pool.

    Running members are in it: from ``as_of_us`` on it decays by its half-life and grows by
    ``running``, so that it is right at any later instant without a write. Floats on purpose: a
    decayed number is irrational. ``rebuild_usage`` makes it anew from intervals.
    """

    cluster = models.ForeignKey("backends.Cluster", models.PROTECT, related_name="+")
    tenant = models.ForeignKey("tenants.Tenant", models.PROTECT, related_name="+")
    pool = models.ForeignKey("backends.Pool", models.PROTECT, related_name="+")
    gpu_hours = models.FloatField(default=0.0)
    running = models.FloatField(default=0.0, help_text="GPUs × usage factor of open intervals.")
    as_of_us = models.BigIntegerField()
    # The half-life it was kept with; another in the policy means: recompute from intervals.
    half_life_seconds = models.PositiveBigIntegerField(null=True, help_text="Empty: no decay.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "tenant", "pool"], name="one_usage_per_tenant_pool"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_hours} GPUh"


class OpeningBalance(models.Model):
    """Usage a tenant brought along from before the first look, in decayed GPU-hours."""

    cluster = models.ForeignKey("backends.Cluster", models.PROTECT, related_name="+")
    tenant = models.ForeignKey("tenants.Tenant", models.PROTECT, related_name="+")
    at_us = models.BigIntegerField()
    gpu_hours = models.FloatField()

    def __str__(self) -> str:
        return f"{self.gpu_hours} GPUh of {self.tenant}"
