"""Finishes the OpenAPI document: addresses without a slash, one error shape everywhere."""

from __future__ import annotations

from typing import Any

from apps.api.errors import WORDS

ERROR = {
    "type": "object",
    "description": "Every refusal has this shape.",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "field", "fields"],
            "additionalProperties": False,
            "properties": {
                "code": {"type": "string", "description": "For machines; it does not change."},
                "message": {"type": "string", "description": "For people."},
                "field": {
                    "type": "string",
                    "nullable": True,
                    "description": "The first field it is about, as workload.steps.",
                },
                "fields": {
                    "type": "object",
                    "description": "Each field it is about.",
                    "additionalProperties": {"type": "array", "items": {"type": "string"}},
                },
            },
        }
    },
}
EXAMPLE = {
    "error": {
        "code": "invalid",
        "message": "size: Ensure this value is greater than or equal to 1.",
        "field": "size",
        "fields": {"size": ["Ensure this value is greater than or equal to 1."]},
    }
}


def without_slash(endpoints: list[tuple[str, str, str, Any]]) -> list[tuple[str, str, str, Any]]:
    """Document each address of the API once, without the slash it may have at its end."""
    return [
        (path.rstrip("/") if path.startswith("/api/v1/") else path, *rest)
        for path, *rest in endpoints
        if path.startswith("/api/v1/")
    ]


def with_errors(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Document every refusal on every operation."""
    result.setdefault("components", {}).setdefault("schemas", {})["Error"] = ERROR
    content = {
        "application/json": {
            "schema": {"$ref": "#/components/schemas/Error"},
            "example": EXAMPLE,
        }
    }
    for operations in result["paths"].values():
        for operation in operations.values():
            for status, words in WORDS.items():
                operation["responses"].setdefault(
                    str(status), {"description": words, "content": content}
                )
    return result
