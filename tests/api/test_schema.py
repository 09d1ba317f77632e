"""The OpenAPI document says what the endpoints do."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.test import Client
from drf_spectacular.views import SpectacularAPIView

from apps.api.docs import ONE_AT_A_TIME
from tests.api.test_access import ADDRESSES

REFUSALS = {"400", "401", "403", "404", "405", "409", "415", "429", "500"}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The document as it is served."""
    from drf_spectacular.generators import SchemaGenerator

    document: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return document


def test_it_is_valid_and_free_of_warnings(tmp_path: Any) -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "s.yaml"))

    assert yaml.safe_load((tmp_path / "s.yaml").read_text())["info"]["title"] == "Rollcall"


def test_every_operation_documents_every_refusal(schema: dict[str, Any]) -> None:
    operations = [
        (path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]

    assert len(operations) >= len(ADDRESSES)
    for path, method, operation in operations:
        assert set(operation["responses"]) >= REFUSALS, (method, path)
        shape = operation["responses"]["400"]["content"]["application/json"]["schema"]
        assert shape == {"$ref": "#/components/schemas/Error"}


def test_every_address_is_documented_without_a_slash(schema: dict[str, Any]) -> None:
    assert not [path for path in schema["paths"] if path.endswith("/")]
    assert {"/api/v1/jobs", "/api/v1/jobs/{id}/cancel", "/api/v1/usage"} <= set(schema["paths"])


def test_a_body_takes_no_other_fields(schema: dict[str, Any]) -> None:
    body = schema["components"]["schemas"]["SubmissionRequest"]

    assert body["additionalProperties"] is False
    assert set(body["required"]) == {"name", "tenant", "cluster", "pool"}
    assert (
        body["properties"]["name"] | {"type": "string", "maxLength": 200}
        == body["properties"]["name"]
    )
    assert body["properties"]["size"]["minimum"] == 1


def test_a_confirmation_names_its_attempt_and_answers_with_the_eviction(
    schema: dict[str, Any],
) -> None:
    post = schema["paths"]["/api/v1/jobs/{id}/confirm-checkpoint"]["post"]
    body = schema["components"]["schemas"]["ConfirmationRequest"]

    answer = post["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/EvictionShown"}
    assert body["required"] == ["attempt"]
    assert body["additionalProperties"] is False
    assert schema["components"]["schemas"]["EvictionModeEnum"]["enum"] == [
        "kill", "checkpoint", "demote", "shrink",
    ]  # fmt: skip


def test_a_list_answers_with_one_page(schema: dict[str, Any]) -> None:
    answers = {
        path: found["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        for path, found in schema["paths"].items()
        if "get" in found
        and any(p["name"] == "page_size" for p in found["get"].get("parameters", ()))
    }

    assert len(answers) >= 5
    for path, answer in answers.items():
        assert answer["$ref"].endswith("Page"), path


def test_the_key_is_a_documented_header(schema: dict[str, Any]) -> None:
    names = {p["name"]: p["in"] for p in schema["paths"]["/api/v1/jobs"]["post"]["parameters"]}

    assert names == {"Idempotency-Key": "header", "dry_run": "query"}


def test_it_is_served_with_a_page_that_fetches_nothing_from_elsewhere(db: None) -> None:
    client = Client()

    document = client.get("/api/schema/")
    page = client.get("/api/docs/")

    assert document.status_code == page.status_code == 200
    assert yaml.safe_load(document.content)["openapi"].startswith("3.")
    text = page.content.decode()
    assert "swagger-ui" in text
    assert "https://" not in text
    assert "http://" not in text.replace("http://testserver", "")


def test_one_document_is_made_at_a_time(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    make = SpectacularAPIView.get

    def watched(self: SpectacularAPIView, request: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(ONE_AT_A_TIME.locked())
        return make(self, request, *args, **kwargs)

    monkeypatch.setattr(SpectacularAPIView, "get", watched)

    assert Client().get("/api/schema/").status_code == 200
    assert made == [True]
    assert not ONE_AT_A_TIME.locked()


@pytest.mark.parametrize("path", ["/api/v2/jobs", "/api/v1/tokens/a%0Ab", "/api/"])
def test_an_address_that_there_is_not_is_refused_in_the_same_shape(db: None, path: str) -> None:
    answer = Client().get(path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
