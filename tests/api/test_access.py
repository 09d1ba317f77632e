"""Who may call at all: tokens, sessions with CSRF, and every other address in the one shape."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from apps.accounts.models import Token, User
from apps.accounts.services import authenticate_token, issue_token, revoke_token
from apps.jobs.models import Job
from tests.api.conftest import Caller
from tests.api.test_jobs import JOBS, refusal
from tests.factories import NOW, secret_of

ADDRESSES = [
    ("get", "/api/v1/me"),
    ("get", "/api/v1/jobs"),
    ("post", "/api/v1/jobs"),
    ("get", "/api/v1/jobs/1"),
    ("post", "/api/v1/jobs/1/cancel"),
    ("post", "/api/v1/jobs/1/hold"),
    ("post", "/api/v1/jobs/1/release"),
    ("post", "/api/v1/jobs/1/confirm-checkpoint"),
    ("get", "/api/v1/jobs/1/explain"),
    ("get", "/api/v1/evictions"),
    ("get", "/api/v1/evictions/1"),
    ("get", "/api/v1/clusters"),
    ("get", "/api/v1/clusters/atlas"),
    ("get", "/api/v1/clusters/atlas/preflight"),
    ("post", "/api/v1/clusters"),
    ("patch", "/api/v1/clusters/atlas"),
    ("post", "/api/v1/clusters/atlas/grade"),
    ("get", "/api/v1/clusters/atlas/accounts"),
    ("post", "/api/v1/clusters/atlas/accounts"),
    ("get", "/api/v1/tenants/vision/quotas/atlas/h100"),
    ("put", "/api/v1/tenants/vision/quotas/atlas/h100"),
    ("put", "/api/v1/tenants/vision/weight"),
    ("get", "/api/v1/queues"),
    ("get", "/api/v1/queues/1"),
    ("get", "/api/v1/usage"),
    ("get", "/api/v1/tokens"),
    ("post", "/api/v1/tokens"),
    ("delete", "/api/v1/tokens/1"),
    ("get", "/api/v1/me/cluster-tokens"),
    ("put", "/api/v1/me/cluster-tokens/atlas"),
    ("delete", "/api/v1/me/cluster-tokens/atlas"),
]


@pytest.mark.parametrize(("method", "address"), ADDRESSES)
def test_nobody_gets_in_without_credentials(method: str, address: str, db: None) -> None:
    answer = getattr(APIClient(), method)(address)

    assert refusal(answer, 401)["code"] == "not_authenticated"
    assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("word", ["Bearer", "Token", "bearer"])
def test_a_token_names_its_user(word: str, bob: User) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"{word} {secret_of(bob)}")

    me = client.get("/api/v1/me").json()

    assert me["username"] == "bob"
    assert me["tenants"] == [{"tenant": "vision", "role": "member"}]
    assert me["token"]["name"] == "test"
    assert not me["is_admin"]


@pytest.mark.parametrize("secret", ["", "x", "rc_" + "a" * 43, "é", "\x00"])
def test_a_secret_that_is_none_is_refused(secret: str, bob: User) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")

    refusal(client.get("/api/v1/me"), 401)


def test_a_revoked_token_is_refused(bob: User) -> None:
    token, secret = issue_token(bob, name="ci", now=NOW)
    revoke_token(token, now=NOW)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")

    refusal(client.get("/api/v1/me"), 401)


def test_the_token_of_someone_who_left_is_refused(bob: User) -> None:
    secret = secret_of(bob)
    User.objects.update(is_active=False)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")

    refusal(client.get("/api/v1/me"), 401)


def test_a_session_needs_the_csrf_token(bob: User, body: dict[str, Any]) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(bob)

    assert client.get("/api/v1/me").json()["username"] == "bob"
    refusal(client.post(JOBS, body, format="json"), 403)
    assert not Job.objects.exists()

    client.cookies["csrftoken"] = "a" * 32
    answer = client.post(JOBS, body, format="json", HTTP_X_CSRFTOKEN="a" * 32)
    assert answer.status_code == 201


class TestTokens:
    def test_a_person_gives_itself_one(self, bob: User) -> None:
        client = APIClient()
        client.force_login(bob)

        made = client.post("/api/v1/tokens", {"name": "ci 🚀"}, format="json").json()

        token = authenticate_token(made["secret"], now=timezone.now())
        assert token is not None
        assert token.user == bob
        assert made["secret"] not in str(list(Token.objects.values()))
        (shown,) = client.get("/api/v1/tokens").json()["results"]
        assert "secret" not in shown
        assert shown["prefix"] == made["secret"][:8]

    def test_a_token_gives_out_no_others(self, call: Caller, bob: User) -> None:
        refusal(call(bob).post("/api/v1/tokens", {"name": "more"}), 403)

        assert Token.objects.count() == 1

    def test_a_person_takes_it_back_and_nobody_elses(
        self, call: Caller, alice: User, bob: User, carol: User
    ) -> None:
        client = call(bob)
        mine = Token.objects.get()

        for other in (alice, carol):
            refusal(call(other).delete(f"/api/v1/tokens/{mine.pk}"), 404)
        assert client.delete(f"/api/v1/tokens/{mine.pk}").status_code == 204
        refusal(client.get("/api/v1/me"), 401)

    @pytest.mark.parametrize("name", ["", "x" * 81, None, 7])
    def test_a_bad_name_is_refused(self, name: Any, bob: User) -> None:
        client = APIClient()
        client.force_login(bob)

        answer = client.post("/api/v1/tokens", {"name": name}, format="json")

        assert refusal(answer, 400)["field"] == "name"


@pytest.mark.parametrize("address", ["/api/v1/nothing", "/api/nothing", "/api/v1/jobs/x", "/api/"])
def test_an_address_that_is_none_has_the_shape_too(address: str, call: Caller, bob: User) -> None:
    for client in (APIClient(), call(bob)):
        for method in ("get", "post", "delete"):
            assert refusal(getattr(client, method)(address), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "address"),
    [
        ("delete", "/api/v1/jobs"),
        ("patch", "/api/v1/jobs/1"),
        ("get", "/api/v1/jobs/1/cancel"),
        ("post", "/api/v1/usage"),
        ("options", "/api/v1/jobs"),
    ],
)
def test_a_method_that_is_none_is_refused(
    method: str, address: str, call: Caller, bob: User
) -> None:
    assert refusal(getattr(call(bob), method)(address), 405)["code"] == "method_not_allowed"


def test_a_slash_at_the_end_changes_nothing(call: Caller, bob: User, body: dict[str, Any]) -> None:
    client = call(bob)

    made = client.post(f"{JOBS}/", body)

    assert made.status_code == 201
    assert client.get(f"{JOBS}/{made.json()['id']}/").status_code == 200
    assert client.get("/api/v1/me/").status_code == 200


def test_an_answer_is_json_whatever_is_accepted(call: Caller, bob: User) -> None:
    answer = call(bob).get("/api/v1/me", HTTP_ACCEPT="text/html, image/png;q=0.1")

    assert answer["Content-Type"] == "application/json"
