"""Jobs, their attempts and members, and each move they made."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models

from apps.jobs.states import (
    HOLDING,
    WAITING,
    EvictionMode,
    EvictionOutcome,
    JobState,
    Outcome,
    ReservationOutcome,
)


class TopologyChoice(models.TextChoices):
    NONE = "none"
    RACK = "rack"
    NVLINK = "nvlink"


class Job(models.Model):
    """A gang: ``size`` members, each asking ``gpus_per_member`` GPUs of a pool, or none at all."""

    name = models.CharField(max_length=200)
    tenant = models.ForeignKey("tenants.Tenant", models.PROTECT, related_name="jobs")
    cluster = models.ForeignKey("backends.Cluster", models.PROTECT, related_name="jobs")
    pool = models.ForeignKey("backends.Pool", models.PROTECT, related_name="jobs")
    priority_class = models.ForeignKey("queues.PriorityClass", models.PROTECT, related_name="jobs")

    size = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    min_size = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    gpus_per_member = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    topology = models.CharField(max_length=10, choices=TopologyChoice, default=TopologyChoice.NONE)
    limit_seconds = models.PositiveBigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: none."
    )
    nice = models.IntegerField(default=0)
    begin_at = models.DateTimeField(null=True, blank=True)
    depends_on = models.ManyToManyField("self", symmetrical=False, blank=True)
    workload = models.JSONField(default=dict)
    retry_limit = models.PositiveIntegerField(default=0)

    submitted_at = models.DateTimeField()
    submitted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="jobs"
    )
    idempotency_key = models.CharField(max_length=120, null=True, blank=True)  # noqa: DJ001  null keeps the constraint off jobs without a key
    request_digest = models.CharField(max_length=64, blank=True)
    # Set: it was submitted to the cluster itself, which calls it so; Rollcall only looks on.
    foreign_ref = models.CharField(max_length=120, blank=True, default="")

    state = models.CharField(max_length=12, choices=JobState, default=JobState.PENDING)
    state_since = models.DateTimeField()
    held_at = models.DateTimeField(null=True, blank=True)
    held_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    held_reason = models.CharField(max_length=300, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=12, choices=Outcome, blank=True)
    attempt_number = models.PositiveIntegerField(default=1)
    retries_used = models.PositiveIntegerField(default=0)
    # A node was lost under it: it goes back in line above fresh work of equal priority.
    broken = models.BooleanField(default=False)
    # After a reservation timed out, and how often in a row.
    no_reserve_before = models.DateTimeField(null=True, blank=True)
    reserve_timeouts = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "idempotency_key"], name="one_job_per_idempotency_key"
            ),
            models.UniqueConstraint(
                fields=["cluster", "foreign_ref"],
                name="one_job_per_foreign_ref",
                condition=~models.Q(foreign_ref=""),
            ),
        ]
        indexes = [
            models.Index(
                fields=["cluster", "id"],
                name="job_alive",
                condition=models.Q(state__in=sorted(HOLDING | WAITING)),
            ),
            models.Index(fields=["tenant", "state", "id"], name="job_tenant_state"),
            models.Index(fields=["cluster", "state", "id"], name="job_cluster_state"),
            models.Index(fields=["name"], name="job_name"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def gpus(self) -> int:
        """Return the GPUs of the whole gang."""
        return self.size * self.gpus_per_member


class Attempt(models.Model):
    """One try at running a job; its uid is stored before the cluster is told of it."""

    job = models.ForeignKey(Job, models.PROTECT, related_name="attempts")
    number = models.PositiveIntegerField()
    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    created_at = models.DateTimeField()
    launched_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=12, choices=Outcome, blank=True)
    detail = models.CharField(max_length=300, blank=True)
    cluster_ref = models.CharField(max_length=120, blank=True)
    last_checkpoint_at = models.DateTimeField(null=True, blank=True)
    kept_seconds = models.PositiveBigIntegerField(
        default=0, help_text="Work a checkpoint brought over from earlier attempts."
    )
    # The attempt before it was evicted: a cool-down counts from this one's start.
    after_eviction = models.BooleanField(default=False)
    demoted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="one_attempt_per_number"),
        ]
        indexes = [
            models.Index(
                fields=["job"], name="attempt_alive", condition=models.Q(ended_at__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job}, attempt {self.number}"


class Member(models.Model):
    """One process of a gang, and the node it was placed on."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="members")
    rank = models.PositiveIntegerField()
    node = models.ForeignKey("backends.Node", models.PROTECT, related_name="members")
    left_at = models.DateTimeField(
        null=True, blank=True, help_text="Set: the gang shrank, and went on without it."
    )

    class Meta:
        ordering = ["attempt_id", "rank"]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "rank"], name="one_member_per_rank"),
        ]

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}"


