"""The operators' admin: every model is there, job state is read-only, secrets are not shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from apps.accounts.models import Token, User
from apps.accounts.services import issue_token
from apps.audit.models import Entry
from apps.backends.models import Cluster, Pool
from apps.jobs.models import Job
from apps.queues.models import ClusterPolicy
from apps.quotas.models import Quota
from apps.tenants.models import Tenant
from tests.factories import NOW, make_job, make_tenant

OURS = [model for model in apps.get_models() if model.__module__.startswith("apps.")]
WRITTEN_BY_SERVICES = {
    "jobs.job", "jobs.attempt", "jobs.member", "jobs.move", "jobs.reservation", "jobs.arrival",
    "ledger.interval", "scheduling.tick", "scheduling.verdict", "scheduling.standing",
    "audit.entry", "accounts.token", "backends.node",
}  # fmt: skip


@pytest.fixture
def operator(client: Client, db: None) -> Client:
    """A browser of someone who may do everything."""
    user = User.objects.create(username="op", is_staff=True, is_superuser=True, is_admin=True)
    client.force_login(user)
    return client


@pytest.fixture
def job(vision: Tenant, pool: Pool, bob: User) -> Job:
    """A waiting job, and some of everything beside it."""
    issue_token(bob, name="ci", now=NOW)
    return make_job(vision, pool, by=bob, name="<script>alert(1)</script>")


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.label_lower)
def test_every_model_is_registered_and_its_list_opens(
    model: Any, operator: Client, job: Job
) -> None:
    assert model in admin.site._registry, "register it"

    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    answer = operator.get(reverse(name))

    assert answer.status_code == 200
    assert b"<script>alert(1)" not in answer.content


@pytest.mark.parametrize("label", sorted(WRITTEN_BY_SERVICES))
def test_what_services_write_nobody_edits(label: str, operator: Client, job: Job) -> None:
    name = label.replace(".", "_")
    rows = apps.get_model(label)._default_manager
    row, count = rows.first(), rows.count()

    assert operator.get(reverse(f"admin:{name}_add")).status_code == 403
    if row is not None:
        page = reverse(f"admin:{name}_change", args=[row.pk])
        assert operator.get(page).status_code == 200
        assert operator.post(page, {"state": "SUCCEEDED"}).status_code == 403
        assert operator.post(reverse(f"admin:{name}_delete", args=[row.pk])).status_code == 403
    listed = reverse(f"admin:{name}_changelist")
    answer = operator.post(
        listed, {"action": "delete_selected", "_selected_action": [1], "post": "yes"}
    )
    assert answer.status_code in (200, 302)
    assert rows.count() == count


def test_no_page_shows_a_digest(operator: Client, job: Job) -> None:
    token = Token.objects.get()
    for page in (
        reverse("admin:accounts_token_changelist"),
        reverse("admin:accounts_token_change", args=[token.pk]),
        reverse("admin:accounts_user_change", args=[token.user_id]),
    ):
        assert token.digest not in operator.get(page).content.decode()


def test_a_person_is_shown_with_their_places(operator: Client, alice: User) -> None:
    page = operator.get(reverse("admin:accounts_user_change", args=[alice.pk]))

    assert "memberships-0-tenant" in page.content.decode()


def test_tokens_are_revoked_in_the_list(operator: Client, job: Job) -> None:
    token = Token.objects.get()

    operator.post(
        reverse("admin:accounts_token_changelist"),
        {"action": "revoke", "_selected_action": [token.pk]},
    )

    token.refresh_from_db()
    assert token.revoked_at is not None


class TestTenants:
    def save(self, operator: Client, tenant: Tenant | None, **asked: Any) -> Any:
        page = (
            reverse("admin:tenants_tenant_add")
            if tenant is None
            else reverse("admin:tenants_tenant_change", args=[tenant.pk])
        )
        form = {
            "parent": "",
            "name": "vision",
            "weight": "1",
            "reason": "because",
            "memberships-TOTAL_FORMS": 0,
            "memberships-INITIAL_FORMS": 0,
        }
        return operator.post(page, form | asked)

    def test_one_is_added_by_the_service(self, operator: Client, vision: Tenant) -> None:
        assert self.save(operator, None, name="audio", parent=vision.pk).status_code == 302

        assert Tenant.objects.get(name="audio").path == "vision/audio"
        assert Entry.objects.filter(verb="created", object_name="vision/audio").exists()

    def test_one_is_renamed_with_all_below(self, operator: Client, vision: Tenant) -> None:
        make_tenant("vision/perception")

        assert self.save(operator, vision, name="sight", weight="2").status_code == 302

        assert set(Tenant.objects.values_list("path", "weight")) == {
            ("sight", 2.0),
            ("sight/perception", 1.0),
        }

    @pytest.mark.parametrize(
        "asked", [{"weight": "-1"}, {"weight": "nan"}, {"name": "a/b"}, {"name": "NLP"}]
    )
    def test_what_the_service_refuses_the_form_says(
        self, asked: dict[str, str], operator: Client, vision: Tenant, nlp: Tenant
    ) -> None:
        answer = self.save(operator, vision, **asked)

        assert answer.status_code == 200
        assert answer.context["adminform"].form.errors
        assert Tenant.objects.filter(path="vision", weight=1.0).exists()

    def test_one_is_archived_and_never_deleted(self, operator: Client, vision: Tenant) -> None:
        operator.post(
            reverse("admin:tenants_tenant_changelist"),
            {"action": "archive", "_selected_action": [vision.pk]},
        )

        vision.refresh_from_db()
        assert vision.archived_at is not None
        page = reverse("admin:tenants_tenant_delete", args=[vision.pk])
        assert operator.post(page, {"post": "yes"}).status_code == 403


class TestQuotas:
    def test_a_promise_that_cannot_be_kept_is_refused_in_words(
        self, operator: Client, vision: Tenant, pool: Pool
    ) -> None:
        asked = {
            "tenant": vision.pk,
            "pool": pool.pk,
            "guarantee": 33,
            "ceiling": "",
            "weight": "",
            "reason": "more",
        }

        answer = operator.post(reverse("admin:quotas_quota_add"), asked)

        assert "above its 32 GPUs" in answer.content.decode()
        assert not Quota.objects.exists()

        assert (
            operator.post(reverse("admin:quotas_quota_add"), asked | {"guarantee": 32}).status_code
            == 302
        )
        assert Quota.objects.get().guarantee == 32
        entries = Entry.objects.filter(verb="quota changed")
        assert [(entry.reason, str(entry.actor)) for entry in entries] == [("more", "op")]

    def test_a_weight_below_0_is_refused(
        self, operator: Client, vision: Tenant, pool: Pool
    ) -> None:
        asked = {
            "tenant": vision.pk,
            "pool": pool.pk,
            "guarantee": 1,
            "weight": "-1",
            "reason": "x",
        }

        answer = operator.post(reverse("admin:quotas_quota_add"), asked)

        assert "weight" in answer.context["adminform"].form.errors


class TestPolicies:
    @pytest.fixture
    def policy(self, cluster: Cluster) -> ClusterPolicy:
        return ClusterPolicy.objects.create(cluster=cluster)

    def save(self, operator: Client, policy: ClusterPolicy, **asked: Any) -> Any:
        fields = [f.name for f in ClusterPolicy._meta.fields if f.name not in ("id", "cluster")]
        form = {
            name: "" if getattr(policy, name) is None else getattr(policy, name) for name in fields
        }
        page = reverse("admin:queues_clusterpolicy_change", args=[policy.pk])
        return operator.post(page, form | {"reason": "try"} | asked)

    def test_a_half_life_of_0_is_refused_in_words(
        self, operator: Client, policy: ClusterPolicy
    ) -> None:
        answer = self.save(operator, policy, half_life_seconds=0)

        assert "H = 0 is refused; choose none for no decay." in answer.content.decode()
        policy.refresh_from_db()
        assert policy.half_life_seconds == 604_800

    def test_a_change_is_written_down_and_asks_for_a_tick(
        self, operator: Client, policy: ClusterPolicy, cluster: Cluster
    ) -> None:
        assert self.save(operator, policy, half_life_seconds="").status_code == 302

        policy.refresh_from_db()
        cluster.refresh_from_db()
        assert policy.half_life_seconds is None
        assert Entry.objects.get(verb="policy changed").changes == {
            "half_life_seconds": [604_800, None]
        }
        assert cluster.tick_requested_at is not None
