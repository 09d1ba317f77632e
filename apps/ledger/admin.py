"""Django admin of the ledger: prices are set through their service, all else is read-only."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model
from django.http import HttpRequest, HttpResponseRedirect
from django.utils import timezone

from apps.common.errors import DomainError
from apps.common.time import from_us
from apps.ledger.models import Interval, OpeningBalance, Price, RollUp, RollUpMark, UsageAccount
from apps.ledger.prices import set_price

if TYPE_CHECKING:
    PriceFormBase = forms.ModelForm[Price]
else:
    PriceFormBase = forms.ModelForm


class PriceForm(PriceFormBase):
    """A new price, dated."""

    per_gpu_hour = forms.DecimalField(
        label="Price per GPU-hour",
        max_digits=13,
        decimal_places=6,
        min_value=Decimal(0),
        help_text="In the installation's currency, for a physical GPU.",
    )
    from_at = forms.DateTimeField(
        label="From", required=False, help_text="UTC. Empty: from always on."
    )
    reason = forms.CharField(min_length=10, max_length=300)

    class Meta:
        model = Price
        fields = ["pool"]


@admin.register(Price)
class PriceAdmin(admin.ModelAdmin[Price]):
    """Prices: added, never edited or deleted here; one at the same instant replaces it."""

    form = PriceForm
    list_display = ["pool", "from_at", "per_gpu_hour"]
    list_filter = ["pool"]
    list_select_related = ["pool__cluster"]

    @admin.display(description="from (UTC)", ordering="from_us")
    def from_at(self, price: Price) -> datetime | str:
        """Return when it came into force."""
        return from_us(price.from_us) if price.from_us else "always"

    @admin.display(description="per GPU-hour", ordering="micros_per_gpu_hour")
    def per_gpu_hour(self, price: Price) -> str:
        """Return the price in the currency's unit."""
        return f"{Decimal(price.micros_per_gpu_hour) / 1_000_000:f}"

    def save_model(self, request: HttpRequest, obj: Price, form: PriceForm, change: bool) -> None:
        """Set the price through the service, which books, checks and writes down who did."""
        data = form.cleaned_data
        price = set_price(
            data["pool"],
            per_gpu_hour=data["per_gpu_hour"],
            from_at=data["from_at"],
            by=request.user,  # type: ignore[arg-type]  # the admin lets nobody else in
            now=timezone.now(),
            reason=data["reason"],
        )
        obj.pk, obj.from_us, obj.micros_per_gpu_hour = (
            price.pk,
            price.from_us,
            price.micros_per_gpu_hour,
        )

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> Any:
        """Add a price; a refusal is said on the form's page."""
        try:
            return super().add_view(request, form_url, extra_context)
        except DomainError as error:
            messages.error(request, error.message)
            return HttpResponseRedirect(request.get_full_path())

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Allow none: a price that was in force stays on record."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Allow none: past reports stand on it."""
        return False


class ReadOnly(admin.ModelAdmin[Any]):
    """Facts and what is computed from them: looked at, never touched."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Allow none."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Allow none."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Allow none."""
        return False


@admin.register(Interval)
class IntervalAdmin(ReadOnly):
    """Intervals, newest first."""

    list_display = ["id", "kind", "state", "cluster", "pool", "job", "gpus", "start", "end"]
    list_filter = ["cluster", "kind"]
    list_select_related = ["cluster", "pool__cluster", "job"]
    ordering = ["-id"]

    @admin.display(description="start (UTC)")
    def start(self, row: Interval) -> datetime:
        """Return the start as a date."""
        return from_us(row.start_us)

    @admin.display(description="end (UTC)")
    def end(self, row: Interval) -> datetime | None:
        """Return the end as a date; None: open."""
        return None if row.end_us is None else from_us(row.end_us)


@admin.register(RollUp)
class RollUpAdmin(ReadOnly):
    """Roll-ups, newest first."""

    list_display = ["quarter", "cluster", "pool", "tenant", "state", "gpu_us"]
    list_filter = ["cluster", "state"]
    list_select_related = ["cluster", "pool__cluster", "tenant"]
    ordering = ["-id"]

    @admin.display(description="quarter-hour (UTC)")
    def quarter(self, row: RollUp) -> datetime:
        """Return the quarter-hour as a date."""
        return from_us(row.quarter_us)


@admin.register(UsageAccount)
class UsageAccountAdmin(ReadOnly):
    """Decayed usage as kept; ``manage.py rebuild_usage`` makes it anew."""

    list_display = ["cluster", "tenant", "pool", "gpu_hours", "running", "as_of"]
    list_filter = ["cluster"]
    list_select_related = ["cluster", "tenant", "pool__cluster"]

    @admin.display(description="as of (UTC)")
    def as_of(self, row: UsageAccount) -> datetime:
        """Return the instant it holds for."""
        return from_us(row.as_of_us)


@admin.register(OpeningBalance)
class OpeningBalanceAdmin(ReadOnly):
    """Usage tenants brought along."""

    list_display = ["cluster", "tenant", "gpu_hours"]
    list_select_related = ["cluster", "tenant"]


@admin.register(RollUpMark)
class RollUpMarkAdmin(ReadOnly):
    """Up to where each cluster is rolled up."""

    list_display = ["cluster", "until"]
    list_select_related = ["cluster"]

    @admin.display(description="until (UTC)")
    def until(self, row: RollUpMark) -> datetime:
        """Return the mark as a date."""
        return from_us(row.until_us)
