"""Secrets at rest: only today's key and the older ones kept open them."""

from __future__ import annotations

import pytest

from apps.common.sealing import Unreadable, is_sealed, seal, unseal


def test_what_is_sealed_tells_nothing_and_opens_again() -> None:
    sealed = seal("hunter2")

    assert is_sealed(sealed)
    assert "hunter2" not in sealed
    assert unseal(sealed) == "hunter2"
    assert seal("hunter2") != sealed


def test_what_is_sealed_or_empty_stays_as_it_is() -> None:
    sealed = seal("hunter2")

    assert seal(sealed) == sealed
    assert seal("") == ""
    assert unseal("never sealed") == "never sealed"


def test_an_older_key_opens_while_it_is_kept(settings) -> None:
    settings.SECRET_KEY = "older"
    sealed = seal("hunter2")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "newer", ["older"]
    assert unseal(sealed) == "hunter2"
    again = seal(sealed)

    settings.SECRET_KEY_FALLBACKS = []

    assert unseal(again) == "hunter2"
    with pytest.raises(Unreadable):
        unseal(sealed)
    assert seal(sealed) == sealed


@pytest.mark.parametrize("text", ["sealed:", "sealed:nothing", "sealed:é"])
def test_what_was_tampered_with_is_not_opened(text: str) -> None:
    with pytest.raises(Unreadable):
        unseal(text)
