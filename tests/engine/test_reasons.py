"""Every code has a sentence, in DESIGN's words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from apps.engine.reasons import CARRIES, code_of, sentence
from apps.engine.types import Reason


@pytest.mark.parametrize("reason", list(Reason))
def test_every_code_has_a_sentence_even_without_facts(reason: Reason) -> None:
    code = code_of(reason)

    said = sentence({"code": code})

    assert code in CARRIES
    assert said.endswith(".")
    assert "None" not in said


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"code": "capacity", "needed": 7, "available": 3, "ahead": 8},
            "Needs 7 GPUs; 3 are free, and 8 jobs are ahead.",
        ),
        (
            {"code": "capacity", "needed": 1, "available": 1, "ahead": ["a"]},
            "Needs 1 GPU; 1 is free, and 1 job is ahead.",
        ),
        ({"code": "capacity", "needed": 12000, "available": 0}, "Needs 12,000 GPUs; 0 are free."),
        (
            {"code": "placement", "needed": 8, "available": 11, "domain": "rack"},
            "Needs 8 GPUs in one rack; 11 are free, but no rack takes every member.",
        ),
        (
            {"code": "reserved", "needed": 1, "for": "gang", "until": "12:05"},
            "Needs 1 GPU; the free ones are held for gang until 12:05, "
            "and this job would delay it.",
        ),
        (
            {
                "code": "ceiling",
                "tenant": "robotics",
                "needed": 8,
                "available": 0,
                "ceiling": 40,
                "pool": "h100",
            },
            "robotics is at its ceiling: 40 of 40 GPUs on h100.",
        ),
        (
            {"code": "ceiling", "tenant": "nlp", "needed": 64, "available": 26, "ceiling": 192},
            "Would take nlp to 230 GPUs, above its ceiling of 192. nlp must release 38 first.",
        ),
        (
            {"code": "never_fits", "needed": 264, "most": 256, "pool": "h100"},
            "Never fits: needs 264 GPUs; h100 can give 256. "
            "Lower the size or ask for another pool.",
        ),
        (
            {"code": "held", "who": "Mira Okafor", "since": "11:20"},
            "On hold by Mira Okafor since 11:20. Release it and it can run.",
        ),
        (
            {"code": "placement", "needed": 128, "available": 143, "held": 112, "reserves": True},
            "Holds 112 of 128 GPUs; 16 to go.",
        ),
        (
            {"code": "weightless", "tenant": "guest"},
            "guest has weight 0: it runs only when nobody else asks.",
        ),
    ],
)
def test_a_sentence_names_needed_and_available(facts: dict[str, Any], said: str) -> None:
    assert sentence(facts) == said


def test_instants_are_written_as_the_caller_says() -> None:
    at = datetime(2026, 1, 5, 12, 5, tzinfo=UTC)
    facts = {"code": "held", "who": "Mira", "since": at}

    assert (
        sentence(facts) == "On hold by Mira since 2026-01-05T12:05:00Z. Release it and it can run."
    )
    assert "since 12:05." in sentence(facts, lambda i: f"{i:%H:%M}")


@pytest.mark.parametrize("code", sorted(CARRIES))
def test_facts_that_are_none_are_left_unsaid(code: str) -> None:
    keys = ("needed", "available", "most", "tenant", "for", "until", "who", "since", "what")

    said = sentence({"code": code, **dict.fromkeys(keys)})

    assert "None" not in said


def test_several_dependencies_are_listed() -> None:
    said = sentence({"code": "dependency", "what": ["a", "b", "c"]})

    assert said == "Waits until a, b and c have succeeded."