class Reservation(models.Model):
    """GPUs held for a gang that cannot start yet; what is held when stands in the ledger."""

    job = models.ForeignKey(Job, models.PROTECT, related_name="reservations")
    attempt_number = models.PositiveIntegerField()
    since = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=12, choices=ReservationOutcome, blank=True)
    timeout_seconds = models.PositiveBigIntegerField(null=True, blank=True)
    # Victims were chosen for it; [rank, node id] of members whose room is still to come.
    promised = models.BooleanField(default=False)
    promises = models.JSONField(default=list)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["job"],
                name="one_open_reservation_per_job",
                condition=models.Q(ended_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"reservation of {self.job}"


class Eviction(models.Model):
    """One running attempt that was made to give way: for whom, by which rule, at what cost.

    The row is written before the cluster is asked; ``ended_at`` is set when it has left, stays,
    or, demoted, was made to run on below the others.
    """

    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="evictions")
    attempt = models.ForeignKey(Attempt, models.PROTECT, related_name="evictions")
    job = models.ForeignKey(Job, models.PROTECT, related_name="evictions")
    beneficiary = models.ForeignKey(Job, models.PROTECT, related_name="evictions_for_it")
    beneficiary_attempt = models.PositiveIntegerField()
    tick_id = models.BigIntegerField()
    rule = models.CharField(max_length=30)
    mode = models.CharField(max_length=12, choices=EvictionMode)
    at = models.DateTimeField(help_text="When it was decided.")
    leave_by = models.DateTimeField(help_text="When the grace is over; a kill has none.")
    members = models.PositiveIntegerField(help_text="How many leave: all, but for a shrink.")
    gpus = models.PositiveIntegerField()
    asked_at = models.DateTimeField(
        null=True, blank=True, help_text="When the cluster had been told."
    )
    # From an API call: this attempt saved its work, and may be stopped.
    confirmed_at = models.DateTimeField(null=True, blank=True)
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    # From a withdrawal: nobody needs its room any more.
    unneeded_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=15, choices=EvictionOutcome, blank=True)
    # GPU-microseconds since its last confirmed checkpoint (its start, if none), at its end.
    lost_gpu_us = models.BigIntegerField(null=True, blank=True)
    lost_micros = models.BigIntegerField(
        null=True, blank=True, help_text="Their price, in micro-units of money."
    )
    within_hour = models.PositiveIntegerField(
        default=1, help_text="Evictions of the job within an hour, this one counted."
    )
    thrashes = models.BooleanField(default=False, help_text="It reached the policy's limit.")
    # Both tenants at the decision: share, usage share, level, and quota and holdings in the pool.
    standings = models.JSONField(default=dict)
    # The candidates that were looked at, in order, and why each was passed over.
    considered = models.JSONField(default=list)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt"],
                name="one_open_eviction_per_attempt",
                condition=models.Q(ended_at__isnull=True),
            ),
        ]
        indexes = [
            models.Index(fields=["cluster", "id"], name="eviction_cluster"),
            models.Index(fields=["job", "at"], name="eviction_job"),
            models.Index(fields=["beneficiary", "id"], name="eviction_beneficiary"),
        ]

    def __str__(self) -> str:
        return f"eviction of {self.job}"


class Move(models.Model):
    """One change of a job's state, or something that happened to it: its story."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="moves")
    at = models.DateTimeField()
    before = models.CharField(max_length=12, blank=True)
    after = models.CharField(max_length=12)
    attempt_number = models.PositiveIntegerField()
    what = models.CharField(
        max_length=30,
        help_text="submitted, reserved, admitted, started, succeeded, failed, held, …",
    )
    detail = models.JSONField(default=dict)
    tick_id = models.BigIntegerField(null=True, blank=True)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["job", "id"], name="move_job")]

    def __str__(self) -> str:
        return f"{self.job}: {self.what}"


class Arrival(models.Model):
    """A submission that a replayed trace or a made workload brings at its own instant."""

    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="arrivals")
    at = models.DateTimeField()
    tenant = models.ForeignKey("tenants.Tenant", models.CASCADE, related_name="+")
    spec = models.JSONField()
    # Set in the transaction that submits it: an arrival becomes one job.
    job = models.ForeignKey(Job, models.SET_NULL, null=True, blank=True, related_name="arrivals")
    refused = models.CharField(max_length=300, blank=True, help_text="Why it became no job.")

    class Meta:
        indexes = [
            models.Index(
                fields=["cluster", "at"],
                name="arrival_due",
                condition=models.Q(job__isnull=True, refused=""),
            ),
        ]

    def __str__(self) -> str:
        return f"arrival at {self.at:%Y-%m-%d %H:%M:%S}"
