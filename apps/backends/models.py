"""Clusters as they were last seen: their pools, their nodes, their clock and their lease."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from apps.backends.secrets import sealed
from apps.common.errors import Invalid


def kind_choices() -> list[tuple[str, str]]:
    """Return the kinds of cluster there are; a callable, so a new kind needs no migration."""
    from apps.backends.kinds import KINDS

    return [(kind.name, kind.label) for kind in KINDS.values()]


class Grade(models.TextChoices):
    OBSERVE = "observe"
    ADVISE = "advise"
    DRIVE = "drive"


class Cluster(models.Model):
    """A cluster, the instant it was last seen, and who ticks it now."""

    name = models.SlugField(max_length=60, unique=True)
    kind = models.CharField(max_length=20, choices=kind_choices)
    grade = models.CharField(max_length=10, choices=Grade, default=Grade.OBSERVE)
    options = models.JSONField(
        default=dict, blank=True, help_text="What its kind needs to reach it."
    )
    created_at = models.DateTimeField(default=timezone.now)
    archived_at = models.DateTimeField(null=True, blank=True)

    tick_seconds = models.PositiveIntegerField(default=2, validators=[MinValueValidator(1)])
    # Before the first look a cluster is not observed, outside every sum.
    first_look_at = models.DateTimeField(null=True, blank=True)
    # Its past was imported from here on, up to the first look.
    history_from = models.DateTimeField(null=True, blank=True)
    observed_at = models.DateTimeField(null=True, blank=True)
    cursor = models.TextField(blank=True, help_text="Where the next observation resumes.")
    trouble = models.TextField(blank=True, help_text="Why the last tick failed; empty: it did not.")

    # By these two it is looked at less often (pace.py).
    look_seconds = models.FloatField(default=0.0, help_text="What the last look took.")
    failed_looks = models.PositiveIntegerField(default=0, help_text="In a row.")

    # A virtual clock stands at clock_now, and goes on by clock_step to clock_until; no clock_until:
    # until it has caught up with wall time. No clock_now: wall time.
    clock_now = models.DateTimeField(null=True, blank=True)
    clock_step = models.PositiveIntegerField(
        default=60, help_text="Seconds a virtual tick goes on."
    )
    clock_until = models.DateTimeField(null=True, blank=True)

    # The lease, in wall time.
    lease_holder = models.CharField(max_length=80, blank=True)
    lease_fence = models.BigIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)
    not_before = models.DateTimeField(null=True, blank=True)
    tick_requested_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save; whoever does, no secret among the options is stored as it is."""
        if isinstance(self.options, dict):
            self.options = sealed(self.kind, self.options)
        super().save(*args, **kwargs)

    def clean(self) -> None:
        """Refuse options that the cluster's kind cannot use."""
        from apps.backends.kinds import KINDS, check_options

        if self.kind in KINDS:
            try:
                check_options(self.kind, self.options)
            except Invalid as refusal:
                raise ValidationError({"options": refusal.message}) from refusal

    @property
    def driven(self) -> bool:
        """Return whether Rollcall starts and stops what is on it; else it only looks on."""
        return self.grade == Grade.DRIVE

    @property
    def known_from(self) -> datetime | None:
        """Return the instant from which on the ledger knows it; None: it was never looked at."""
        return self.history_from or self.first_look_at

    def now(self) -> datetime:
        """Return this cluster's time: its virtual clock, or wall time."""
        return self.clock_now or timezone.now()


class LineLook(models.Model):
    """What a cluster's own scheduler had of each job that waits there, when it was last asked."""

    cluster = models.OneToOneField(Cluster, models.CASCADE, related_name="line_look")
    tried_at = models.DateTimeField(null=True, blank=True, help_text="In wall time, as read_at.")
    read_at = models.DateTimeField(null=True, blank=True)
    trouble = models.TextField(blank=True, help_text="Why the last try failed; empty: it did not.")
    no_terms = models.TextField(blank=True, help_text="Why it tells no priority; empty: it does.")
    # By ref: terms, and starts_us and nodes where a start is planned.
    places = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"line of {self.cluster}"


class Pool(models.Model):
    """The GPUs of one kind on one cluster, counted in the pool's own unit."""

    cluster = models.ForeignKey(Cluster, models.PROTECT, related_name="pools")
    name = models.CharField(max_length=60)
    # One unit is numerator/denominator of a physical GPU: MIG 3g is 3/7, one of ten replicas 1/10.
    fraction_numerator = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    fraction_denominator = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    usage_weight = models.FloatField(default=1.0, validators=[MinValueValidator(0.0)])
    idle_below = models.FloatField(
        default=0.05, help_text="Utilisation below this is idle (0 to 1)."
    )
    idle_grace_seconds = models.PositiveIntegerField(default=900)

    class Meta:
        ordering = ["cluster_id", "name"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="one_pool_per_name"),
        ]

    def __str__(self) -> str:
        return f"{self.cluster.name}/{self.name}"

    @property
    def unit(self) -> str:
        """Return what one of its units is called: a part of a GPU is a slice."""
        return "GPU" if self.fraction_numerator == self.fraction_denominator else "slice"


class NodeState(models.TextChoices):
    UP = "up"
    DRAINED = "drained"
    DOWN = "down"


class Node(models.Model):
    """A node as last seen; one with GPUs of two pools is two rows."""

    cluster = models.ForeignKey(Cluster, models.PROTECT, related_name="nodes")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=120)
    gpus = models.PositiveIntegerField()
    foreign_gpus = models.PositiveIntegerField(
        default=0, help_text="Used by work that is not ours."
    )
    rack = models.CharField(max_length=60, blank=True)
    nvlink = models.CharField(max_length=60, blank=True)
    state = models.CharField(max_length=10, choices=NodeState, default=NodeState.UP)
    state_since = models.DateTimeField()
    state_reason = models.CharField(max_length=200, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name", "pool_id"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "name", "pool"], name="one_row_per_node_pool"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class UserToken(models.Model):
    """What a user has entered to be let in as on a cluster that runs jobs as them; sealed."""

    cluster = models.ForeignKey(Cluster, models.CASCADE, related_name="user_tokens")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    sealed = models.TextField()
    until = models.DateTimeField(null=True, help_text="When it ends, by what it says itself.")
    entered_at = models.DateTimeField()

    class Meta:
        ordering = ["cluster_id", "user_id"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "user"], name="one_token_per_user"),
        ]

    def __str__(self) -> str:
        return f"{self.user} on {self.cluster}"
