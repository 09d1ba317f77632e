"""The one shape of every refusal: a code, a sentence, and the field it is about."""

from __future__ import annotations


class DomainError(Exception):
    """A refusal a person can act on; nothing was written when it is raised."""

    code = "refused"

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        if code is not None:
            self.code = code


class Invalid(DomainError):
    """A value that cannot be, with the field that holds it."""

    code = "invalid"


class Conflict(DomainError):
    """A request that was sensible once, and is not any more."""

    code = "conflict"
