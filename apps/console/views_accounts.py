"""A cluster's own accounts beside the tenants they stand for, and what becomes of one that drifted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from apps.backends.models import Cluster
from apps.common import show
from apps.common.errors import DomainError
from apps.console.account_lines import NOWHERE, number, qos_lines, users_tables
from apps.console.cluster_forms import WHY
from apps.console.marks import Alert
from apps.console.pages import Crumb, Export, Foot, PageInfo
from apps.console.people import viewer_of
from apps.console.views_actions import ReasonForm
from apps.console.views_cluster_changes import ForAdmins, crumbs_of
from apps.console.views_clusters import ClusterPage, cluster_or_404
from apps.quotas.account_users import qos_of
from apps.quotas.accounts import settle_account
from apps.quotas.models import Account, AccountsLook, ValueState, What
from apps.scheduling.account_rows import AccountRow, account_rows, accounts_visible_to

GLYPHS = {
    ValueState.DRIFTED: ("warn", "bad"),
    ValueState.REFUSED: ("cross", "bad"),
    ValueState.WAITING: ("pending", "ink3"),
    ValueState.IN_STEP: ("check", "ok"),
    ValueState.TAKEN: ("dot", "ink3"),
}
APART = (ValueState.DRIFTED, ValueState.REFUSED)


@dataclass(frozen=True, slots=True)
class Pair:
    """A number of both sides; ``off``: they differ by more than rounding."""

    theirs: str
    ours: str
    off: bool


@dataclass(frozen=True, slots=True)
class Line:
    """An account as a line of the table."""

    row: AccountRow
    indent: int
    glyph: str
    tone: str
    label: str
    sentences: tuple[str, ...]
    shares: str
    gpus: str
    noted: tuple[str, ...]
    share: Pair
    usage: Pair
    factor: Pair
    apart: bool


def _pair(theirs: float | None, ours: float | None) -> Pair:
    off = theirs is not None and ours is not None and abs(theirs - ours) >= 0.000_001
    return Pair(number(theirs), number(ours), off)


def _noted(row: AccountRow) -> list[tuple[str, int]]:
    """Return the guarantees that are noted at an account, by pool."""
    return [(v.pool, v.theirs) for v in row.values if v.pool is not None and v.theirs is not None]


def line_of(row: AccountRow) -> Line:
    """Return an account as the table shows it."""
    state = ValueState(row.state)
    values = {value.what: value for value in row.values}
    shares, gpus = values.get(What.SHARES), values.get(What.GPUS)
    told = tuple(
        v.sentence for v in row.values if v.state not in (ValueState.TAKEN, ValueState.IN_STEP)
    )
    return Line(
        row,
        min(row.depth, 8),
        *GLYPHS[state],
        str(state.label),
        told,
        NOWHERE if shares is None or shares.theirs is None else show.whole(shares.theirs),
        NOWHERE if gpus is None or gpus.theirs is None else show.whole(gpus.theirs),
        tuple(f"{show.whole(count)} for {pool}" for pool, count in _noted(row)),
        _pair(row.theirs.share, row.ours.share),
        _pair(row.theirs.usage_share, row.ours.usage_share),
        _pair(row.theirs.factor, row.ours.factor),
        state in APART,
    )


class AccountsPage(ClusterPage):
    """The accounts of one cluster."""

    key = "cluster-accounts"
    heading = "Accounts"
    template = "console/accounts.html"
    parameters = frozenset()

    @cached_property
    def look(self) -> AccountsLook:
        """Return when they were read, and what was wrong."""
        return AccountsLook.objects.filter(cluster=self.cluster).first() or AccountsLook()

    @cached_property
    def rows(self) -> list[AccountRow]:
        """Return the accounts the reader may see, in the order of their tree."""
        return account_rows(self.cluster, accounts_visible_to(self.viewer.user, self.cluster))

    def build(self) -> dict[str, Any]:
        """Return the template's context."""
        self.narrow()
        lines = [line_of(row) for row in self.rows]
        alerts = []
        if self.look.trouble:
            why = self.look.trouble if self.viewer.is_admin else "Its accounts could not be read."
            alerts.append(Alert("warn", why))
        return {
            "cluster": self.cluster,
            "answer": self.words(lines),
            "alerts": alerts,
            "lines": lines,
            "users": users_tables(self.rows),
            "qos": qos_lines(qos_of(self.look.qos)),
            "pools": self.scope.all_pools,
            "look": self.look,
            "now": timezone.now(),
            "may": self.viewer.is_admin,
        }

    def words(self, lines: list[Line]) -> str:
        """Return how many accounts there are, and how many differ."""
        if self.look.read_at is None:
            return f"The accounts of {self.cluster.name} have not been read yet."
        if not lines:
            return "None of its accounts is one of yours."
        apart = sum(line.apart for line in lines)
        said = show.counted(len(lines), "account")
        return (
            f"{said}; {show.whole(apart)} not as wanted here." if apart else f"{said}, all in step."
        )

    def info(self, **changes: Any) -> PageInfo:
        """Return what base.html says around the accounts."""
        name = self.cluster.name
        values = {"title": f"Accounts of {name}", "heading": f"{name} · accounts"}
        return super().info(**(values | changes))

    def crumbs(self) -> tuple[Crumb, ...]:
        """Return the list, the cluster, and this."""
        return crumbs_of(self.cluster, "Accounts")

    def foot(self, of: str = "of the accounts") -> Foot:
        """Return the end of the page."""
        return super().foot(of)

    def export(self) -> Export:
        """Return the accounts for machines."""
        self.narrow()
        columns = [
            "account", "parent", "tenant", "state", "shares", "gpu_limit", "guarantees_noted",
            "norm_shares_theirs", "norm_shares_ours", "usage_share_theirs", "usage_share_ours",
            "factor_theirs", "factor_ours",
        ]  # fmt: skip
        facts = {
            "read_at": show.iso(self.look.read_at) if self.look.read_at else None,
            "users": [
                {"account": row.name, **asdict(one)} for row in self.rows for one in row.people
            ],
            "qos": [asdict(one) for one in qos_of(self.look.qos)],
        }
        return Export(f"{self.cluster.name}-accounts", columns, self.account_lines(), facts)

    def account_lines(self) -> Iterator[list[Any]]:
        """Return a line for each account."""
        for row in self.rows:
            values = {value.what: value.theirs for value in row.values}
            yield [
                row.name, row.parent, row.tenant, row.state, values.get(What.SHARES),
                values.get(What.GPUS), " ".join(f"{pool}={count}" for pool, count in _noted(row)),
                row.theirs.share, row.ours.share, row.theirs.usage_share,
                row.ours.usage_share, row.theirs.factor, row.ours.factor,
            ]  # fmt: skip


