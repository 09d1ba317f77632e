"""Why jobs wait, in sentences a reader may be told; the sentences are made in engine.reasons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import prefetch_related_objects
from django.urls import reverse
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from apps.common import show
from apps.common.templatetags.rollcall import name as shown_name
from apps.console.line import verdict_on
from apps.console.people import Viewer
from apps.engine import reasons
from apps.jobs.models import Job
from apps.scheduling.selectors import SPELLED_OUT, facts_of

UNDECIDED = "Submitted after the newest tick; decided at the next."
# What stands for a name until the sentence is escaped; no text a person typed may hold it.
HOLE = "\x00"


def _facts(jobs: Iterable[Job], viewer: Viewer) -> dict[int, Mapping[str, Any]]:
    """Return the facts of each judged job's reason; a handful of queries for all."""
    judged = [(job, verdict) for job in jobs if (verdict := verdict_on(job)) is not None]
    waiting = [job for job, verdict in judged if verdict.code == "dependency"]
    if waiting:
        prefetch_related_objects(waiting, "depends_on")
    return dict(facts_of([verdict for _, verdict in judged], viewer.user)) if judged else {}


def plain_reasons(jobs: Iterable[Job], viewer: Viewer) -> dict[int, str]:
    """Return each waiting job's sentence as text, by id; instants in ISO."""
    asked = list(jobs)
    facts = _facts(asked, viewer)
    return {
        job.pk: reasons.sentence(facts[job.pk], show.iso) if job.pk in facts else UNDECIDED
        for job in asked
    }


def linked_reasons(
    jobs: Iterable[Job], viewer: Viewer, when: Callable[[Job], Callable[[datetime], str]]
) -> dict[int, SafeString]:
    """Return each waiting job's sentence with the job in its way as a link, by id.

    ``when`` gives for a job how instants are written beside it.
    """
    asked = list(jobs)
    facts = _facts(asked, viewer)
    return {
        job.pk: linked(facts[job.pk], when(job)) if job.pk in facts else mark_safe(UNDECIDED)  # noqa: S308  our own words
        for job in asked
    }


def linked(facts: Mapping[str, Any], when: Callable[[datetime], str]) -> SafeString:
    """Return a reason's sentence, the first number of it strong and visible jobs' names links."""
    holes: dict[str, Any]
    if facts.get("for") is not None:
        names, ids, holes = [facts["for"]], [facts.get("for_id")], {"for": HOLE}
    elif 0 < len(facts.get("jobs") or ()) <= SPELLED_OUT:
        names = list(facts["jobs"])
        ids, holes = facts.get("job_ids") or [None] * len(names), {"jobs": [HOLE] * len(names)}
    else:
        return _escaped(reasons.sentence(facts, when))
    before, *rest = reasons.sentence({**facts, **holes}, when).split(HOLE)
    told = _escaped(before)
    for name, pk, after in zip(names, ids, rest, strict=True):
        told = format_html("{}{}{}", told, _job_link(name, pk), after)
    return told


def _job_link(name: str, pk: int | None) -> SafeString:
    if pk is None:
        return shown_name(name)
    return format_html('<a href="{}">{}</a>', reverse("console:job", args=[pk]), shown_name(name))


DECIDING = re.compile(
    r"^On hold|(?<![^\s(])(?:weight )?\d[\d,]*(?:[^;.,:]|:(?=\d))*(?:; [\d,]+ (?:is|are) free)?"
)


def _escaped(text: str) -> SafeString:
    """Return a sentence escaped, the part that decides strong: its first number or clock, to the stop."""
    found = DECIDING.search(text)
    if found is None:
        return conditional_escape(text)
    return format_html(
        "{}<b>{}</b>{}",
        text[: found.start()],
        found[0].rstrip(),
        text[found.start() + len(found[0].rstrip()) :],
    )
