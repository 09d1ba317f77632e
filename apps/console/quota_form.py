"""The form of what one tenant is promised in one pool, and of what it weighs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django import forms

from apps.backends.models import Pool
from apps.common import show
from apps.common.errors import DomainError
from apps.console.cluster_forms import WHY
from apps.console.quota_facts import NONE_OF_IT, number
from apps.console.views_actions import ReasonForm
from apps.quotas.selectors import Terms
from apps.tenants.models import Tenant

HELP = {
    "guarantee": "Promised by Rollcall, by whom it starts and evicts.",
    "ceiling": "Never above, in no case. Empty: none.",
    "quota_weight": "Its part of what is left of this pool. Empty: the tenant’s own weight.",
    "weight": "Its share among its siblings, on every cluster; 0 runs only when nobody else waits.",
}
THERE = {
    "guarantee": "In Slurm, which knows no promise, it is noted in the account’s Description.",
    "ceiling": "In Slurm it is the account’s GrpTRES=gres/gpu, of all pools together.",
    "quota_weight": "Slurm is not told: its shares are of the whole cluster.",
    "weight": "In Slurm it is the account’s Fairshare, as its siblings’ are to their weights.",
}


def plain(value: float | None) -> float | None:
    """Return a number as one types it: without a fraction where there is none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class QuotaForm(ReasonForm):
    """Guarantee, ceiling and weights, as they are or as they are to be, and why."""

    guarantee = forms.IntegerField()
    ceiling = forms.IntegerField(required=False)
    weight = forms.FloatField()
    quota_weight = forms.FloatField(required=False)
    was = forms.CharField(required=False, widget=forms.HiddenInput)

    field_order = ("guarantee", "ceiling", "weight", "quota_weight", "reason", "was")

    def __init__(
        self, tenant: Tenant, pool: Pool, terms: Terms, data: Any = None, *, noted: bool
    ) -> None:
        known = asdict(terms)
        typed = {field: plain(value) for field, value in known.items()}
        super().__init__(data, label_suffix="", initial={**typed, "was": json.dumps(known)})
        unit = f"{pool.unit}s on {show.cut(pool.name)}"
        self.fields["guarantee"].label = f"Guarantee, {unit}"
        self.fields["ceiling"].label = f"Ceiling, {unit}"
        self.fields["weight"].label = f"Weight of {show.cut(show.spoken(tenant.path))}"
        self.fields["quota_weight"].label = f"Weight on {show.cut(pool.name)} alone"
        for field, text in HELP.items():
            now = f"Now {number(known[field], NONE_OF_IT.get(field, 'none'))}."
            there = f" {THERE[field]}" if noted else ""
            self.fields[field].help_text = f"{now} {text}{there}"
            self.fields[field].widget.attrs["inputmode"] = "decimal"
        self.fields["reason"].help_text = WHY
        # Why is asked once it is to be done, not for a preview.
        self.fields["reason"].required = "preview" not in self.data

    def shown(self) -> list[forms.BoundField]:
        """Return the fields of a quota, as they are laid out; to save them takes a reason."""
        self.fields["reason"].required = True
        return [self[name] for name in self.field_order if name not in ("reason", "was")]

    def asked(self) -> Terms:
        """Return what was typed."""
        return Terms(**{name: self.cleaned_data[name] for name in HELP})

    def seen(self) -> Terms | None:
        """Return what it was when the page was drawn; None: that cannot be told."""
        try:
            return Terms(**json.loads(self.cleaned_data["was"]))
        except (ValueError, TypeError):
            return None

    def refuse(self, error: DomainError) -> None:
        """Put a service's refusal where its value was typed."""
        self.add_error(error.field if error.field in self.fields else None, error.message)
