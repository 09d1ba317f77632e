"""Ticks with what they saw and answered, and the verdict on every waiting job."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Tick(models.Model):
    """Observe, decide, act, once, for one cluster."""

    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="ticks")
    at = models.DateTimeField(help_text="The cluster's time.")
    fence = models.BigIntegerField()
    pending = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    starts = models.PositiveIntegerField(default=0)
    moves = models.PositiveIntegerField(default=0)
    observe_ms = models.FloatField(default=0.0)
    decide_ms = models.FloatField(default=0.0)
    keep_until = models.DateTimeField(db_index=True, help_text="In the cluster's time.")
    # Columns under zlib, by engine.codec.
    snapshot = models.BinaryField(null=True)
    plan = models.BinaryField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["cluster", "at"], name="tick_at")]

    def __str__(self) -> str:
        return f"tick {self.pk}"


class Verdict(models.Model):
    """What the newest tick said of one waiting job; replaced whole by the next."""

    job = models.OneToOneField("jobs.Job", models.CASCADE, primary_key=True, related_name="verdict")
    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="+")
    # Not a foreign key: ticks are thinned out, what they said last stays.
    tick_id = models.BigIntegerField()
    position = models.PositiveIntegerField(help_text="0 is first in its cluster.")
    code = models.CharField(max_length=12)
    reserves = models.BooleanField(default=False)
    needed = models.BigIntegerField(null=True)
    available = models.BigIntegerField(null=True)
    detail = models.JSONField(default=dict, help_text="tenant, for, until, most, forecast")
    priority = models.FloatField()
    term_fair_share = models.FloatField()
    term_age = models.FloatField()
    term_size = models.FloatField()
    term_queue = models.FloatField()
    term_class = models.FloatField()
    term_boost = models.FloatField()
    term_nice = models.FloatField()

    class Meta:
        indexes = [models.Index(fields=["cluster", "position"], name="verdict_position")]

    def __str__(self) -> str:
        return self.code


class Standing(models.Model):
    """Where a tenant stood at the newest tick of a cluster."""

    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="+")
    tenant = models.ForeignKey("tenants.Tenant", models.CASCADE, related_name="+")
    tick_id = models.BigIntegerField()
    usage = models.FloatField()
    share = models.FloatField()
    usage_share = models.FloatField()
    level = models.FloatField(null=True, help_text="Empty: no usage (infinite) or zero weight.")
    level_state = models.CharField(max_length=12, blank=True)
    factor = models.FloatField(null=True)
    rank = models.IntegerField(null=True)
    pools = models.JSONField(default=dict, help_text="pool: guarantee, ceiling, used, …")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "tenant"], name="one_standing_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} on {self.cluster}"


class Forecast(models.Model):
    """When a waiting job likely starts if all that runs uses all of its limit; made now and then."""

    job = models.OneToOneField("jobs.Job", models.CASCADE, primary_key=True, related_name="+")
    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="+")
    tick_id = models.BigIntegerField()
    starts_us = models.BigIntegerField()

    def __str__(self) -> str:
        return f"forecast of {self.job_id}"


class ImportState(models.TextChoices):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class HistoryImport(models.Model):
    """What a cluster remembers of runs that are over, brought into the ledger window by window.

    All that ended before ``done_until`` is in the ledger; whoever goes on begins there.
    """

    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="imports")
    since = models.DateTimeField()
    until = models.DateTimeField()
    done_until = models.DateTimeField()
    state = models.CharField(max_length=8, choices=ImportState, default=ImportState.RUNNING)
    runs = models.PositiveBigIntegerField(default=0, help_text="Runs written.")
    known = models.PositiveBigIntegerField(default=0, help_text="Runs the ledger had already.")
    left_out = models.JSONField(default=dict, help_text="Runs left out, by why.")
    problem = models.CharField(max_length=300, blank=True, help_text="Why it does not go on.")
    failures = models.PositiveIntegerField(default=0, help_text="In a row.")
    started_at = models.DateTimeField()
    started_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    # Who is at it now, and until when nobody else is; in wall time.
    holder = models.CharField(max_length=80, blank=True)
    held_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster"],
                name="one_import_at_a_time",
                condition=models.Q(state="running"),
            ),
        ]

    def __str__(self) -> str:
        return f"history of {self.cluster} since {self.since:%Y-%m-%d}"


class HistoryReading(models.Model):
    """How far the accounting of a cluster was read since its first look, and why that failed last."""

    cluster = models.OneToOneField("backends.Cluster", models.CASCADE, related_name="reading")
    read_until = models.DateTimeField(
        null=True, blank=True, help_text="What ended before is in the ledger."
    )
    runs = models.PositiveBigIntegerField(default=0, help_text="Runs that no look had shown.")
    mended = models.PositiveBigIntegerField(
        default=0, help_text="Runs that were taken for lost, and ended otherwise."
    )
    problem = models.CharField(max_length=300, blank=True, help_text="Why the last try failed.")
    # Whoever reads has it to itself until then; in wall time.
    held_until = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"history of {self.cluster} since its first look"


class Advice(models.Model):
    """When a cluster was last given our order of its own line, and why that failed."""

    cluster = models.OneToOneField(
        "backends.Cluster", models.CASCADE, primary_key=True, related_name="advice"
    )
    given_at = models.DateTimeField(null=True, help_text="When a nice was last set.")
    trouble = models.TextField(blank=True, help_text="Why the last try failed; empty: it did not.")
    again_at = models.DateTimeField(null=True, help_text="After a failure: not before.")

    def __str__(self) -> str:
        return f"advice to {self.cluster}"


class NiceState(models.TextChoices):
    ASKED = "asked", "asked for"
    SET = "set", "set"
    BY_HAND = "by_hand", "changed by hand"


class Nice(models.Model):
    """The nice that a job of the cluster's own line had, and the one it was given for our order.

    Written before the cluster is asked, so that what was there before is known whatever happens then.
    What is seen decides what came of it: one that somebody changed after that is left alone.
    """

    job = models.OneToOneField("jobs.Job", models.CASCADE, primary_key=True, related_name="advised")
    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="+")
    original = models.BigIntegerField(help_text="What it had before the first time.")
    before = models.BigIntegerField(help_text="What it had before the last time.")
    asked = models.BigIntegerField()
    asked_at = models.DateTimeField()
    state = models.CharField(max_length=8, choices=NiceState, default=NiceState.ASKED)
    by_hand_at = models.DateTimeField(null=True, help_text="When it was seen to be another.")
    # Its neighbour in our order, and on which side of it.
    sooner = models.BooleanField(default=True)
    other = models.ForeignKey("jobs.Job", models.SET_NULL, null=True, related_name="+")

    class Meta:
        indexes = [models.Index(fields=["cluster", "state"], name="nice_state")]

    def __str__(self) -> str:
        return f"nice {self.asked} of {self.job_id}"
