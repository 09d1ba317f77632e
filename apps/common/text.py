"""Text as people type it: trimmed, and free of what a database or a page cannot hold."""

from __future__ import annotations

import unicodedata

from apps.common.errors import Invalid

# Cc: control characters, NUL among them; Cs: halves of a surrogate pair; Zl, Zp: line breaks.
REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})


def bad_character(value: str) -> str | None:
    """Return the first character no text may hold, as U+0000, or None."""
    for character in value:
        if unicodedata.category(character) in REFUSED:
            return f"U+{ord(character):04X}"
    return None


def clean_text(value: object, *, field: str, max_length: int, blank: bool = False) -> str:
    """Return one line of text, trimmed.

    HTML, Hebrew and emoji are text like any other: pages escape them.

    :raises Invalid: naming ``field``, for anything else.
    """
    if not isinstance(value, str):
        raise Invalid(f"{field} must be text.", field=field)
    # First the length: what is refused anyway is not looked at character by character.
    if len(value) > max_length:
        raise Invalid(
            f"{field} has {len(value):,} characters; at most {max_length} are allowed.", field=field
        )
    text = value.strip()
    if not text and not blank:
        raise Invalid(f"{field} must not be empty.", field=field)
    if character := bad_character(text):
        raise Invalid(f"{field} holds the control character {character}.", field=field)
    return text
