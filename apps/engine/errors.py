"""What the engine refuses outright: a policy it does not know, a tree that is none."""

from __future__ import annotations


class Refused(ValueError):
    """A policy or a snapshot that cannot be decided on; says which field and what it held."""

    def __init__(self, field: str, value: object, hint: str) -> None:
        super().__init__(f"{field} = {value!r}: {hint}")
        self.field = field
        self.value = value
        self.hint = hint
