"""Change what one tenant is promised in one pool, and what it weighs: for admins, with a reason."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from apps.backends.models import Pool
from apps.backends.selectors import clusters_in_use
from apps.backends.services import request_tick
from apps.common import show
from apps.common.errors import Conflict, DomainError
from apps.common.text import bad_character
from apps.console.cluster_facts import able_to
from apps.console.pages import Crumb, PageInfo
from apps.console.people import viewer_of
from apps.console.quota_facts import (
    changes_of,
    changes_words,
    effect_rows,
    effect_words,
    history_of,
    number,
)
from apps.console.quota_form import QuotaForm
from apps.console.views_cluster_changes import ForAdmins, crumbs_of
from apps.quotas.accounts import want_now
from apps.quotas.effects import effects_of
from apps.quotas.models import Account
from apps.quotas.selectors import Terms, pool_gpus, promises_in, terms_of
from apps.quotas.services import change_terms
from apps.scheduling.account_rows import account_rows
from apps.tenants.models import Tenant


class EditQuota(ForAdmins):
    """One tenant's weight, and its quota in one pool."""

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """Keep whose quota it is, and where."""
        super().setup(request, *args, **kwargs)
        self.names: tuple[str, str, str] = (kwargs["tenant"], kwargs["cluster"], kwargs["pool"])

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Show what it is now."""
        self._find()
        return self._page(self._form())

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Preview what is typed, or save it."""
        self._find()
        form = self._form(request.POST)
        if not form.is_valid():
            return self._page(form, status=422)
        terms, now = form.asked(), timezone.now()
        try:
            if "preview" in request.POST:
                effects = effects_of(self.tenant, self.pool, terms, now=now)
                return self._page(form, after=terms, effects=effect_rows(effects))
            before = change_terms(
                self.tenant, self.pool, terms, was=form.seen(), by=viewer_of(request).user,
                now=now, reason=form.cleaned_data["reason"],
            )  # fmt: skip
        except Conflict as error:
            # What is there now is what the page shows beside what was typed.
            self._find()
            typed = request.POST.copy()
            typed["was"] = self._form()["was"].initial
            form = self._form(typed)
            form.refuse(error)
            return self._page(form, status=409)
        except DomainError as error:
            form.refuse(error)
            return self._page(form, status=422)
        return self._saved(before, terms)

    def _saved(self, before: Terms, terms: Terms) -> HttpResponse:
        """Ask for a tick where it counts, and go to where it shows."""
        want_now(self.tenant, now=timezone.now())
        request_tick(self.pool.cluster)
        if terms.weight != before.weight:
            for cluster in clusters_in_use():
                request_tick(cluster)
        words = changes_words(changes_of(before, terms, self.pool))
        messages.success(self.request, f"{show.cut(show.spoken(self.tenant.path))}: {words}.")
        return redirect(self._back())

    def _find(self) -> None:
        """Find whose quota it is, and where, as they are now."""
        path, cluster, pool = self.names
        if bad_character(path + pool):
            raise Http404
        pools = Pool.objects.select_related("cluster").filter(cluster__archived_at__isnull=True)
        found = pools.filter(cluster__name=cluster, name=pool).first()
        tenant = Tenant.objects.filter(path=path, archived_at__isnull=True).first()
        if found is None or tenant is None:
            raise Http404
        self.tenant, self.pool = tenant, found
        self.noted = "accounts" in able_to(found.cluster)
        self.before = terms_of(tenant, found)

    def _form(self, data: Any = None) -> QuotaForm:
        return QuotaForm(self.tenant, self.pool, self.before, data, noted=self.noted)

    def _back(self) -> str:
        view = "console:cluster-accounts" if self.noted else "console:cluster"
        return reverse(view, args=[self.pool.cluster.name])

    def _page(
        self, form: QuotaForm, status: int = 200, *, after: Terms | None = None, effects: Any = ()
    ) -> HttpResponse:
        cluster, name = self.pool.cluster, show.cut(show.spoken(self.tenant.path))
        heading = f"Quota of {name} on {self.pool}"
        where = (Crumb("Accounts", self._back()),) if self.noted else ()
        crumbs = (*crumbs_of(cluster, "")[:2], *where, Crumb(f"Quota of {name}"))
        context = {
            "page": PageInfo("quota-edit", heading, heading, crumbs),
            "tenant": self.tenant,
            "pool": self.pool,
            "form": form,
            "answer": self._answer(name, after),
            "room": self._room(),
            "previewed": after is not None,
            "changes": [] if after is None else changes_of(self.before, after, self.pool),
            "effects": effects,
            "effect_words": effect_words(cluster),
            "noted": self.noted,
            "values": self._values() if self.noted and after is None else (),
            "past": history_of(self.tenant, self.pool),
            "back": self._back(),
            "now": timezone.now(),
        }
        return render(self.request, "console/quota_form.html", context, status=status)

    def _answer(self, name: str, after: Terms | None) -> str:
        """Return what is, or what saving changes."""
        if after is not None:
            return (
                f"Saving this changes {changes_words(changes_of(self.before, after, self.pool))}."
            )
        before, pool = self.before, self.pool
        most = "" if before.ceiling is None else f", at most {show.whole(before.ceiling)},"
        promised = show.counted(before.guarantee, pool.unit)
        return f"{name} is promised {promised}{most} on {show.cut(pool.name)} and has weight {number(before.weight)}."

    def _room(self) -> str:
        """Return what is promised in the pool so far."""
        promised, gpus = promises_in(self.pool).below(None), pool_gpus(self.pool)
        return (
            f"Promised on {show.cut(self.pool.name)} to all: {show.whole(promised)} of"
            f" {show.counted(gpus, self.pool.unit)}. Nothing is changed until you save."
        )

    def _values(self) -> list[tuple[str, str]]:
        """Return how the tenant's accounts stand, in sentences."""
        accounts = Account.objects.filter(
            cluster=self.pool.cluster, tenant=self.tenant, gone_at__isnull=True
        )
        rows = account_rows(self.pool.cluster, accounts)
        return [(row.name, value.sentence) for row in rows for value in row.values]