class SettleForm(ReasonForm):
    """Whose numbers hold from now on, and why."""

    keep = forms.ChoiceField(
        choices=[
            ("ours", "Write what is wanted here again"),
            ("theirs", "Take it as it is on the cluster"),
        ],
        widget=forms.RadioSelect,
    )

    field_order = ("keep", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        self.fields["reason"].help_text = WHY


class SettleAccount(ForAdmins):
    """Decide on an account that is not as it is wanted here."""

    def get(self, request: HttpRequest, name: str, account: str) -> HttpResponse:
        """Show how it stands."""
        cluster = cluster_or_404(name)
        return self._page(cluster, account, SettleForm())

    def post(self, request: HttpRequest, name: str, account: str) -> HttpResponse:
        """Decide."""
        cluster = cluster_or_404(name)
        form = SettleForm(request.POST)
        if not form.is_valid():
            return self._page(cluster, account, form, status=422)
        try:
            settle_account(
                cluster, account, keep=form.cleaned_data["keep"], by=viewer_of(request).user,
                now=timezone.now(), reason=form.cleaned_data["reason"],
            )  # fmt: skip
        except Account.DoesNotExist:
            raise Http404 from None
        except DomainError as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
            return self._page(cluster, account, form, status=422)
        messages.success(request, f"{account} is decided on.")
        return redirect("console:cluster-accounts", cluster.name)

    def _page(
        self, cluster: Cluster, account: str, form: SettleForm, status: int = 200
    ) -> HttpResponse:
        rows = account_rows(cluster, Account.objects.filter(cluster=cluster, name=account))
        if not rows:
            raise Http404
        heading = f"Account {account} of {cluster}"
        crumbs = (*crumbs_of(cluster, "")[:2],
                  Crumb("Accounts", reverse("console:cluster-accounts", args=[cluster.name])),
                  Crumb(account))  # fmt: skip
        context = {
            "page": PageInfo("account-settle", heading, heading, crumbs),
            "cluster": cluster,
            "line": line_of(rows[0]),
            "form": form,
        }
        return render(self.request, "console/account_settle.html", context, status=status)
