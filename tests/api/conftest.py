"""Callers of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import User
from tests.factories import secret_of

Caller = Callable[[User], APIClient]

JOBS = "/api/v1/jobs"


@pytest.fixture
def call() -> Caller:
    """A client with a token of the user."""

    def as_user(user: User) -> APIClient:
        client = APIClient()
        client.default_format = "json"
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret_of(user)}")
        return client

    return as_user


@pytest.fixture
def body(vision: Any, pool: Any) -> dict[str, Any]:
    """The smallest submission."""
    return {"name": "train", "tenant": "vision", "cluster": "atlas", "pool": "h100"}


def refusal(response: Any, status: int) -> dict[str, Any]:
    """Check the one shape of a refusal, and return what is in it."""
    assert response.status_code == status, response.content
    told = response.json()
    assert set(told) == {"error"}
    assert set(told["error"]) == {"code", "message", "field", "fields"}
    assert isinstance(told["error"]["message"], str)
    assert told["error"]["message"]
    return told["error"]
