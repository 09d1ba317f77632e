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


class AccountsLook(models.Model):
    """When the accounts of a cluster were last read, and why that failed."""

    cluster = models.OneToOneField("backends.Cluster", models.CASCADE, related_name="accounts_look")
    # In wall time, as all of these rows: whoever reads has it to itself until then.
    claimed_until = models.DateTimeField(null=True, blank=True)
    tried_at = models.DateTimeField(null=True, blank=True)
    read_at = models.DateTimeField(null=True, blank=True)
    trouble = models.TextField(blank=True, help_text="Why the last try failed; empty: it did not.")
    qos = models.JSONField(default=list, help_text="Rows of SeenQos.")

    def __str__(self) -> str:
        return f"accounts of {self.cluster}"


class Account(models.Model):
    """An account of a cluster's own as last seen, and the tenant it stands for."""

    cluster = models.ForeignKey("backends.Cluster", models.CASCADE, related_name="accounts")
    name = models.CharField(max_length=255)
    parent = models.CharField(max_length=255, blank=True, help_text="Empty: at the top.")
    tenant = models.ForeignKey(
        "tenants.Tenant", models.PROTECT, null=True, blank=True, related_name="accounts"
    )
    users = models.PositiveIntegerField(default=0)
    people = models.JSONField(
        default=list, help_text="Rows of SeenUser, the most usage first, not more than MOST_PEOPLE."
    )
    # As the cluster works them out; empty: it does not say.
    raw_usage = models.FloatField(null=True)
    norm_shares = models.FloatField(null=True)
    effective_usage = models.FloatField(null=True)
    level = models.FloatField(null=True, help_text="Empty too: infinite, there is no usage.")
    fair_share = models.FloatField(null=True)
    seen_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["cluster_id", "name"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="one_account_per_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} on {self.cluster}"


class What(models.TextChoices):
    SHARES = "shares"
    GPUS = "gpus"
    GUARANTEE = "guarantee"


class ValueState(models.TextChoices):
    TAKEN = "taken", "as the cluster has it"
    IN_STEP = "in_step", "in step"
    WAITING = "waiting", "waiting to be written"
    REFUSED = "refused", "refused"
    DRIFTED = "drifted", "drifted"


class AccountValue(models.Model):
    """An account's shares, limit of GPUs, or noted guarantee in a pool: as seen, and as wanted here.

    Nothing is wanted until what it comes from, the tenant's weight, its ceilings or its guarantee,
    is no longer ``base``. A limit and a guarantee are null where there is none, shares where the
    parent's count.
    """

    account = models.ForeignKey(Account, models.CASCADE, related_name="values")
    what = models.CharField(max_length=10, choices=What)
    pool = models.ForeignKey(
        "backends.Pool", models.CASCADE, null=True, related_name="+",
        help_text="Of a guarantee; empty: of the whole cluster.",
    )  # fmt: skip
    seen = models.BigIntegerField(null=True)
    base = models.FloatField(null=True, help_text="What it comes from, when last looked at.")
    is_wanted = models.BooleanField(default=False)
    wanted = models.BigIntegerField(null=True)
    wanted_at = models.DateTimeField(null=True)
    written_at = models.DateTimeField(null=True)
    met_at = models.DateTimeField(null=True, help_text="When it was first seen as wanted.")
    drifted_at = models.DateTimeField(null=True, help_text="Since when it is not so any more.")
    refused = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["account", "what"],
                condition=models.Q(pool__isnull=True),
                name="one_value_per_account",
            ),
            models.UniqueConstraint(
                fields=["account", "what", "pool"], name="one_value_per_account_and_pool"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.what} of {self.account}"

    @property
    def state(self) -> ValueState:
        """Return where it stands: what is seen decides."""
        if not self.is_wanted:
            return ValueState.TAKEN
        if self.seen == self.wanted:
            return ValueState.IN_STEP
        if self.met_at is not None:
            return ValueState.DRIFTED
        return ValueState.REFUSED if self.refused else ValueState.WAITING
