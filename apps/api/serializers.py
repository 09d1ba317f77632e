"""Fields that take a value for what it is, and serializers that refuse what they do not know."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiSerializerExtension
from rest_framework import serializers
from rest_framework.fields import empty

from apps.api.errors import shown
from apps.common.text import bad_character

LARGEST_ID = 2**63 - 1


class WholeNumber(serializers.IntegerField):
    """A JSON integer: no text, no 8.0, no true."""

    def to_internal_value(self, data: Any) -> int:
        """Return the integer."""
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class Number(serializers.FloatField):
    """A JSON number: no text, no true."""

    def to_internal_value(self, data: Any) -> float:
        """Return the number."""
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        try:
            return super().to_internal_value(data)
        except OverflowError:
            self.fail("invalid")


class Flag(serializers.BooleanField):
    """A JSON true or false."""

    def to_internal_value(self, data: Any) -> bool:
        """Return the truth value."""
        if not isinstance(data, bool):
            self.fail("invalid", input=shown(data))
        return data


class Text(serializers.CharField):
    """JSON text of one line, trimmed, without control characters."""

    def to_internal_value(self, data: Any) -> str:
        """Return the text."""
        if not isinstance(data, str):
            self.fail("invalid")
        text = data.strip()
        if character := bad_character(text[: self.max_length]):
            raise serializers.ValidationError(f"It holds the control character {character}.")
        return text


class Instant(serializers.DateTimeField):
    """An instant with its zone, as 2026-01-05T12:00:00Z."""

    def enforce_timezone(self, value: datetime) -> datetime:
        """Return the instant in UTC; one without a zone could be any."""
        if timezone.is_naive(value):
            raise serializers.ValidationError("Give a time zone, as 2026-01-05T12:00:00Z.")
        return super().enforce_timezone(value)

    def to_internal_value(self, value: Any) -> datetime:
        """Return the instant."""
        if not isinstance(value, str):
            self.fail("invalid", format="YYYY-MM-DDThh:mm:ss[.uuuuuu][Z|+hh:mm]")
        return super().to_internal_value(value)


class Strict(serializers.Serializer[Any]):
    """A body whose every field is known: any other is refused by its name."""

    def run_validation(self, data: Any = empty) -> Any:
        """Return the validated fields, and refuse unknown ones with all other refusals."""
        unknown = {}
        if isinstance(data, Mapping):
            known = {name for name, field in self.fields.items() if not field.read_only}
            unknown = {
                shown(name): ["There is no such field."] for name in data if name not in known
            }
        try:
            value = super().run_validation(data)
        except serializers.ValidationError as error:
            if unknown and isinstance(error.detail, dict):
                raise serializers.ValidationError({**unknown, **error.detail}) from error
            raise
        if unknown:
            raise serializers.ValidationError(unknown)
        return value


class Query(serializers.Serializer[Any]):
    """The parameters an address takes; ``Endpoint.query`` refuses any other."""


class Paging(Query):
    """What every list takes."""

    after = serializers.CharField(
        required=False, max_length=19, help_text="A cursor: rows behind it."
    )
    before = serializers.CharField(
        required=False, max_length=19, help_text="A cursor: rows before it."
    )
    page_size = serializers.IntegerField(
        required=False, min_value=1, max_value=200, default=50, help_text="Rows of a page."
    )


class StrictScheme(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]  # theirs
    """Tells the schema that a strict body takes no other fields."""

    target_class = "apps.api.serializers.Strict"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        """Return the schema of the body."""
        schema: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        if direction == "request":
            schema["additionalProperties"] = False
        return schema
